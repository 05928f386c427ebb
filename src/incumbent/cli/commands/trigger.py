"""`trigger`: run a job once now, on whichever instance takes it."""

from __future__ import annotations

import os
from typing import Final

from incumbent import clock
from incumbent.cli.ledger_text import result_of
from incumbent.cli.operator import WITHIN, Operator, open_client, read_until
from incumbent.cli.parser import Request
from incumbent.cron.control import CONTROL, Trigger, encode, pause_of
from incumbent.cron.ledger import JOB, Run, State, runs_of
from incumbent.durations import parse_duration
from incumbent.model import Key, Record
from incumbent.stores.notices import PAUSE
from incumbent.supervise.codes import BUSY, OK, USAGE

__all__ = ["command"]

_PATIENCE: Final = "15s"
_LOOK_AGAIN: Final = 0.25
_REFUSED: Final = (State.SKIPPED, State.MISSED, State.LOST)


def command(request: Request) -> int:
    """See the module."""
    patience = parse_duration(request.text("timeout") or _PATIENCE, "timeout")
    with open_client(request) as client:
        operator = Operator(request, client, "fields")
        record = operator.read()
        if (code := _cannot_be(operator, record)) is not None:
            return code
        return _trigger(operator, patience)


def _cannot_be(operator: Operator, record: Record) -> int | None:
    if JOB not in record.fields:
        line = "no instance of this namespace has ever known a job of this name; see `jobs`"
        return operator.answer("unknown", line, USAGE)
    control = operator.client.read(CONTROL, WITHIN)
    if PAUSE in record.fields or pause_of(control) is not None:
        return operator.answer("paused", "it is paused: unpause it first", BUSY)
    return None


def _trigger(operator: Operator, patience: float) -> int:
    trigger = Trigger(
        os.urandom(4).hex(), operator.key.name, clock.wall(), operator.who, operator.reason
    )
    control = Key(operator.key.namespace, CONTROL)
    value = encode(job=trigger.job, when=trigger.when, who=trigger.who, reason=trigger.reason)
    operator.store.put(control, trigger.field, value, None, clock.now() + WITHIN)

    def taken(record: Record) -> bool:
        return trigger.slot in runs_of(record.fields)

    until = clock.now() + patience
    record = read_until(operator.client, trigger.job, until, taken, _LOOK_AGAIN)
    if not taken(record):
        operator.store.put(control, trigger.field, None, None, clock.now() + WITHIN)
        line = "no instance took it: is one up that has this job? See `jobs`"
        return operator.answer("not_taken", line, BUSY, slot=trigger.slot)
    return _answer(operator, runs_of(record.fields)[trigger.slot][0])


def _answer(operator: Operator, run: Run) -> int:
    if run.state in _REFUSED:
        line = f"{result_of(run)}: {run.why}"
        return operator.answer(str(run.state), line, BUSY, slot=run.slot)
    line = f"{result_of(run)} on {run.instance} as {run.slot}"
    return operator.answer(str(run.state), line, OK, slot=run.slot, instance=run.instance)
