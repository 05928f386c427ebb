"""Random faults on real fleets never give two workers at once; the judge would see it.

Nor three who share two permits, nor a writer beside a reader.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pytest

from tests import tiers
from tests.chaos.actors import PLANTED_PRODUCT
from tests.chaos.planted import PLANTED
from tests.chaos.runner import Outcome, run
from tests.chaos.schedule import (
    ISOLATIONS,
    SHARES,
    Fault,
    Schedule,
    draw,
    draw_shared,
    may_overlap,
)
from tests.support.needs import needs

BATCHES = ((1, 1), *[(9, 3)] * 11)
"""Schedules at a time, of one name for one and for several; `make test` runs the first batch."""
TRIES = 4
AT_A_TIME = 6
"""Fleets of three on servers of their own: more would keep one another from beginning."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    needs(
        os.geteuid() == 0 and shutil.which("unshare") is not None,
        "root and unshare(1): PID namespaces, and instances that are PID 1",
    ),
    pytest.mark.crowd(tiers.MANY),
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


# Whoever is killed or stopped has a permit, or reads or writes; all others want in.
SHARED_WITNESSES = [
    *(
        ("one_permit_too_many", Schedule(0, store, "pidns", shares=shares))
        for shares, stores in (("permits", SHARES["permits"]), ("seats", ("sqlite",)))
        for store in stores
    ),
    *(
        ("a_writer_beside_others", Schedule(0, store, "pidns", ("--for", "0.5"), shares="readers"))
        for store in SHARES["readers"]
    ),
    (
        "no_deadline_in_the_guard",
        Schedule(0, "sqlite", "pidns", faults=(A_STOP,), shares="permits"),
    ),
]


@pytest.mark.left(tiers.LONG)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", range(len(BATCHES)))
def test_no_random_schedule_has_one_worker_too_many(part: int) -> None:
    alone, sharing = BATCHES[part]
    outcomes = in_parallel([*judged(draw, alone), *judged(draw_shared, sharing)])
    wrong = [outcome.report for outcome in outcomes if outcome.sight.wrong]
    assert not wrong, "\n".join(wrong)


@pytest.mark.left(tiers.NET)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("shared", [False, True], ids=["one", "several"])
def test_the_judge_sees_every_planted_bug(shared: bool) -> None:
    # That of the clock is for test_suspend.py.
    bugs = {bug for bug, _ in (*WITNESSES, *SHARED_WITNESSES)}
    assert bugs == set(PLANTED) - {"a_clock_that_misses_suspend"}
    witnesses = SHARED_WITNESSES if shared else WITNESSES
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = list(pool.map(lambda known: planted(*known), witnesses))
    missed = [
        bug for (bug, _), seen in zip(witnesses, outcomes, strict=True) if not seen.sight.overlaps
    ]
    assert not missed, "\n".join(outcome.report for outcome in outcomes)


@pytest.mark.left(tiers.NET)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("shared", [False, True], ids=["one", "several"])
def test_the_same_schedules_without_a_bug_have_no_overlap(shared: bool) -> None:
    witnesses = SHARED_WITNESSES if shared else WITNESSES
    outcomes = in_parallel([schedule for _, schedule in witnesses])
    assert not [outcome.report for outcome in outcomes if outcome.sight.wrong]
    # Else nobody was there who could have overlapped.
    assert any(len(outcome.sight.terms) > 1 + shared for outcome in outcomes)


def judged(drawn: Callable[[int], Schedule], many: int) -> Iterator[Schedule]:
    """So many of those that nothing excuses; other ones in each run."""
    start = random.SystemRandom().randrange(10**9)
    schedules = (drawn(seed) for seed in count(start))
    return islice((one for one in schedules if not may_overlap(one, one.isolation)), many)


def in_parallel(schedules: list[Schedule]) -> list[Outcome]:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(run, schedules))


def planted(bug: str, schedule: Schedule) -> Outcome:
    """A holder that was stopped inside a write keeps everybody out: then once more."""
    for _ in range(TRIES - 1):
        if (outcome := run(schedule, (*PLANTED_PRODUCT, bug))).sight.overlaps:
            return outcome
    return run(schedule, (*PLANTED_PRODUCT, bug))
