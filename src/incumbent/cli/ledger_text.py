"""How jobs and runs are shown: in rows, as JSON, and why one ran or did not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from typing import Any

from incumbent.cli.text import iso, utc
from incumbent.cron.ledger import Run, pruned_spans, read_job, running
from incumbent.cron.presence import (
    GONE,
    GONE_AFTER,
    Present,
    is_by_the_clock,
    up_now,
)
from incumbent.cron.reading import next_slot, result_of, runs_in
from incumbent.cron.schedule import slot_id
from incumbent.cron.slots import GRACE
from incumbent.durations import say_seconds
from incumbent.model import Record
from incumbent.stores.findings import said_by
from incumbent.stores.notices import PAUSE


def last_run(record: Record) -> Run | None:
    """The newest on record."""
    runs = runs_in(record)
    return runs[-1] if runs else None


def took(run: Run) -> str:
    """How long it ran."""
    return "-" if run.seconds is None else say_seconds(run.seconds)


def when_of(run: Run) -> str:
    """Its slot, in local time; what no schedule named by its own name."""
    name = run.slot if not run.slot[:1].isdigit() else ""
    again = f" #{run.attempt}" if "#" in run.slot else ""
    return iso(run.due) + (f" {name}" if name else again)


def say_up(present: Iterable[Present], now: float) -> str:
    """The instances that are up, and those that are silent for longer than they should be."""
    known = up_now(present, now)
    up = [one.instance for one in known if now - one.seen < GONE_AFTER]
    silent = [one for one in known if now - one.seen >= GONE_AFTER]
    who = f"{len(up)} up: {', '.join(up)}" if up else "no instance is up"
    since = [f"{one.instance} for {say_seconds(now - one.seen)}" for one in silent]
    return f"{who}; silent: {', '.join(since)}" if since else who


def run_as_json(run: Run) -> dict[str, Any]:
    """One run as `history --json` shows it."""
    return {
        "slot": run.slot,
        "due": utc(run.due),
        "state": str(run.state),
        "instance": run.instance or None,
        "term": run.token or None,
        "started": None if run.started is None else utc(run.started),
        "ended": None if run.ended is None else utc(run.ended),
        "seconds": run.seconds,
        "exit_code": run.code,
        "attempt": run.attempt,
        "count": run.count,
        "why": run.why or None,
        "output": run.output or None,
    }


def job_as_json(record: Record, now: float, *, gone: bool = False) -> dict[str, Any]:
    """One job as `jobs --json` shows it; `gone`: no instance that is up has it."""
    last, following = last_run(record), None if gone else next_slot(record, now)
    facts = read_job(record.fields)
    return {
        "name": record.key.name,
        **{key: value for key, value in facts.items() if key not in ("since", GONE)},
        "next": None if following is None else slot_id(following),
        "gone": gone,
        "paused": PAUSE in record.fields,
        "running": [run_as_json(run) for run in running(record)],
        "last": None if last is None else run_as_json(last),
    }


# -- why a job ran or did not ----------------------------------------------------------------------

_LAST = 3
_CLOCK_OFF = 2.0
"""Seconds between an instance's clock and the store's that are worth a word."""


def explain_job(
    record: Record,
    up: Sequence[Present],
    now: float,
    at: float | None = None,
    *,
    gone: bool = False,
    zone: tzinfo | None = None,
) -> list[str]:
    """One sentence a line, the answer first; `at`: about the slot of this instant.

    `gone`: no instance that is up has the job. `zone`: that in which `at` was read.
    """
    facts = read_job(record.fields)
    lines = list(_of_slot(record, at, now) if at is not None else _of_last(record))
    if at is not None and zone is not None:
        there = datetime.fromtimestamp(at, zone).isoformat(sep=" ", timespec="seconds")
        lines.insert(0, f"about {there} ({facts.get('timezone')}, the zone of the job)")
    if PAUSE in record.fields:
        lines.append(f"paused{said_by(record, PAUSE)}: no slot runs until `unpause`")
    following = next_slot(record, now)
    if gone:
        lines.append(
            "no instance that is up has this job: it was removed from their files, or the"
            " instances that have it are down"
        )
    elif following is not None:
        coming = f"in {say_seconds(max(0.0, following - now))}"
        lines.append(f"schedule {facts.get('schedule')}: next {coming}, at {iso(following)}")
    elif facts.get("schedule"):
        lines.append(f"schedule {facts['schedule']}")
    if is_by_the_clock(facts):
        lines.append(say_up(up, now) + ("" if up else ": nothing will run"))
    return lines


def _of_last(record: Record) -> Iterator[str]:
    runs = runs_in(record)
    if not runs:
        yield "nothing is on record yet"
    for run in runs[: -_LAST - 1 : -1]:
        yield from _of_run(record, run)


def _of_run(record: Record, run: Run) -> Iterator[str]:
    since = f" (and {run.count - 1} before it)" if run.count > 1 else ""
    what = f"slot {run.slot}{since}: {result_of(run)}"
    by = f" on {run.instance}" if run.instance else ""
    attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
    why = f": {run.why}" if run.why else ""
    yield what + by + attempt + why
    if run.started is not None and run.started - run.due > _CLOCK_OFF and run.slot[:1].isdigit():
        yield f"  it began {say_seconds(run.started - run.due)} after its slot"
    yield from _of_clock(record, run)


def _of_clock(record: Record, run: Run) -> Iterator[str]:
    for past in record.history:
        if past.token == run.token and run.started is not None:
            off = run.started - past.started
            if abs(off) > _CLOCK_OFF:
                way = "ahead of" if off > 0 else "behind"
                yield (
                    f"  the clock of {run.instance} was {say_seconds(abs(off))} {way} the store's"
                )


def _of_slot(record: Record, at: float, now: float) -> Iterator[str]:
    found = [run for run in runs_in(record) if run.since - 1 < at < run.due + 1]
    for run in found:
        yield from _of_run(record, run)
    if found:
        return
    facts = read_job(record.fields)
    since, following = facts.get("since"), next_slot(record, at - 1)
    if isinstance(since, int | float) and at < since:
        yield f"its schedule is known only since {iso(since)}: before that, nothing was due"
    elif any(first <= at <= last for first, last in pruned_spans(record.fields)):
        yield "the ledger has forgotten that far back (keep_runs, keep_for)"
    elif following is None or abs(following - at) > 1:
        yield from _no_slot(record, at, following)
    elif at > now:
        yield f"it is not due before {iso(at)}"
    elif now - at < GRACE:
        yield (
            "nothing is on record yet: whoever runs it says so at its start; it counts as missed"
            f" {say_seconds(GRACE)} after its time"
        )
    else:
        yield (
            "nothing is on record: no instance was up, or none reached the store; the next"
            " instance that starts, or the sweep of those that run, records it as missed"
        )


def _no_slot(record: Record, at: float, following: float | None) -> Iterator[str]:
    text = read_job(record.fields).get("schedule")
    coming = f"; the next one after it was {iso(following)}" if following is not None else ""
    yield f"the schedule {text} has no slot at {iso(at)}{coming}"
