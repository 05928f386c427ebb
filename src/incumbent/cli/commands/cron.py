"""`cron FILE`: jobs by the clock; `--check` tells of every problem, or of the next runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from incumbent.cli.exits import OK, USAGE, say
from incumbent.cli.parser import Request
from incumbent.cli.show import print_json, table
from incumbent.cron.load import Loaded, load_jobs
from incumbent.cron.schedule import slot_id
from incumbent.cron.spec import JobSpec, Problem
from incumbent.cron.zones import find_zone
from incumbent.errors import ConfigError

__all__ = ["command"]

_RUNS = 3
_MOST_RUNS = 1000
_HEAD = ("NEXT RUN", "UTC", "JOB", "SCHEDULE")


def command(request: Request) -> int:
    """See the module."""
    runs = _runs(request.text("next"))
    if not request.on("check"):
        from incumbent.cli.cron_serving import serve

        return serve(request)
    now = time.time()
    loaded = _loaded(request.name, now)
    if request.on("json"):
        print_json(_as_json(loaded, now, runs))
    else:
        _tell(loaded, quiet=request.on("quiet"))
        if not loaded.errors:
            _show(loaded, now, runs)
    return USAGE if loaded.errors else OK


def _loaded(name: str, now: float) -> Loaded:
    from incumbent.cli.cron_serving import is_module

    if not is_module(name):
        return load_jobs(name, os.environ, now)
    from incumbent.cli.cron_module import find_jobs

    # Their settings were checked where they were said.
    return Loaded(find_jobs(name).specs, ())


def _runs(text: str | None) -> int:
    if text is None:
        return _RUNS
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_RUNS:
        raise ConfigError(f"--next={text[:40]!r}: a number from 1 to {_MOST_RUNS}", name="next")
    return int(text)


def _tell(loaded: Loaded, *, quiet: bool) -> None:
    for problem in loaded.problems:
        if not (quiet and problem.warning):
            say(str(problem))


# -- what comes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    slot: float
    spec: JobSpec

    def local(self) -> datetime:
        return datetime.fromtimestamp(self.slot, find_zone(self.spec.timezone))


def _next_runs(spec: JobSpec, now: float, runs: int) -> Iterator[_Run]:
    slot = spec.schedule.next_after(now)
    for _ in range(runs):
        if slot is None:
            return
        yield _Run(slot, spec)
        slot = spec.schedule.next_after(slot)


def _show(loaded: Loaded, now: float, runs: int) -> None:
    found = [run for spec in loaded.specs for run in _next_runs(spec, now, runs)]
    # Stable: what is due at the same instant stays in the order of the file.
    found.sort(key=lambda run: run.slot)
    table([_HEAD, *(_row(run) for run in found)])


def _row(run: _Run) -> tuple[str, ...]:
    local = run.local()
    when = f"{local:%a} {local.isoformat(sep=' ', timespec='seconds')} {run.spec.timezone}"
    return (when, slot_id(run.slot), run.spec.name, run.spec.schedule.describe())


def _as_json(loaded: Loaded, now: float, runs: int) -> dict[str, Any]:
    return {
        "jobs": [_job_as_json(spec, now, runs) for spec in loaded.specs],
        "problems": [_problem_as_json(problem) for problem in loaded.problems],
    }


def _job_as_json(spec: JobSpec, now: float, runs: int) -> dict[str, Any]:
    return {
        "name": spec.name,
        "schedule": spec.schedule.describe(),
        "timezone": spec.timezone,
        "source": spec.source,
        "next": [
            {"slot": slot_id(run.slot), "local": run.local().isoformat()}
            for run in _next_runs(spec, now, runs)
        ],
    }


def _problem_as_json(problem: Problem) -> dict[str, Any]:
    return {
        "path": problem.path,
        "line": problem.line,
        "column": problem.column,
        "text": problem.text,
        "warning": problem.warning,
    }
