"""Faults in combination on real processes and a real Redis with a replica break no rule.

Each run has other seeds; a failure prints its plan and the command that repeats it.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import tiers
from tests.combined.__main__ import report
from tests.combined.worlds import WORLDS

pytestmark = [pytest.mark.left(tiers.LONG), pytest.mark.crowd(tiers.MANY)]

FLEETS = 3


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(240)
def test_no_plan_breaks_a_rule_on_real_servers() -> None:
    world, start = WORLDS["redis"], random.SystemRandom().randrange(10**9)
    plans = [world.draw(seed) for seed in range(start, start + FLEETS)]
    with ThreadPoolExecutor(FLEETS) as pool:
        found = list(pool.map(world.play, plans))
    wrong = [
        report(world, plan, broken) for plan, broken in zip(plans, found, strict=True) if broken
    ]
    assert not wrong, "\n".join(wrong)
