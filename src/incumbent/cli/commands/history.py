"""`history`: who held NAME when."""

from __future__ import annotations

from incumbent.cli.exits import OK
from incumbent.cli.parser import Request
from incumbent.cli.show import iso, past_as_json, print_json, table
from incumbent.durations import say_seconds
from incumbent.model import Past, Record
from incumbent.store_url import store_url
from incumbent.sync import Client

__all__ = ["command"]

_WITHIN = 2.0
_HEAD = ("STARTED", "DURATION", "HOLDER", "TOKEN")


def command(request: Request) -> int:
    """See the module."""
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        record = client.read(request.name, _WITHIN)
    if request.on("json"):
        print_json([past_as_json(past) for past in record.history])
    else:
        table([_HEAD, *(_row(record, past) for past in record.history)])
    return OK


def _row(record: Record, past: Past) -> tuple[str, ...]:
    return (iso(past.started), _duration(record, past), past.holder, str(past.token))


def _duration(record: Record, past: Past) -> str:
    if past.ended is not None:
        return say_seconds(max(0.0, past.ended - past.started))
    held = any(holding.token == past.token for holding in record.holdings)
    return "holds it" if held else "ran out"
