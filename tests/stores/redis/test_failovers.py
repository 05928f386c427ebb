"""No history of failovers, however late sentinels and clients are, has two holders at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.stores.redis.sentinel import Opinion
from tests.stores.redis.failovers import MAJORITY, Rules, World, broken

SEEDS = 200
MANY = 2000
"""One of these shows each rule that is left out."""
SECONDS = 300.0


def newest_of_any(answers: Sequence[Opinion], asked: int, where: str) -> Opinion:
    if len(answers) < MAJORITY:
        raise StoreUnavailable(where)
    return max(answers)


LEFT_OUT = {
    "the newest opinion counts before a majority has heard of it": Rules(verdict=newest_of_any),
    "an answer counts for ever": Rules(proves=inf),
    "nobody waits for requests that are on their way to the old master": Rules(settle=0.0),
    "a master that is named again is the one that it was": Rules(terms=False),
}


def first_broken(rules: Rules, seeds: int) -> tuple[int, str] | None:
    """The seed of the first history that is wrong, and what is."""
    for seed in range(seeds):
        if wrong := broken(World(seed, rules).run(SECONDS).beliefs):
            return seed, wrong
    return None


@pytest.mark.slow
def test_in_no_history_two_hold_it_at_once_or_a_token_shrinks() -> None:
    assert first_broken(Rules(), SEEDS) is None


def test_leases_are_granted_all_the_same() -> None:
    granted = [len(World(seed).run(SECONDS).beliefs) for seed in range(20)]
    assert sum(granted) > 200, granted


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_a_rule_that_is_left_out_shows(rule: str) -> None:
    assert first_broken(LEFT_OUT[rule], MANY) is not None
