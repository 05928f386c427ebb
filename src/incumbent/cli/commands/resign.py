"""`resign`: ask the holder to hand over, to whoever is first or to one of the candidates."""

from __future__ import annotations

from typing import Any

from incumbent import clock
from incumbent.cli.asking import Asking
from incumbent.cli.exits import BUSY
from incumbent.cli.looking import look_until
from incumbent.cli.parser import Request
from incumbent.clients import Client
from incumbent.errors import ConfigError
from incumbent.model import Holding, Record
from incumbent.protocol.link import link_for
from incumbent.store_url import store_url
from incumbent.stores.names import make_key

__all__ = ["command"]

_RESERVED = 5.0
"""Seconds for which a name is kept for a successor, at most."""


def command(request: Request) -> int:
    """See the module."""
    make_key(request.namespace, request.name)
    to = request.text("to") or ""
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        asking = Asking(request, client, "notices")
        record = asking.read()
        if to:
            _check_successor(client, record, to)
        if (code := asking.nobody(record)) is not None:
            return code
        holding = record.holdings[0]
        asking.ask_to_resign(holding, to)
        record, how = asking.await_end(holding)
        if how is None:
            return asking.still_held(holding)
        if to:
            record = _follow(asking, holding)
        return _conclude(asking, record, holding, how, to)


def _check_successor(client: Client, record: Record, to: str) -> None:
    can = link_for(client).engine.capabilities
    if not (can.candidates and can.reservations):
        raise ConfigError("to: this store knows no candidates", name="to")
    names = [it.holder for it in record.candidates]
    if to not in names:
        known = f"candidates are {', '.join(names)}" if names else "nobody stands by"
        raise ConfigError(f"to={to!r} does not stand for {record.key.name!r}: {known}", name="to")


def _follow(asking: Asking, holding: Holding) -> Record:
    """Wait until somebody leads again, for as long as the name is kept for the successor."""

    def led(record: Record) -> bool:
        return bool(record.holdings) and record.holdings[0].token != holding.token

    return look_until(asking.client, asking.key.name, clock.now() + _RESERVED, led)


def _conclude(asking: Asking, record: Record, holding: Holding, how: str, to: str) -> int:
    now = record.holdings[0].holder if record.holdings else None
    line = f"{holding.holder} {how}" + (f"; {now} holds it now" if now else "")
    more: dict[str, Any] = {"holder": holding.holder, "leader": now}
    if not to or now == to:
        return asking.say("resigned", line, **more)
    return asking.say("not_transferred", f"{line}; {to} did not take it", BUSY, **more)
