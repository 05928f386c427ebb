"""`break`: ask the holder to stop, or remove its record."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.asking import WITHIN, Asking
from incumbent.cli.parser import Request
from incumbent.clients import Client
from incumbent.durations import say_seconds
from incumbent.model import Holding, Released
from incumbent.policy import TTL_DEFAULT
from incumbent.store_url import store_url
from incumbent.stores.names import make_key

__all__ = ["command"]


def command(request: Request) -> int:
    """See the module."""
    make_key(request.namespace, request.name)
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        asking = Asking(request, client, "notices")
        record = asking.read()
        if (code := asking.nobody(record)) is not None:
            return code
        holding = record.holdings[0]
        asking.ask_to_resign(holding)
        return _remove(asking, holding) if request.on("force") else _ask(asking, holding)


def _remove(asking: Asking, holding: Holding) -> int:
    until = clock.now() + WITHIN
    outcome = asking.store.give(asking.key, holding.claim, holding.token, until)
    if not isinstance(outcome, Released):
        return asking.say("ended", f"{holding.holder} has let go of it meanwhile")
    left = say_seconds(holding.remaining or holding.ttl or TTL_DEFAULT)
    line = (
        f"removed; {holding.holder} may act beside the next holder for up to {left},"
        " unless its renewal tells it before"
    )
    return asking.say("removed", line, holder=holding.holder)


def _ask(asking: Asking, holding: Holding) -> int:
    record, how = asking.await_end(holding)
    if how is None:
        return asking.still_held(holding, "; --force?")
    next_one = f"; {record.holdings[0].holder} holds it now" if record.holdings else ""
    return asking.say("ended", f"{holding.holder} {how}{next_one}", holder=holding.holder)
