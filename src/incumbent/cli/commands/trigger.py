"""`trigger`: run a job once now, on whichever instance takes it."""

from __future__ import annotations

import os
from typing import Final

from incumbent import clock
from incumbent.cli.asking import WITHIN, Asking
from incumbent.cli.exits import BUSY, OK, USAGE
from incumbent.cli.ledger_show import result_of
from incumbent.cli.looking import look_until
from incumbent.cli.parser import Request
from incumbent.clients import Client
from incumbent.cron.control import CONTROL, Trigger, encode, pause_of
from incumbent.cron.ledger import JOB, Run, State, runs_of
from incumbent.durations import parse_duration
from incumbent.model import Key, Record
from incumbent.store_url import store_url
from incumbent.stores.names import make_key
from incumbent.stores.notices import PAUSE

__all__ = ["command"]

_PATIENCE: Final = "15s"
_LOOK_AGAIN: Final = 0.25
_REFUSED: Final = (State.SKIPPED, State.MISSED, State.LOST)


def command(request: Request) -> int:
    """See the module."""
    make_key(request.namespace, request.name)
    patience = parse_duration(request.text("timeout") or _PATIENCE, "timeout")
    with Client(store_url(request.text("store")), namespace=request.namespace) as client:
        asking = Asking(request, client, "fields")
        record = asking.read()
        if (code := _cannot_be(asking, record)) is not None:
            return code
        return _trigger(asking, patience)


def _cannot_be(asking: Asking, record: Record) -> int | None:
    if JOB not in record.fields:
        line = "no instance of this namespace has ever known a job of this name; see `jobs`"
        return asking.say("unknown", line, USAGE)
    control = asking.client.read(CONTROL, WITHIN)
    if PAUSE in record.fields or pause_of(control) is not None:
        return asking.say("paused", "it is paused: unpause it first", BUSY)
    return None


def _trigger(asking: Asking, patience: float) -> int:
    trigger = Trigger(os.urandom(4).hex(), asking.key.name, clock.wall(), asking.who, asking.reason)
    control = Key(asking.key.namespace, CONTROL)
    value = encode(job=trigger.job, when=trigger.when, who=trigger.who, reason=trigger.reason)
    asking.store.put(control, trigger.field, value, None, clock.now() + WITHIN)

    def taken(record: Record) -> bool:
        return trigger.slot in runs_of(record.fields)

    until = clock.now() + patience
    record = look_until(asking.client, trigger.job, until, taken, _LOOK_AGAIN)
    if not taken(record):
        asking.store.put(control, trigger.field, None, None, clock.now() + WITHIN)
        line = "no instance took it: is one up that has this job? See `jobs`"
        return asking.say("not_taken", line, BUSY, slot=trigger.slot)
    return _answer(asking, runs_of(record.fields)[trigger.slot][0])


def _answer(asking: Asking, run: Run) -> int:
    if run.state in _REFUSED:
        line = f"{result_of(run)}: {run.why}"
        return asking.say(str(run.state), line, BUSY, slot=run.slot)
    line = f"{result_of(run)} on {run.instance} as {run.slot}"
    return asking.say(str(run.state), line, OK, slot=run.slot, instance=run.instance)
