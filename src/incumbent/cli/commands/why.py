"""`why`: why NAME is held, or is not, in words."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.exits import OK
from incumbent.cli.parser import Request
from incumbent.cli.reasons import explain
from incumbent.cli.show import print_json, record_as_json
from incumbent.store_url import store_url
from incumbent.sync import Client

__all__ = ["command"]

_WITHIN = 2.0


def command(request: Request) -> int:
    """See the module."""
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        record = client.read(request.name, _WITHIN)
    lines = explain(record, clock.wall())
    if request.on("json"):
        print_json({**record_as_json(record), "why": lines})
    else:
        print("\n".join(f"{request.name}: {line}" for line in lines))
    return OK
