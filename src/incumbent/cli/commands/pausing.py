"""`pause` and `unpause`: the fleet-wide off switch of a name."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.asking import WITHIN, Asking
from incumbent.cli.parser import Request
from incumbent.cli.show import said_by
from incumbent.model import ABSENT, Stale
from incumbent.store_url import store_url
from incumbent.stores.names import make_key
from incumbent.stores.notices import PAUSE
from incumbent.sync import Client

__all__ = ["command"]


def command(request: Request) -> int:
    """See the module."""
    make_key(request.namespace, request.name)
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        asking = Asking(request, client)
        return _pause(asking) if request.command == "pause" else _unpause(asking)


def _pause(asking: Asking) -> int:
    # Who paused it first, and why, stays on record.
    until = clock.now() + WITHIN
    outcome = asking.store.put(asking.key, PAUSE, asking.pause_value(), ABSENT, until)
    record = asking.read()
    before = f"was paused before{said_by(record, PAUSE)}" if isinstance(outcome, Stale) else ""
    if not record.holdings:
        return asking.say("paused", before or "paused; nobody held it")
    holding = record.holdings[0]
    if holding.foreign:
        line = f"paused; the value at its key is not ours ({holding.holder}) and stays"
        return asking.say("paused", before or line)
    _, how = asking.await_end(holding)
    if how is None:
        return asking.still_held(holding, "; it is paused for all others")
    return asking.say("paused", f"{before or 'paused'}; {holding.holder} {how}")


def _unpause(asking: Asking) -> int:
    record = asking.read()
    if PAUSE not in record.fields:
        return asking.say("unpaused", "was not paused")
    asking.store.put(asking.key, PAUSE, None, None, clock.now() + WITHIN)
    return asking.say("unpaused", "may be held again")
