"""No history of failovers, however late sentinels and clients are, has two holders at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.stores.redis import incarnation
from incumbent.stores.redis.incarnation import TOKEN_JUMP, IncarnationMarker
from incumbent.stores.redis.sentinel import Opinion
from tests import tiers
from tests.stores.redis.failovers import (
    HARSH,
    MAJORITY,
    RARE,
    TIMELY,
    Clocks,
    Rules,
    World,
    broken,
)

SEEDS, PARTS = 40, 5
MANY = 2000
"""One of these shows each rule that is left out."""
SECONDS = 300.0
WORLDS = {"harsh": HARSH, "timely": TIMELY, "rare": RARE}


def newest_of_any(answers: Sequence[Opinion], asked: int, where: str) -> Opinion:
    if len(answers) < MAJORITY:
        raise StoreUnavailable(where)
    return max(answers)


LEFT_OUT = {
    "the newest opinion counts before a majority has heard of it": Rules(verdict=newest_of_any),
    "an answer counts for ever": Rules(proves=inf),
    "nobody waits for requests that are on their way to the old master": Rules(old_master_for=0.0),
    "a master that is named again is the one that it was": Rules(promotions=False),
}


Floor = Callable[[int, Sequence[IncarnationMarker]], int]
JUMP = int(TOKEN_JUMP * 1e6)

WRONG_FLOORS: dict[str, tuple[Floor, Clocks]] = {
    "a jump is added to the floor before": (
        lambda now, before: max([now + JUMP + 1, *(mark.floor + JUMP for mark in before)]),
        TIMELY,
    ),
    "a promotion adds another jump": (
        lambda now, before: now + JUMP * (2 if before else 1) + 1,
        TIMELY,
    ),
    "where there is no marker the clock has to do": (
        lambda now, before: max([now + JUMP + 1 if before else now, *(it.floor for it in before)]),
        TIMELY,
    ),
    "the clock has to do": (
        lambda now, before: max([now, *(it.floor for it in before)]),
        RARE,
    ),
}


def first_broken(rules: Rules, seeds: Iterable[int], clocks: Clocks) -> tuple[int, str] | None:
    """The seed of the first history that is wrong, and what is."""
    for seed in seeds:
        beliefs = World(seed, rules, clocks).run(SECONDS).beliefs
        if wrong := broken(beliefs, tokens=clocks is not HARSH):
            return seed, wrong
    return None


@pytest.mark.left(tiers.SEEDS, "*-0")
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("world", WORLDS)
def test_in_no_history_two_hold_it_at_once_or_a_token_shrinks(world: str, part: int) -> None:
    seeds = range(part * SEEDS, (part + 1) * SEEDS)
    assert first_broken(Rules(), seeds, WORLDS[world]) is None


@pytest.mark.parametrize("world", WORLDS)
def test_leases_are_granted_all_the_same(world: str) -> None:
    granted = [len(World(seed, clocks=WORLDS[world]).run(SECONDS).beliefs) for seed in range(20)]
    assert sum(granted) > 200, granted


@pytest.mark.parametrize("wrong", WRONG_FLOORS)
def test_another_floor_lets_a_token_shrink(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    floor, clocks = WRONG_FLOORS[wrong]
    monkeypatch.setattr(incarnation, "_floor", floor)
    assert first_broken(Rules(), range(MANY), clocks) is not None


@pytest.mark.left(tiers.NET, "an answer*")
@pytest.mark.parametrize("rule", LEFT_OUT)
def test_a_rule_that_is_left_out_shows(rule: str) -> None:
    assert first_broken(LEFT_OUT[rule], range(MANY), HARSH) is not None
