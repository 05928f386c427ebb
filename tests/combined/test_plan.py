"""Plans: drawn from a seed, of several dimensions, through text and back, and smaller."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from tests.combined.plan import DIMENSIONS, Fault, Plan, draw, from_text, shrink, smaller, to_text
from tests.combined.worlds import WORLDS

ALL = frozenset(kind for kinds in DIMENSIONS.values() for kind in kinds)


def dimensions_of(plan: Plan) -> frozenset[str]:
    return frozenset(name for name, kinds in DIMENSIONS.items() if plan.kinds & set(kinds))


def test_a_seed_is_one_plan() -> None:
    assert draw(7, ALL) == draw(7, ALL) != draw(8, ALL)


def test_a_plan_has_faults_of_two_or_three_dimensions() -> None:
    found = Counter(len(dimensions_of(draw(seed, ALL))) for seed in range(300))
    assert set(found) == {2, 3}


def test_each_pair_of_dimensions_is_drawn() -> None:
    drawn = [dimensions_of(draw(seed, ALL)) for seed in range(300)]
    assert all(any(set(pair) <= names for names in drawn) for pair in combinations(DIMENSIONS, 2))


def test_a_world_is_given_only_what_it_plays() -> None:
    for world in WORLDS.values():
        kinds = {kind for seed in range(300) for kind in world.draw(seed).kinds}
        assert kinds == world.plays


def test_each_kind_is_played_somewhere() -> None:
    played = frozenset(kind for world in WORLDS.values() for kind in world.plays)
    assert ALL - played == {"power", "promotion", "forked"}


def test_a_plan_goes_through_text() -> None:
    plan = draw(3, ALL)
    assert from_text(to_text(plan)) == plan


def test_smaller_plans_have_one_thing_less() -> None:
    plan = Plan(1, (Fault("wipe", 1.0, 2.0, 0, 0.5), Fault("slow", 2.0, 0.1, 1, 0.1)))
    less = list(smaller(plan))
    assert [len(one.faults) for one in less] == [1, 1, 2, 2]
    assert less[2].faults[0].lasts == 1.0
    assert less[3].faults[0].size == 0.25


def test_what_fails_is_made_as_small_as_it_goes() -> None:
    plan = draw(11, ALL)
    needed = plan.faults[0].kind
    small = shrink(plan, lambda less: needed in less.kinds)
    assert [fault.kind for fault in small.faults] == [needed]
    assert small.faults[0].lasts <= 0.1
