"""`jobs`: the jobs of the fleet, when they run next, and what became of their last run."""

from __future__ import annotations

from collections.abc import Sequence

from incumbent import clock
from incumbent.cli.ledger_text import (
    job_as_json,
    jobs_of,
    last_run,
    next_slot,
    result_of,
    say_up,
    took,
)
from incumbent.cli.parser import Request
from incumbent.cli.text import iso, print_json, table
from incumbent.clients import Client
from incumbent.cron.control import CONTROL, pause_of
from incumbent.cron.ledger import read_job, running
from incumbent.cron.presence import (
    KNOWN,
    PRESENCE,
    Present,
    gone_since,
    had_by_nobody,
    is_by_the_clock,
    presences,
    read_sets,
    up_now,
)
from incumbent.durations import say_seconds
from incumbent.model import Record
from incumbent.options import require
from incumbent.protocol.link import link_for
from incumbent.store_url import store_url
from incumbent.stores.notices import PAUSE
from incumbent.supervise.codes import OK

__all__ = ["command"]

_WITHIN = 5.0
_SHOW_GONE = 86_400.0
_HEAD = ("JOB", "SCHEDULE", "NEXT", "LAST", "RESULT", "TOOK", "WHO")


def command(request: Request) -> int:
    """See the module."""
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        require(link_for(client).engine.capabilities, "jobs", "fields")
        records = client.scan("", _WITHIN)
    now = clock.wall()
    jobs = jobs_of(records)
    by_name = {record.key.name: record for record in records}
    up = up_now(presences(by_name[PRESENCE]), now) if PRESENCE in by_name else []
    gone = _gone(jobs, up, by_name.get(KNOWN))
    paused = CONTROL in by_name and pause_of(by_name[CONTROL]) is not None
    if request.on("json"):
        instances = [{"instance": it.instance, "since": iso(it.since)} for it in up]
        shown = [job_as_json(record, now, gone=record.key.name in gone) for record in jobs]
        print_json({"jobs": shown, "instances": instances, "all_paused": paused})
        return OK
    rows = [
        _row(record, now, gone=record.key.name in gone)
        for record in jobs
        if record.key.name not in gone or _is_shown(record, now)
    ]
    table([_HEAD, *rows])
    if any("gone" in row[2:3] for row in rows):
        print(
            "gone: no instance that is up has this job; it was removed, or its instances are down"
        )
    print(say_up(up, now) + ("; everything is paused" if paused else ""))
    return OK


def _gone(jobs: Sequence[Record], up: Sequence[Present], known: Record | None) -> set[str]:
    """Jobs that no instance has, although some are up."""
    sets = read_sets(known)
    return {
        record.key.name
        for record in jobs
        if is_by_the_clock(read_job(record.fields)) and had_by_nobody(record.key.name, up, sets)
    }


def _is_shown(record: Record, now: float) -> bool:
    """For a while: it may be the jobs of a file whose instances are all down."""
    since = gone_since(record.fields)
    return since is None or now - since < _SHOW_GONE


def _row(record: Record, now: float, *, gone: bool) -> tuple[str, ...]:
    facts, following, last = read_job(record.fields), next_slot(record, now), last_run(record)
    schedule = str(facts.get("schedule", "-"))
    coming = "paused" if PAUSE in record.fields else _until(following, now)
    coming = "gone" if gone else coming
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
