"""Ten thousand jobs in one file: how long they take to load, and what an hour of waiting costs.

The processor's time counts, not the clock's: other programs on the machine do not show.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

from benchmarks.harness import Figure
from incumbent.cron.agenda import Agenda
from incumbent.cron.load import load_jobs
from incumbent.cron.schedule import cron_schedule
from incumbent.cron.spec import JobSpec

__all__ = ["Figure", "agenda_rows"]

_JOBS = 10_000
_NOW = 1_795_000_000.0
_HOUR = 3600.0


def agenda_rows(turns: int) -> list[Figure]:
    """All rows; every turn measures each of them once."""
    with tempfile.TemporaryDirectory() as folder:
        crontab, toml = Path(folder, "crontab"), Path(folder, "jobs.toml")
        crontab.write_text(_crontab())
        toml.write_text(_toml())
        return [
            _loading("load 10,000 lines of a crontab", crontab, turns),
            _loading("load 10,000 tables of a job file", toml, turns),
            *_waiting("10,000 jobs, 1 in 10 each minute", _mixed(), turns),
            *_waiting("10,000 jobs, all each minute", _all_each_minute(), turns),
            _looking(turns),
        ]


def _loading(name: str, path: Path, turns: int) -> Figure:
    def load() -> None:
        cron_schedule.cache_clear()
        loaded = load_jobs(str(path), os.environ, _NOW)
        Agenda(loaded.specs, _NOW)
        assert len(loaded.specs) == _JOBS, loaded.problems[:3]

    return Figure(name, _cpu(load, turns), "s", 2)


def _waiting(name: str, specs: list[JobSpec], turns: int) -> list[Figure]:
    handed_out = 0

    def wait() -> None:
        nonlocal handed_out
        handed_out = 0
        agenda = Agenda(specs, _NOW)
        while (following := agenda.next_at) is not None and following <= _NOW + _HOUR:
            handed_out += len(agenda.due(following))

    share = _cpu(wait, turns) / _HOUR * 100
    return [Figure(f"{name}: {handed_out:,} slots an hour", share, "% of a core", 1)]


def _looking(turns: int) -> Figure:
    agenda, rounds = Agenda(_mixed(), _NOW), 100_000

    def look() -> None:
        for _ in range(rounds):
            _ = agenda.next_at

    return Figure("look up the next run", _cpu(look, turns) / rounds * 1e6, "us")


def _cpu(work: Callable[[], None], turns: int) -> float:
    times = []
    for _ in range(turns):
        began = process_time()
        work()
        times.append(process_time() - began)
    return median(times)


# -- jobs ------------------------------------------------------------------------------------------


def _expression(number: int) -> str:
    """No two alike among those that are not each minute."""
    if number % 10 == 0:
        return "* * * * *"
    return f"{number % 60} {number // 60 % 24} {number // 1440 % 28 + 1} * *"


def _crontab() -> str:
    lines = (f"{_expression(it)} echo job {it}" for it in range(_JOBS))
    return "CRON_TZ=Europe/Berlin\n" + "\n".join(lines)


def _toml() -> str:
    tables = (
        f'[[job]]\nname = "job-{it}"\nschedule = "{_expression(it)}"\ncommand = ["echo", "{it}"]\n'
        for it in range(_JOBS)
    )
    return '[defaults]\ntimezone = "Europe/Berlin"\n' + "".join(tables)


def _mixed() -> list[JobSpec]:
    return [_job(it, _expression(it)) for it in range(_JOBS)]


def _all_each_minute() -> list[JobSpec]:
    return [_job(it, "* * * * *") for it in range(_JOBS)]


def _job(number: int, expression: str) -> JobSpec:
    schedule = cron_schedule(expression, "Europe/Berlin")
    return JobSpec(name=f"job-{number}", schedule=schedule, command=("true",))


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cron_agenda")
    parser.add_argument("--turns", type=int, default=5, help="turns of each row (5)")
    for row in agenda_rows(parser.parse_args().turns):
        wanted = f" (wanted: at most {row.target:g})" if row.target is not None else ""
        print(f"{row.name}: {row.figure:.3g} {row.unit}{wanted}")


if __name__ == "__main__":
    main()
