"""`cron FILE`: jobs by the clock; `--check` tells of every problem, or of the next runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from incumbent.cli.parser import Request
from incumbent.cli.text import print_json, say, table
from incumbent.cron.load import Loaded, load_jobs
from incumbent.cron.schedule import slot_id
from incumbent.cron.spec import JobSpec, Problem
from incumbent.cron.zones import find_zone
from incumbent.supervise.codes import OK, USAGE

__all__ = ["command"]

_RUNS = 3
"""How many runs of each job are shown."""
_HEAD = ("NEXT RUN", "UTC", "JOB", "SCHEDULE")


def command(request: Request) -> int:
    """See the module."""
    if not request.on("check"):
        from incumbent.cli.cron_serving import serve

        return serve(request)
    now = time.time()
    loaded = _loaded(request.name, now)
    if request.on("json"):
        print_json(_as_json(loaded, now))
    else:
        _tell(loaded, quiet=request.on("quiet"))
        if not loaded.errors:
            _show(loaded, now)
    return USAGE if loaded.errors else OK


def _loaded(name: str, now: float) -> Loaded:
    from incumbent.cli.cron_serving import find_jobs, is_module

    if not is_module(name):
        return load_jobs(name, os.environ, now)
    # Their settings were checked where they were said.
    return Loaded(find_jobs(name).specs, ())


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


def _next_runs(spec: JobSpec, now: float) -> Iterator[_Run]:
    slot = spec.schedule.next_after(now)
    for _ in range(_RUNS):
        if slot is None:
            return
        yield _Run(slot, spec)
        slot = spec.schedule.next_after(slot)


def _show(loaded: Loaded, now: float) -> None:
    found = [run for spec in loaded.specs for run in _next_runs(spec, now)]
    # Stable: what is due at the same instant stays in the order of the file.
    found.sort(key=lambda run: run.slot)
    table([_HEAD, *(_row(run) for run in found)])


def _row(run: _Run) -> tuple[str, ...]:
    local = run.local()
    when = f"{local:%a} {local.isoformat(sep=' ', timespec='seconds')} {run.spec.timezone}"
    return (when, slot_id(run.slot), run.spec.name, run.spec.schedule.describe())


def _as_json(loaded: Loaded, now: float) -> dict[str, Any]:
    return {
        "jobs": [_job_as_json(spec, now) for spec in loaded.specs],
        "problems": [_problem_as_json(problem) for problem in loaded.problems],
    }


def _job_as_json(spec: JobSpec, now: float) -> dict[str, Any]:
    return {
        "name": spec.name,
        "schedule": spec.schedule.describe(),
        "timezone": spec.timezone,
        "source": spec.source,
        "next": [
            {"slot": slot_id(run.slot), "local": run.local().isoformat()}
            for run in _next_runs(spec, now)
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
