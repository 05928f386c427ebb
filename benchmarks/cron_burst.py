"""A hundred slots of one instant over five instances: how late they start, who runs how many.

python -m benchmarks.cron_burst
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from tests.support.servers import RedisServer

from benchmarks.cron_fleet import cpu_of_trees, end, events, start, until
from benchmarks.harness import Figure

__all__ = ["burst_rows"]

_INSTANCES: Final = 5
_SLOTS: Final = 100
_AHEAD: Final = 20.0
"""Seconds from the start of the fleet to the slots: enough to prepare."""
_AT_ONCE: Final = 4.0
"""The same for a fleet that has no time to prepare."""


@dataclass(frozen=True)
class _Burst:
    late: list[float]
    runs: list[int]
    cpu: float
    """Seconds from the instant until all have ended, of all instances and what they started."""
    load: float


def burst_rows(turns: int = 3) -> list[Figure]:
    """Medians over bursts, on a Redis of our own; the spread is the worst of all bursts."""
    with RedisServer() as server:
        # It is new, and nobody held anything before.
        url = f"{server.url}?restart_wait=0"
        bursts = [_burst(url, f"burst{turn}", _AHEAD) for turn in range(turns)]
        cold = _burst(url, "cold", _AT_ONCE)
    many = f"{_SLOTS} slots over {_INSTANCES} instances"
    return [
        Figure(f"{many}: half run after", median(_half(it) for it in bursts), "s"),
        Figure(f"{many}: all run after", median(it.late[-1] for it in bursts), "s", 1.0),
        Figure("... the instance with the most runs", max(max(it.runs) for it in bursts), "runs"),
        Figure("... the instance with the fewest", min(min(it.runs) for it in bursts), "runs"),
        Figure("... CPU a run", median(it.cpu for it in bursts) / _SLOTS * 1e3, "ms"),
        Figure("... all run after, just started and unprepared", cold.late[-1], "s"),
        Figure("... load of the machine meanwhile", median(it.load for it in bursts), ""),
    ]


def _half(burst: _Burst) -> float:
    return burst.late[len(burst.late) // 2]


def _burst(url: str, namespace: str, ahead: float) -> _Burst:
    with tempfile.TemporaryDirectory(prefix="incumbent-bench-") as name:
        folder = Path(name)
        due = int(time.time() + ahead)
        (folder / "jobs.toml").write_text(_jobs(due))
        fleet = [start(url, folder, f"i{number}", namespace) for number in range(_INSTANCES)]
        pids = [process.pid for process in fleet]
        try:
            until(lambda: len(events(folder, "ready")) == _INSTANCES, 30)
            time.sleep(max(0.0, due - 0.2 - time.time()))
            before, load = cpu_of_trees(pids), os.getloadavg()[0]
            until(lambda: len(events(folder, "ok")) == _SLOTS, 60)
            cpu = cpu_of_trees(pids) - before
        finally:
            end(fleet)
        started = events(folder, "started")
    shares = Counter(event["instance"] for event in started)
    runs = [shares.get(f"i{number}", 0) for number in range(_INSTANCES)]
    return _Burst(sorted(event["late"] for event in started), runs, cpu, load)


def _jobs(due: int) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due))
    job = '[[job]]\nname = "j{}"\nat = [{}]\ncommand = ["true"]\n'
    return "\n".join(job.format(number, at) for number in range(_SLOTS))


def main() -> None:
    """Measure and print."""
    for row in burst_rows(int(os.environ.get("TURNS", "3"))):
        wanted = "" if row.target is None else f" (wanted: at most {row.target:g})"
        print(f"{row.name}: {row.figure:.3g} {row.unit}{wanted}")


if __name__ == "__main__":
    main()
