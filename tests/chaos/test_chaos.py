"""Random faults on real fleets never give two workers at once; the judge would see it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from tests.chaos.planted import PLANTED
from tests.chaos.runner import Outcome, run
from tests.chaos.schedule import ISOLATIONS, Fault, Schedule, draw, may_overlap
from tests.support.needs import needs

BATCHES = (2, *[12] * 8)
"""Schedules at a time; `make test` runs the first batch."""
TRIES = 4
PLANTED_PRODUCT = ("-m", "tests.chaos.planted")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    needs(
        os.geteuid() == 0 and shutil.which("unshare") is not None,
        "root and unshare(1): PID namespaces, and instances that are PID 1",
    ),
]

A_STOP = Fault(0.1, "stop supervisor", 2.9)
A_HOLE = Fault(0.1, "black hole", 2.9)
AN_END = Fault(0.1, "exit child")
WITNESSES = [
    *(
        ("no_deadline_in_the_guard", Schedule(0, "sqlite", way, faults=(A_STOP,)))
        for way in ISOLATIONS
    ),
    ("killing_after_the_deadline", Schedule(0, "redis", "pidns", faults=(A_HOLE,))),
    (
        "killing_after_the_deadline",
        Schedule(0, "redis", "pgroup", ("--stubborn",), faults=(A_HOLE,)),
    ),
    (
        "giving_back_before_all_is_gone",
        Schedule(0, "sqlite", "pgroup", ("--daemon",), faults=(AN_END,)),
    ),
]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("part", range(len(BATCHES)))
def test_no_random_schedule_has_two_workers_at_once(part: int) -> None:
    outcomes = in_parallel([draw(seed) for seed in islice(judged_seeds(), BATCHES[part])])
    wrong = [outcome.report for outcome in outcomes if outcome.sight.wrong]
    assert not wrong, f"part {part}:\n" + "\n".join(wrong)


@pytest.mark.timeout(150)
def test_the_judge_sees_every_planted_bug() -> None:
    # That of the clock is for test_suspend.py.
    assert {bug for bug, _ in WITNESSES} == set(PLANTED) - {"a_clock_that_misses_suspend"}
    with ThreadPoolExecutor(len(WITNESSES)) as pool:
        outcomes = list(pool.map(lambda known: planted(*known), WITNESSES))
    missed = [
        bug for (bug, _), seen in zip(WITNESSES, outcomes, strict=True) if not seen.sight.overlaps
    ]
    assert not missed, "\n".join(outcome.report for outcome in outcomes)


@pytest.mark.timeout(150)
def test_the_same_schedules_without_a_bug_have_no_overlap() -> None:
    outcomes = in_parallel([schedule for _, schedule in WITNESSES])
    assert not [outcome.report for outcome in outcomes if outcome.sight.wrong]
    # Else nobody was there who could have overlapped.
    assert any(len(outcome.sight.terms) > 1 for outcome in outcomes)


def judged_seeds() -> Iterator[int]:
    """Other ones in each run."""
    start = random.SystemRandom().randrange(10**9)
    for seed in range(start, start + 10 * sum(BATCHES)):
        schedule = draw(seed)
        if not may_overlap(schedule, schedule.isolation):
            yield seed


def in_parallel(schedules: list[Schedule]) -> list[Outcome]:
    with ThreadPoolExecutor(len(schedules)) as pool:
        return list(pool.map(run, schedules))


def planted(bug: str, schedule: Schedule) -> Outcome:
    """A holder that was stopped inside a write keeps everybody out: then once more."""
    for _ in range(TRIES - 1):
        if (outcome := run(schedule, (*PLANTED_PRODUCT, bug))).sight.overlaps:
            return outcome
    return run(schedule, (*PLANTED_PRODUCT, bug))
