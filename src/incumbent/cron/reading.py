"""What records tell of jobs: which are jobs, their runs, when they are due next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from incumbent.cron.control import is_job_name
from incumbent.cron.ledger import JOB, Run, State, read_job, running, runs_of
from incumbent.cron.presence import Present, had_by_nobody, is_by_the_clock
from incumbent.cron.schedule import Every, Schedule, cron_schedule
from incumbent.durations import parse_duration
from incumbent.errors import ConfigError
from incumbent.model import Record


def jobs_of(records: Iterable[Record]) -> list[Record]:
    """Those that are jobs."""
    return [record for record in records if is_job(record)]


def is_job(record: Record) -> bool:
    """Whether it is a job's."""
    return is_job_name(record.key.name) and JOB in record.fields


def has_no_instance(
    record: Record, up: Iterable[Present], sets: Mapping[str, frozenset[bytes]]
) -> bool:
    """Whether no instance has this job although some are up; `sets`: see `read_sets`."""
    by_clock = is_by_the_clock(read_job(record.fields))
    return by_clock and had_by_nobody(record.key.name, up, sets)


def runs_in(record: Record) -> list[Run]:
    """All runs on record, oldest first; what seems to run and has no holder is lost."""
    alive = {run.slot for run in running(record)}
    return [
        run
        if run.state.ended or run.slot in alive
        else replace(run, state=State.LOST, why=run.why or f"{run.instance} vanished")
        for run, _ in runs_of(record.fields).values()
    ]


def result_of(run: Run) -> str:
    """One word, and what is worth a second."""
    times = f" x{run.count}" if run.count > 1 else ""
    code = f" ({run.code})" if run.code and run.state is State.FAILED else ""
    return f"{str(run.state).replace('_', ' ')}{code}{times}"


def next_slot(record: Record, now: float) -> float | None:
    """When it is due next, as far as its registered schedule tells."""
    facts = read_job(record.fields)
    schedule = schedule_of(str(facts.get("schedule", "")), str(facts.get("timezone", "UTC")))
    return None if schedule is None else schedule.next_after(now)


def schedule_of(text: str, zone: str) -> Schedule | None:
    """The schedule that an instance registered, as far as it can be told."""
    expression = text.removesuffix(f" ({zone})")
    try:
        if expression.startswith("every "):
            return Every(parse_duration(expression.removeprefix("every "), "every"))
        return None if expression.startswith("at ") else cron_schedule(expression, zone)
    except (ConfigError, ImportError):
        return None
