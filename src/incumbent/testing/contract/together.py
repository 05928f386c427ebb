"""Cases: several leases at once, as a MultiLock takes and gives them (stores.base.Together).

A store that has no requests for several is sent one for each, as a MultiLock does.
"""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incumbent.model import Gone, Granted, Refused, Released
from incumbent.stores.base import Give, Take
from incumbent.testing.contract.bench import Bench

_NAMES = ("a", "b", "c")
_TAKERS = 6


class TogetherCases:
    """Each take or give is as if it were sent alone, with an outcome of its own, in its place."""

    def test_several_free_names_are_granted_each_with_its_claim_and_token(
        self, bench: Bench
    ) -> None:
        # One of them has a past: its token must grow, though it is taken beside names that never
        # were.
        before = bench.granted("b")
        bench.give(before, "b")
        grants = _all_granted(bench, _NAMES)
        assert grants[1].token > before.token
        for name, grant in zip(_NAMES, grants, strict=True):
            (holding,) = bench.read(name).holdings
            assert holding.token == grant.token
            assert bench.refused(name).reason == "held"

    def test_a_name_of_several_that_another_holds_is_refused_and_said_in_its_place(
        self, bench: Bench
    ) -> None:
        theirs = bench.granted("b", holder="alice")
        first, held, _ = _take_all(bench, _NAMES)
        assert isinstance(first, Granted)
        assert isinstance(held, Refused)
        assert [it.token for it in held.holders] == [theirs.token]
        assert bench.give(theirs, "b") == Released()

    def test_several_leases_are_given_back_and_a_strangers_is_not(self, bench: Bench) -> None:
        grants = _all_granted(bench, _NAMES)
        gives = [
            Give(bench.key(name), grant.claim, grant.token)
            for name, grant in zip(_NAMES, grants, strict=True)
        ]
        # The stranger in the middle: a store that stops at its answer would leave the third as it
        # was.
        strange = [gives[0], gives[1]._replace(claim=bench.draw()), gives[2]]
        assert _give_all(bench, strange) == [Released(), Gone(), Released()]
        # Once more with the right claims: only what the stranger could not give is still there to
        # give.
        assert _give_all(bench, gives) == [Gone(), Released(), Gone()]
        _all_granted(bench, _NAMES)

    def test_of_many_who_take_several_names_at_once_each_name_has_one(self, bench: Bench) -> None:
        def take(mine: Bench, index: int) -> dict[str, bool]:
            # Turned by one for each taker: if all began with the same name, its winner could win
            # the rest unopposed.
            names = [*_NAMES[index % 3 :], *_NAMES[: index % 3]]
            outcomes = _take_all(mine, names)
            return {name: isinstance(it, Granted) for name, it in zip(names, outcomes, strict=True)}

        found = bench.in_threads(_TAKERS, take)
        assert {name: sum(one[name] for one in found) for name in _NAMES} == dict.fromkeys(
            _NAMES, 1
        )


def _all_granted(bench: Bench, names: Sequence[str]) -> list[Granted]:
    outcomes = _take_all(bench, names)
    grants = [it for it in outcomes if isinstance(it, Granted)]
    assert len(grants) == len(names), outcomes
    return grants


def _take_all(bench: Bench, names: Sequence[str]) -> list[Any]:
    takes = [Take(*bench.taking(name)[1:]) for name in names]
    outcomes = _ask(bench, "take", takes)
    for take, outcome in zip(takes, outcomes, strict=True):
        # Outcomes in another order would give one name the claim and token of another.
        assert not isinstance(outcome, Granted) or outcome.claim == take.claim
    return outcomes


def _give_all(bench: Bench, gives: Sequence[Give]) -> list[Any]:
    return _ask(bench, "give", gives)


def _ask(bench: Bench, operation: str, all_of_them: Sequence[Take | Give]) -> list[Any]:
    if bench.side.together:
        outcomes = getattr(bench.store, f"{operation}_all")(all_of_them, bench.until())
        return list(outcomes)
    return [getattr(bench.store, operation)(*it, bench.until()) for it in all_of_them]
