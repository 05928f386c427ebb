"""Faults in combination break no rule; what once did breaks it on the code of then.

Each run has other seeds; a failure prints its plan and the command that repeats it.
"""

from __future__ import annotations

import random

import pytest

from tests import tiers
from tests.combined.__main__ import report
from tests.combined.against import finds, has_history, with_our_checker
from tests.combined.regressions import REGRESSIONS, Regression
from tests.combined.worlds import WORLDS
from tests.support.needs import needs

BEFORE = "0195505"
"""The commit before these defects were mended."""
SIMULATED = [known for known in REGRESSIONS if not WORLDS[known.world].real]


@pytest.mark.left(tiers.SEEDS, "leases-100", "quorum-15")
@pytest.mark.parametrize(
    ("name", "seeds"), [("leases", 100), ("leases", 300), ("quorum", 15), ("quorum", 45)]
)
def test_no_plan_breaks_a_rule(name: str, seeds: int) -> None:
    world, start = WORLDS[name], random.SystemRandom().randrange(10**9)
    for seed in range(start, start + seeds):
        plan = world.draw(seed)
        broken = world.play(plan)
        assert not broken, report(world, plan, broken)


@pytest.mark.parametrize("known", SIMULATED, ids=lambda known: known.name)
def test_a_plan_that_once_broke_a_rule_keeps_it(known: Regression) -> None:
    world = WORLDS[known.world]
    broken = world.play(known.plan)
    assert not broken, report(world, known.plan, broken)


def test_a_plan_is_one_history() -> None:
    """Else a seed would be worth nothing."""
    for known in SIMULATED:
        world = WORLDS[known.world]
        assert world.play(known.plan) == world.play(known.plan)


@pytest.mark.left(tiers.NET)
@needs(has_history(BEFORE), f"a full clone, with commit {BEFORE}")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_plans_find_what_was_wrong_in_the_code_of_then() -> None:
    with with_our_checker(BEFORE) as tree:
        missed = [known.name for known in SIMULATED if not finds(tree, known)]
    assert not missed
