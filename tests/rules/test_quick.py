"""The quicker requests that a store may answer: what they settle needs no swap, the rest does."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from incumbent import clock
from incumbent.model import (
    Ask,
    Gone,
    Granted,
    Key,
    Parting,
    Refused,
    Released,
    Renewal,
    Renewed,
    Slot,
)
from incumbent.rules.record import NOTHING, Grant
from incumbent.stores.deciding import Deciding
from incumbent.stores.plan import Plan
from incumbent.stores.registers import (
    Incarnation,
    Load,
    Quick,
    Seen,
    Swaps,
    TryGive,
    TryRenew,
    TryTake,
)

SECOND = 1_000_000
KEY = Key("n", "job")
ASK = Ask(10.0, "h")
QUICK = Deciding("x:", 0.0, Quick(take=True, renew=True, give=True))
HELD = NOTHING._replace(grants=(Grant("a", "h", 7, 1, 0, 20 * SECOND),), token=7)
SEEN = Seen(HELD, 1, 5 * SECOND, 5 * SECOND, Incarnation("i"))


def begin(plan: Plan[Any, Any]) -> Generator[Any, Any, Any]:
    return plan.start(None, clock.now() + 5)


def outcome(program: Generator[Any, Any, Any], reply: Any) -> Any:
    with pytest.raises(StopIteration) as done:
        program.send(reply)
    return done.value.value


def test_a_quick_grant_is_the_outcome() -> None:
    program, granted = begin(QUICK.take(KEY, "a", ASK)), Granted("a", 7, 10.0, "i")
    assert next(program) == TryTake(KEY, "a", ASK)
    assert outcome(program, granted) == granted


def test_what_a_quick_take_has_seen_is_judged_by_the_rules_without_another_look() -> None:
    program = begin(QUICK.take(KEY, "b", ASK))
    next(program)
    assert isinstance(outcome(program, SEEN), Refused)


@pytest.mark.parametrize(
    "ask",
    [Ask(10.0, "h", permits=2), Ask(10.0, "h", slot=Slot("s", 60.0)), Ask(10.0, "h", candidacy=5)],
)
def test_a_take_that_asks_for_more_than_the_name_is_not_tried_quickly(ask: Ask) -> None:
    assert isinstance(next(begin(QUICK.take(KEY, "a", ask))), Load)


def test_renewals_that_were_not_quick_are_decided_and_keep_their_places() -> None:
    renewals = [Renewal(KEY, "a", 7, 30.0, "i"), Renewal(Key("n", "other"), "b", 9, 30.0, "i")]
    program = begin(QUICK.renew(renewals))
    assert next(program) == TryRenew(renewals)
    load = program.send([None, Renewed()])
    assert [wanted.key for wanted in load.wanted] == [KEY]
    assert isinstance(program.send([SEEN]), Swaps)
    assert outcome(program, [None]) == [Renewed(), Renewed()]


def test_a_quick_give_is_the_outcome_and_else_the_rules_decide() -> None:
    for answer in (Released(), Gone()):
        program = begin(QUICK.give(KEY, "a", 7))
        assert next(program) == TryGive(KEY, "a", 7)
        assert outcome(program, answer) == answer
    program = begin(QUICK.give(KEY, "a", 7))
    next(program)
    assert isinstance(program.send(SEEN), Swaps)
    assert outcome(program, [None]) == Released()


@pytest.mark.parametrize(
    "more", [Parting(closed_for=5.0), Parting(reserve_for="x"), Parting(slot="s")]
)
def test_a_give_that_does_more_than_free_the_name_is_not_tried_quickly(
    more: Parting,
) -> None:
    assert isinstance(next(begin(QUICK.give(KEY, "a", 7, more))), Load)


def test_a_claim_that_is_given_up_is_not_given_quickly() -> None:
    assert isinstance(next(begin(QUICK.give(KEY, "a", None))), Load)
