"""Which tests `make test` leaves to `make test-all`, and which run few at a time; why.

A test is named by its file below tests/, or by file and function. `kept` are the ids of
parametrisations that `make test` runs all the same (fnmatch); without any it leaves them all.
Regression tests of defects that were mended are never left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

THIN, REST = "not full", "full"


@dataclass(frozen=True)
class Left:
    """Tests that only `make test-all` runs."""

    test: str
    why: str
    kept: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    def names(self, item: pytest.Item) -> bool:
        return self.test in (_file(item), f"{_file(item)}::{_function(item)}")

    def leaves(self, item: pytest.Item) -> bool:
        return self.names(item) and not any(fnmatchcase(_case(item), kept) for kept in self.kept)


def _file(item: pytest.Item) -> str:
    inside = item.path.is_relative_to(TESTS)
    return item.path.relative_to(TESTS).as_posix() if inside else str(item.path)


def _function(item: pytest.Item) -> str:
    return getattr(item, "originalname", None) or item.name


def _case(item: pytest.Item) -> str:
    call = getattr(item, "callspec", None)
    return call.id if call else ""


PROCESSES = "starts processes and looks at the clock: a deadline is the subject"
STRESS = "many threads or processes that compete for the processor"

TIMING: dict[str, str] = {
    "chaos/test_chaos.py": PROCESSES,
    "chaos/test_recovery.py": PROCESSES,
    "chaos/test_suspend.py": PROCESSES,
    "cli/test_exit_codes.py": PROCESSES,
    "combined/test_fleets.py": PROCESSES,
    "cron/test_disproved.py": PROCESSES,
    "cron/test_processes.py": PROCESSES,
    "cron/test_workers.py": PROCESSES,
    "e2e/test_cotyledon.py": PROCESSES,
    "e2e/test_demo.py": PROCESSES,
    "e2e/test_disproved.py": PROCESSES,
    "e2e/test_draining.py": PROCESSES,
    "e2e/test_etcd_examples.py": PROCESSES,
    "e2e/test_faults.py": PROCESSES,
    "e2e/test_fleet_example.py": PROCESSES,
    "e2e/test_lead.py": PROCESSES,
    "e2e/test_once_job.py": PROCESSES,
    "e2e/test_quorum_jobs.py": PROCESSES,
    "e2e/test_telnet_leader.py": PROCESSES,
    "e2e/test_terminal.py": PROCESSES,
    "e2e/test_work.py": PROCESSES,
    "faults/test_exit_when_lost.py": PROCESSES,
    "faults/test_gevent.py": PROCESSES,
    "faults/test_guard.py": PROCESSES,
    "faults/test_guard_at_start.py": PROCESSES,
    "faults/test_quorum_schedules.py": PROCESSES,
    "faults/test_redis_switchover.py": PROCESSES,
    "faults/test_sqlite_lines.py": STRESS,
    "faults/test_sqlite_processes.py": PROCESSES,
    "formats/test_side_by_side.py": PROCESSES,
    "unit/test_keeper_stress.py": STRESS,
}
"""Files whose tests run after all others, few at a time: what they measure is not then the load."""

SEEDS = "more seeds of the same worlds"
STORES = "what is tested is above the store: one store a test is enough to see it break"

LEFT: tuple[Left, ...] = (
    Left("sim/test_simulator.py::test_no_history_breaks_a_rule", SEEDS, kept=("*-0",)),
    Left(
        "sim/test_simulator.py::test_a_store_that_forgets_lets_beliefs_overlap_and_tokens_grow",
        SEEDS,
        kept=("0",),
    ),
)


def mark(items: Iterable[pytest.Item]) -> None:
    """Give each item its part: `full` if `make test` leaves it, `timing` if it runs at the end."""
    for item in items:
        if any(left.leaves(item) for left in LEFT):
            item.add_marker(pytest.mark.full)
        if _file(item) in TIMING:
            item.add_marker(pytest.mark.timing)


def stale(items: Iterable[pytest.Item]) -> list[str]:
    """Entries that name nothing in their file, which was collected whole."""
    cases: dict[str, list[str]] = {left.test: [] for left in LEFT}
    files = set()
    for item in items:
        files.add(_file(item))
        for name in (_file(item), f"{_file(item)}::{_function(item)}"):
            if name in cases:
                cases[name].append(_case(item))
    return [
        f"{left.test}[{kept}]"
        for left in LEFT
        if left.file in files
        for kept in (left.kept or ("*",))
        if not any(fnmatchcase(case, kept) for case in cases[left.test])
    ]
