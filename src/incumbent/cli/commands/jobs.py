"""`jobs`: the jobs of the fleet, when they run next, and what became of their last run."""

from __future__ import annotations

from incumbent import clock
from incumbent.cli.exits import OK
from incumbent.cli.ledger_show import (
    job_as_json,
    jobs_of,
    last_run,
    next_slot,
    result_of,
    say_up,
    took,
    up_now,
)
from incumbent.cli.parser import Request
from incumbent.cli.show import iso, print_json, table
from incumbent.cron.control import CONTROL, PRESENCE, pause_of, presences
from incumbent.cron.ledger import read_job, running
from incumbent.durations import say_seconds
from incumbent.model import Record
from incumbent.store_url import store_url
from incumbent.stores.notices import PAUSE
from incumbent.sync import Client

__all__ = ["command"]

_WITHIN = 5.0
_HEAD = ("JOB", "SCHEDULE", "NEXT", "LAST", "RESULT", "TOOK", "WHO")


def command(request: Request) -> int:
    """See the module."""
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        records = client.scan("", _WITHIN)
    now = clock.wall()
    jobs = jobs_of(records)
    by_name = {record.key.name: record for record in records}
    up = up_now(presences(by_name[PRESENCE]), now) if PRESENCE in by_name else []
    paused = CONTROL in by_name and pause_of(by_name[CONTROL]) is not None
    if request.on("json"):
        instances = [{"instance": it.instance, "since": iso(it.since)} for it in up]
        shown = [job_as_json(record, now) for record in jobs]
        print_json({"jobs": shown, "instances": instances, "all_paused": paused})
        return OK
    table([_HEAD, *(_row(record, now) for record in jobs)])
    print(say_up(up, now) + ("; everything is paused" if paused else ""))
    return OK


def _row(record: Record, now: float) -> tuple[str, ...]:
    facts, following, last = read_job(record.fields), next_slot(record, now), last_run(record)
    schedule = str(facts.get("schedule", "-"))
    coming = "paused" if PAUSE in record.fields else _until(following, now)
    if on := running(record):
        since = say_seconds(max(0.0, now - (on[0].started or now)))
        return (
            record.key.name, schedule, coming, iso(on[0].due), "running", since, on[0].instance
        )  # fmt: skip
    if last is None:
        return (record.key.name, schedule, coming, "-", "-", "-", "-")
    who = last.instance or "-"
    return (record.key.name, schedule, coming, iso(last.due), result_of(last), took(last), who)


def _until(following: float | None, now: float) -> str:
    return "-" if following is None else f"in {say_seconds(max(0.0, following - now))}"
