"""`why`: why NAME is held, or is not, and why a job ran or did not, in words."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.exits import OK
from incumbent.cli.job_reasons import explain_job
from incumbent.cli.parser import Request
from incumbent.cli.reasons import explain
from incumbent.cli.show import print_json, record_as_json
from incumbent.cli.when import instant_of
from incumbent.clients import Client
from incumbent.cron.ledger import JOB, read_job
from incumbent.cron.presence import (
    KNOWN,
    PRESENCE,
    had_by_nobody,
    is_by_the_clock,
    presences,
    read_sets,
    up_now,
)
from incumbent.store_url import store_url

__all__ = ["command"]

_WITHIN = 2.0


def command(request: Request) -> int:
    """See the module."""
    at = request.text("at")
    instant = None if at is None else instant_of(at, "at", clock.wall())
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        record = client.read(request.name, _WITHIN)
        present = client.read(PRESENCE, _WITHIN) if JOB in record.fields else None
        known = client.read(KNOWN, _WITHIN) if present is not None else None
    # Only now: "held for" in the record counts until it was read.
    now = clock.wall()
    # Of a job that nobody runs, who held its name says nothing that its ledger does not say better.
    lines = explain(record, now) if present is None or record.holdings else []
    if present is not None:
        up = up_now(presences(present), now)
        by_clock = is_by_the_clock(read_job(record.fields))
        gone = by_clock and had_by_nobody(request.name, up, read_sets(known))
        lines += explain_job(record, up, now, instant, gone=gone)
    if request.on("json"):
        print_json({**record_as_json(record), "why": lines})
    else:
        print("\n".join(f"{request.name}: {line}" for line in lines))
    return OK
