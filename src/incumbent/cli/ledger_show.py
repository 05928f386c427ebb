"""How runs and jobs are shown. Pure: from records, and what time it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from incumbent.cli.text import iso
from incumbent.cron.control import is_job_name
from incumbent.cron.ledger import JOB, Run, State, read_job, running, runs_of
from incumbent.cron.presence import GONE, GONE_AFTER, Present, up_now
from incumbent.cron.schedule import Every, cron_schedule, slot_id
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError
from incumbent.model import Record
from incumbent.stores.notices import PAUSE

__all__ = [
    "job_as_json",
    "jobs_of",
    "last_run",
    "next_slot",
    "result_of",
    "run_as_json",
    "runs_in",
    "say_up",
    "took",
    "when_of",
]


def jobs_of(records: Iterable[Record]) -> list[Record]:
    """Those that are jobs."""
    return [it for it in records if is_job_name(it.key.name) and JOB in it.fields]


def runs_in(record: Record) -> list[Run]:
    """All runs on record, oldest first; what seems to run and has no holder is lost."""
    alive = {run.slot for run in running(record)}
    return [
        run if run.state.ended or run.slot in alive else _vanished(run)
        for run, _ in runs_of(record.fields).values()
    ]


def _vanished(run: Run) -> Run:
    from dataclasses import replace

    return replace(run, state=State.LOST, why=run.why or f"{run.instance} vanished")


def last_run(record: Record) -> Run | None:
    """The newest on record."""
    runs = runs_in(record)
    return runs[-1] if runs else None


def result_of(run: Run) -> str:
    """One word, and what is worth a second."""
    times = f" x{run.count}" if run.count > 1 else ""
    code = f" ({run.code})" if run.code and run.state is State.FAILED else ""
    return f"{str(run.state).replace('_', ' ')}{code}{times}"


def took(run: Run) -> str:
    """How long it ran."""
    return "-" if run.seconds is None else say_seconds(run.seconds)


def when_of(run: Run) -> str:
    """Its slot, in local time; what no schedule named by its own name."""
    name = run.slot if not run.slot[:1].isdigit() else ""
    again = f" #{run.attempt}" if "#" in run.slot else ""
    return iso(run.due) + (f" {name}" if name else again)


def next_slot(record: Record, now: float) -> float | None:
    """When it is due next, as far as its registered schedule tells."""
    facts = read_job(record.fields)
    text, zone = str(facts.get("schedule", "")), str(facts.get("timezone", "UTC"))
    expression = text.removesuffix(f" ({zone})")
    try:
        if expression.startswith("every "):
            from incumbent.durations import parse_duration

            return Every(parse_duration(expression.removeprefix("every "), "every")).next_after(now)
        if expression.startswith("at "):
            return None
        return cron_schedule(expression, zone).next_after(now)
    except (ConfigError, ImportError):
        return None


def say_up(present: Iterable[Present], now: float) -> str:
    """Who is up, and who has been silent for longer than its signs of life are apart."""
    known = up_now(present, now)
    up = [it.instance for it in known if now - it.seen < GONE_AFTER]
    silent = [it for it in known if now - it.seen >= GONE_AFTER]
    who = f"{len(up)} up: {', '.join(up)}" if up else "no instance is up"
    told = [f"{it.instance} for {say_seconds(now - it.seen)}" for it in silent]
    return f"{who}; silent: {', '.join(told)}" if told else who


def run_as_json(run: Run) -> dict[str, Any]:
    """One run as `history --json` shows it."""
    return {
        "slot": run.slot,
        "due": iso(run.due),
        "state": str(run.state),
        "instance": run.instance or None,
        "term": run.token or None,
        "started": None if run.started is None else iso(run.started),
        "ended": None if run.ended is None else iso(run.ended),
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
        **{key: it for key, it in facts.items() if key not in ("since", GONE)},
        "next": None if following is None else slot_id(following),
        "gone": gone,
        "paused": PAUSE in record.fields,
        "running": [run_as_json(run) for run in running(record)],
        "last": None if last is None else run_as_json(last),
    }
