"""`wait`: return once NAME is free."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.exits import BUSY, OK, say
from incumbent.cli.looking import look_until
from incumbent.cli.parser import Request
from incumbent.cli.show import print_json, record_as_json, state_of
from incumbent.clients import Client
from incumbent.durations import parse_duration, say_seconds
from incumbent.model import Record
from incumbent.store_url import store_url
from incumbent.stores.names import make_key

__all__ = ["command"]


def command(request: Request) -> int:
    """See the module."""
    text = request.text("timeout")
    timeout = float("inf") if text is None else parse_duration(text, "timeout")
    make_key(request.namespace, request.name)
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        record = look_until(client, request.name, clock.now() + timeout, _is_free)
    if request.on("json"):
        print_json(record_as_json(record))
    if _is_free(record):
        return OK
    say(f"{request.name}: gave up after {say_seconds(timeout)}: {_what(record)}")
    return BUSY


def _is_free(record: Record) -> bool:
    return state_of(record) == "free"


def _what(record: Record) -> str:
    state = state_of(record)
    return f"held by {record.holdings[0].holder}" if record.holdings else state
