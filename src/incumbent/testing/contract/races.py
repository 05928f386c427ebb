"""Cases: many who ask at the same instant, on names and fields with every kind of past.

A store that reads, decides and then writes grants twice if another one writes in between. On a name
that never was, its write may still be an insert that only one can make: most names have a past.
"""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeAlias

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import (
    ABSENT,
    ByClaim,
    ByVersion,
    Gone,
    Granted,
    Guard,
    PutOutcome,
    Refused,
    Released,
    Renewed,
    Slot,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.testing.contract.bench import LONG, Bench, needs

ROUNDS = 10
"""At least so many, on a store of any speed."""
RACE_FOR = 0.15
"""Seconds of CPU, and at most ten times as many by the clock, in which a fast store has more
rounds: few rounds hit a narrow gap."""
TAKERS = 8

# A name a round, all prepared together: a past that has to run out costs one ttl, not ten.
_NAMES = [f"n{turn}" for turn in range(ROUNDS)]
_TODAY = Slot("today", LONG)


def fresh(_bench: Bench) -> None:
    pass


def held_before(bench: Bench) -> None:
    for name in _NAMES:
        bench.give(bench.granted(name), name)


def expired(bench: Bench) -> None:
    for name in _NAMES:
        bench.granted(name, ttl=bench.ttl)
    bench.outlive(bench.ttl)


def closed_before(bench: Bench) -> None:
    for name in _NAMES:
        bench.give(bench.granted(name), name, closed_for=bench.ttl)
    bench.outlive(bench.ttl)


PASTS = [fresh, held_before, expired, closed_before]
Past: TypeAlias = Callable[[Bench], None]


def for_a_while(case: Callable[..., None]) -> Callable[..., None]:
    """Let a case run again and again for RACE_FOR, each time on names that never were.

    From the second time on Python changes threads so often that no code of this process is left
    alone for long. What waits for a network needs no such help, and is over by then.
    """

    @wraps(case)
    def again(self: object, bench: Bench, **given: object) -> None:
        burnt, over = time.process_time() + RACE_FOR, clock.now() + 10 * RACE_FOR
        case(self, bench, **given)
        with _restless():
            while time.process_time() < burnt and clock.now() < over:
                bench.namespace = f"contract-{secrets.token_hex(4)}"
                case(self, bench, **given)

    return again


@contextmanager
def _restless() -> Iterator[None]:
    before = sys.getswitchinterval()
    # The usual 5 ms are longer than most requests to memory, which would hardly cross.
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


with_every_past = pytest.mark.parametrize("past", PASTS, ids=lambda past: past.__name__)


class RaceCases:
    """Of those who ask at the same instant, as many are granted as there may be holders."""

    @with_every_past
    @for_a_while
    def test_of_many_takers_one_is_granted(self, bench: Bench, past: Past) -> None:
        past(bench)
        for outcomes in bench.contend(TAKERS, ROUNDS, lambda it, _, turn: it.take(_NAMES[turn])):
            _one_of(outcomes)

    @for_a_while
    def test_of_many_takers_through_one_client_one_is_granted(self, bench: Bench) -> None:
        held_before(bench)
        for name in _NAMES:
            _one_of(bench.at_once(*(bench.taking(name) for _ in range(TAKERS))))

    @for_a_while
    def test_nobody_is_granted_a_closed_name(self, bench: Bench) -> None:
        for name in _NAMES:
            bench.give(bench.granted(name), name, closed_for=bench.long)
        for outcomes in bench.contend(TAKERS, ROUNDS, lambda it, _, turn: it.take(_NAMES[turn])):
            assert all(isinstance(it, Refused) for it in outcomes)

    @for_a_while
    def test_a_claim_that_is_taken_many_times_at_once_is_one_grant(self, bench: Bench) -> None:
        held_before(bench)
        # As from a client that repeats its take while the first request is still on its way.
        claim = bench.draw()
        for outcomes in bench.contend(
            TAKERS // 2, ROUNDS, lambda it, _, turn: it.granted(_NAMES[turn], claim)
        ):
            assert len({grant.token for grant in outcomes}) == 1, outcomes

    @for_a_while
    def test_what_is_given_back_meanwhile_is_granted_once_and_stays_granted(
        self, bench: Bench
    ) -> None:
        """Late gives and renewals of the holder before must neither free nor revive anything."""
        old = [bench.granted(name, holder="old") for name in _NAMES]

        def work(mine: Bench, index: int, turn: int) -> Granted | None:
            name, before = _NAMES[turn], old[turn]
            if index >= 4:
                # Several tries: the first ones may come before the late gives have done any harm.
                outcomes = [mine.take(name) for _ in range(6)]
                return next((it for it in outcomes if isinstance(it, Granted)), None)
            # Of two gives at once, neither may know which one did it.
            with suppress(OutcomeUnknown):
                mine.renew(before, name) if index % 2 else mine.give(before, name)
            return None

        found = bench.contend(TAKERS, ROUNDS, work)
        for name, before, outcomes in zip(_NAMES, old, found, strict=True):
            grants = [grant for grant in outcomes if grant is not None]
            assert len(grants) <= 1, grants
            assert bench.renew(before, name) == Gone()
            for grant in grants:
                assert bench.renew(grant, name) == Renewed()

    @needs("shared")
    @with_every_past
    @for_a_while
    def test_of_many_takers_as_many_are_granted_as_there_are_permits(
        self, bench: Bench, past: Past
    ) -> None:
        past(bench)
        for outcomes in bench.contend(
            TAKERS, ROUNDS, lambda it, _, turn: it.take(_NAMES[turn], permits=3)
        ):
            _so_many_of(3, outcomes)

    @needs("slots")
    @with_every_past
    @for_a_while
    def test_of_many_takers_one_has_the_slot(self, bench: Bench, past: Past) -> None:
        past(bench)

        def work(mine: Bench, _: int, turn: int) -> bool:
            outcome = mine.take(_NAMES[turn], slot=_TODAY)
            if isinstance(outcome, Granted):
                assert mine.give(outcome, _NAMES[turn]) == Released()
            # A second try comes when the first of the others have given the lease back.
            return isinstance(outcome, Granted) or isinstance(
                mine.take(_NAMES[turn], slot=_TODAY), Granted
            )

        assert [sum(turn) for turn in bench.contend(TAKERS, ROUNDS, work)] == [1] * ROUNDS

    @needs("fields")
    @pytest.mark.parametrize("past", ["fresh", "removed", "written"])
    @for_a_while
    def test_of_many_writers_with_the_same_guard_one_writes(self, bench: Bench, past: str) -> None:
        guards: list[Guard] = [ABSENT] * ROUNDS
        if past != "fresh":
            written = [bench.put("state", b"old", name=name) for name in _NAMES]
            guards = [ByVersion(it.version) for it in written if isinstance(it, Stored)]
        if past == "removed":
            for name, guard in zip(_NAMES, guards, strict=True):
                bench.put("state", None, guard, name)
            guards = [ABSENT] * ROUNDS

        def work(mine: Bench, index: int, turn: int) -> tuple[object, bytes]:
            value = b"%d" % index
            return mine.put("state", value, guards[turn], _NAMES[turn]), value

        for name, outcomes in zip(_NAMES, bench.contend(TAKERS, ROUNDS, work), strict=True):
            (winner,) = (value for outcome, value in outcomes if isinstance(outcome, Stored))
            # All others know that they lost: one in doubt could be a second writer.
            assert [outcome for outcome, _ in outcomes].count(Stale()) == TAKERS - 1
            assert bench.read(name).fields["state"].value == winner

    @needs("fields")
    @for_a_while
    def test_who_holds_it_no_more_writes_nothing_over_the_next_holder(self, bench: Bench) -> None:
        old = [bench.granted(name) for name in _NAMES]

        def work(mine: Bench, index: int, turn: int) -> None:
            name, before = _NAMES[turn], old[turn]
            if index > 0:
                for _ in range(2):
                    with suppress(StoreError):  # of so many at once some come to nothing
                        mine.put("state", b"old", ByClaim(before.claim, before.token), name)
                return
            with suppress(OutcomeUnknown):  # it may not be connected to each of several servers yet
                mine.give(before, name)
            new = mine.granted(name)
            guard = ByClaim(new.claim, new.token)
            written = _at_last(lambda: mine.put("state", b"new", guard, name))
            assert isinstance(written, Stored)

        bench.contend(TAKERS // 2, ROUNDS, work)
        assert [bench.read(name).fields["state"].value for name in _NAMES] == [b"new"] * ROUNDS


def _at_last(ask: Callable[[], PutOutcome]) -> PutOutcome:
    """Ask again for what came to nothing in time: a busy machine has many rivals at once."""
    for _ in range(3):
        with suppress(StoreError):
            return ask()
    return ask()


def _one_of(outcomes: Sequence[TakeOutcome]) -> None:
    _so_many_of(1, outcomes)


def _so_many_of(count: int, outcomes: Sequence[Any]) -> None:
    granted = [it for it in outcomes if isinstance(it, Granted)]
    refused = [it for it in outcomes if isinstance(it, Refused)]
    assert (len(granted), len(refused)) == (count, len(outcomes) - count), outcomes
    # Two holders with one token would pass for one wherever tokens are checked.
    assert len({it.token for it in granted}) == count
