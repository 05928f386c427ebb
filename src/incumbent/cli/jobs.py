"""`jobs`, `history` and `trigger`: when jobs run, the results of their slots, and one more run.

For a name that is no job `history` shows the past terms, and how they ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from incumbent import clock
from incumbent.cli.operator import (
    REQUEST_TIMEOUT,
    Operator,
    describe_unknown,
    open_client,
    read_until,
    watch,
)
from incumbent.cli.parser import CommandRequest
from incumbent.cli.settings import number
from incumbent.cli.text import announce_wait, draw, iso, parse_since, print_json, say, table
from incumbent.cron import fleet
from incumbent.cron.ledger import JOB, Ledger, SlotRecord, SlotState, runs_of
from incumbent.cron.schedule import slot_id
from incumbent.durations import parse_duration, say_seconds, utc
from incumbent.locks.clients import Client
from incumbent.locks.options import require
from incumbent.model import Key, Past, Record
from incumbent.page.facts import job_as_json, past_as_json, run_as_json
from incumbent.page.snapshot import Job, Snapshot, fleet_of
from incumbent.printable import printable, printable_lines
from incumbent.rules.endings import TermEnding, describe_ending, endings_of
from incumbent.rules.notices import PAUSE
from incumbent.runtime.link import link_for
from incumbent.stores.plan import run_blocking
from incumbent.supervise.codes import BUSY, OK, USAGE

_SCAN_WITHIN = 5.0
_SHOW_GONE = 86_400.0
_GONE = "gone: no instance that is up has this job; it was removed, or its instances are down"
_HEAD = ("JOB", "SCHEDULE", "NEXT", "LAST", "RESULT", "TOOK", "WHO")
_RUNS_HEAD = ("SLOT", "RESULT", "TOOK", "WHO", "WHY")
_HOLDINGS_HEAD = ("STARTED", "DURATION", "HOLDER", "TOKEN", "HOW IT ENDED")
_WAIT: Final = "15s"
_REREAD_AFTER: Final = 0.25
_MOST_SHOWN: Final = 1_000_000
_NO_RESULT: Final = (SlotState.SKIPPED, SlotState.MISSED, SlotState.LOST)


def command(request: CommandRequest) -> int:
    return _COMMANDS[request.command](request)


# -- jobs ------------------------------------------------------------------------------------------


def _jobs(request: CommandRequest) -> int:
    with open_client(request) as client:
        require(link_for(client).engine.capabilities, "jobs", "fields")
        if request.on("watch"):
            watch(lambda: _show_jobs(request, client))
        else:
            _show_jobs(request, client)
    return OK


def _show_jobs(request: CommandRequest, client: Client) -> None:
    records = client.scan("", _SCAN_WITHIN)
    # After the scan, which may take seconds: nothing that it found is from later than this.
    now = clock.wall()
    found = fleet_of(Snapshot(client.url, request.namespace, now, records, read_at=now))
    jobs = [
        (job, name in found.gone)
        for name, job in found.jobs.items()
        if name.startswith(request.text("prefix") or "")
        and not (request.on("failed") and fleet.failure_of(job.runs) is None)
    ]
    if request.on("json"):
        instances = [{"instance": one.instance, "since": utc(one.since)} for one in found.up]
        shown = [job_as_json(job, now, gone=gone) for job, gone in jobs]
        print_json(request, {"jobs": shown, "instances": instances, "all_paused": found.all_paused})
        return
    up = bool(found.up)
    rows = [
        _job_row(job, now, gone=gone, up=up)
        for job, gone in jobs
        if not gone or _is_shown(job, now)
    ]
    below = [describe_up(found.up, now) + ("; everything is paused" if found.all_paused else "")]
    if any(row[2] == "gone" for row in rows):
        below.insert(0, _GONE)
    draw(request, [_HEAD, *rows], below)


def _is_shown(job: Job, now: float) -> bool:
    """Whether to show a gone job: its instances may only be down, so it is shown for a day."""
    since = fleet.gone_since(job.record.fields)
    return since is None or now - since < _SHOW_GONE


def _job_row(job: Job, now: float, *, gone: bool, up: bool) -> tuple[str, ...]:
    following = fleet.next_slot(job.record, now)
    coming = "-" if following is None else f"in {say_seconds(max(0.0, following - now))}"
    coming = coming if up or following is None else "nobody is up"
    coming = "gone" if gone else "paused" if PAUSE in job.record.fields else coming
    row = (job.record.key.name, str(job.facts.get("schedule", "-")), coming)
    if not job.runs:
        return (*row, "-", "-", "-", "-")
    run = next(iter(job.running), job.runs[-1])
    result = fleet.result_of(run) if run.state.ended else "running"
    result += f", triggered by {run.triggered_by}" if run.triggered_by else ""
    return (*row, iso(run.due), result, _duration_of(run, now), run.instance or "-")


def describe_up(present: Iterable[fleet.SignOfLife], now: float) -> str:
    """The instances that are up, and the instances that have been silent for too long."""
    known = fleet.up_now(present, now)
    up = [one.instance for one in known if not one.is_silent(now)]
    silent = [one for one in known if one.is_silent(now)]
    who = f"{len(up)} up: {', '.join(up)}" if up else "no instance is up"
    since = [f"{one.instance} for {say_seconds(now - one.seen)}" for one in silent]
    return f"{who}; silent: {', '.join(since)}" if since else who


# -- history ---------------------------------------------------------------------------------------


def _history(request: CommandRequest) -> int:
    since = request.text("since")
    start = float("-inf") if since is None else parse_since(since, clock.wall())
    with open_client(request) as client:
        record = client.read(request.name, REQUEST_TIMEOUT)
        if unknown := describe_unknown(client, record):
            say(f"{request.name}: {unknown}")
    most = number(request, "last", 1, _MOST_SHOWN, _MOST_SHOWN)
    runs = fleet.runs_in(record)
    if runs or fleet.is_job(record):
        found = [run for run in runs if run.due >= start]
        if request.on("failed"):
            found = [run for run in found if run.state in fleet.NOT_WELL]
        _show_runs(request, found[-most:])
        return OK
    _show_terms(request, record, start, most)
    return OK


def _show_terms(request: CommandRequest, record: Record, start: float, most: int) -> None:
    endings, present = endings_of(record), {holding.token for holding in record.holdings}
    history = [past for past in record.history if past.started >= start]
    if request.on("failed"):
        history = [past for past in history if past.token not in present and _failed(past, endings)]
    if request.on("json"):
        print_json(request, [past_as_json(past, endings) for past in history[-most:]])
        return
    rows = (_past_row(past, present, endings) for past in history[-most:])
    table([_HOLDINGS_HEAD, *rows])


def _failed(past: Past, endings: Mapping[int, TermEnding]) -> bool:
    ending = endings.get(past.token)
    return past.ended is None if ending is None else ending.failed


def _show_runs(request: CommandRequest, runs: list[SlotRecord]) -> None:
    if request.on("json"):
        print_json(request, [run_as_json(run) for run in runs])
        return
    table([_RUNS_HEAD, *map(_run_row, runs)])
    if request.on("verbose"):
        for run in runs:
            if run.output:
                seen = "" if run.output_seen is None else iso(run.output_seen)
                head = f"{_slot_of(run)}: {fleet.output_said(run)}{seen}".rstrip(": ")
                print(f"\n{printable(head)}:\n{printable_lines(run.output)}")


def _run_row(run: SlotRecord) -> tuple[str, ...]:
    lasted, why = _duration_of(run, clock.wall()), fleet.why_and_who(run)
    return (_slot_of(run), fleet.result_of(run), lasted, run.instance or "-", why)


def _duration_of(run: SlotRecord, now: float) -> str:
    """A run's duration, or the time so far if it has not ended."""
    if not run.state.ended and run.started is not None:
        return say_seconds(max(0.0, now - run.started))
    return "-" if run.seconds is None else say_seconds(run.seconds)


def _slot_of(run: SlotRecord) -> str:
    """The slot of a run in local time; with what its name says beyond that."""
    plain = slot_id(run.due)
    more = run.slot.removeprefix(plain)
    return f"{iso(run.due)} {more}" if more else iso(run.due)


def _past_row(
    past: Past, present: Collection[int], endings: Mapping[int, TermEnding]
) -> tuple[str, ...]:
    lasted = "holds it" if past.token in present else "ran out"
    if past.ended is not None:
        lasted = say_seconds(max(0.0, past.ended - past.started))
    how = "-" if past.ended is None else "released"
    how = describe_ending(endings[past.token]) if past.token in endings else how
    return (iso(past.started), lasted, past.holder, str(past.token), how)


# -- trigger ---------------------------------------------------------------------------------------


def _trigger(request: CommandRequest) -> int:
    timeout = parse_duration(request.text_or("timeout", _WAIT), "timeout")
    with open_client(request) as client:
        operator = Operator(request, client, "fields")
        record = operator.read()
        if JOB not in record.fields:
            line = "no instance of this namespace has ever known a job of this name; see `jobs`"
            return operator.answer("unknown", f"{line}{operator.hint(record)}", USAGE)
        control = client.read(fleet.CONTROL, REQUEST_TIMEOUT)
        if PAUSE in record.fields or fleet.pause_of(control) is not None:
            return operator.answer("paused", "it is paused: unpause it first", BUSY)
        present = client.read(fleet.PRESENCE, REQUEST_TIMEOUT)
        known = client.read(fleet.KNOWN, REQUEST_TIMEOUT)
        up = fleet.read_up(present, known, clock.wall())
        if up.all_lack(record.key.name):
            line = f"it is gone: no instance that is up has this job ({len(up.instances)} up)"
            return operator.answer("gone", line, BUSY)
        return _trigger_and_wait(operator, timeout)


def _trigger_and_wait(operator: Operator, timeout: float) -> int:
    name, id_ = operator.key.name, os.urandom(4).hex()
    trigger = fleet.Trigger(id_, name, clock.wall(), operator.who, operator.reason)
    control = Key(operator.key.namespace, fleet.CONTROL)
    operator.store.put(control, trigger.field, trigger.value, None, clock.now() + REQUEST_TIMEOUT)

    def is_taken(record: Record) -> bool:
        return trigger.slot in runs_of(record.fields)

    until = clock.now() + timeout
    with announce_wait(operator.request, until, lambda: "no instance has taken it yet"):
        record = read_until(operator.client, name, until, is_taken, _REREAD_AFTER)
    if not is_taken(record):
        withdrawn = _withdraw(operator, trigger)
        operator.store.put(control, trigger.field, None, None, clock.now() + REQUEST_TIMEOUT)
        if withdrawn:
            line = "no instance took it: is one up that has this job? See `jobs`"
            return operator.answer("not_taken", line, BUSY, slot=trigger.slot)
        record = operator.read()
    run = runs_of(record.fields)[trigger.slot][0]
    if run.state in _NO_RESULT:
        line = f"{fleet.result_of(run)}: {run.why}"
        return operator.answer(str(run.state), line, BUSY, slot=run.slot)
    line = f"{fleet.result_of(run)} on {run.instance} as {run.slot}"
    return operator.answer(str(run.state), line, OK, slot=run.slot, instance=run.instance)


def _withdraw(operator: Operator, trigger: fleet.Trigger) -> bool:
    """Put on record that the slot did not run; False if its run began meanwhile."""
    # That the trigger is removed is not enough: an instance may have read it, and wait for its
    # turn.
    why = f"withdrawn by {operator.who}: no instance took it in time"
    run = SlotRecord(
        trigger.slot, SlotState.SKIPPED, trigger.when, why=why, triggered_by=trigger.said
    )
    ledger = Ledger(link_for(operator.client).port, operator.key)
    return run_blocking(ledger.create(run))


_COMMANDS: Final[dict[str, Callable[[CommandRequest], int]]] = {
    "jobs": _jobs,
    "history": _history,
    "trigger": _trigger,
}
