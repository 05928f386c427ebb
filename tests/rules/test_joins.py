"""Waiters that join a line without a swap: they stand in it as if they had been written there."""

from __future__ import annotations

import pytest

from incumbent import clock
from incumbent.model import Ask, Granted, Key, Queue, Queued
from incumbent.rules.record import (
    NOTHING,
    GivenUp,
    Grant,
    LeaseRecord,
    Line,
    Waiter,
)
from incumbent.stores.deciding import Deciding, present
from incumbent.stores.registers import Incarnation, Join, Joined, Load, Quick, Seen, Swaps

SECOND = 1_000_000
HELD = NOTHING._replace(grants=(Grant("holder", "h", 1, 9, 0, 20 * SECOND),), token=1)


def seen(record: LeaseRecord, *joined: Joined, now: int = 5 * SECOND) -> Seen:
    return Seen(record, 1, now, now, Incarnation("i"), joined=joined)


def joined(claim: str, at: int) -> Joined:
    return Joined(claim, Waiter(claim, claim, 3 * SECOND, True), 2 * SECOND, at)


def test_those_who_joined_stand_in_line_in_the_order_in_which_they_came() -> None:
    line = present(seen(HELD, joined("a", 1 * SECOND), joined("b", 2 * SECOND))).line
    assert [waiter.claim for waiter in line.waiters] == ["a", "b"]


def test_the_first_to_join_has_its_turn_from_the_instant_at_which_it_joined() -> None:
    assert present(seen(HELD, joined("a", 1 * SECOND))).line.lapses_at == 6 * SECOND


def test_one_that_joins_behind_others_changes_nobodys_turn() -> None:
    line = Line((Waiter("a", "a", 1, True),), 9 * SECOND)
    assert (
        present(seen(HELD._replace(line=line), joined("b", 2 * SECOND))).line.lapses_at
        == 9 * SECOND
    )


def test_a_claim_that_was_given_up_meanwhile_stands_in_no_line() -> None:
    gone = HELD._replace(given_up=(GivenUp("a", 60 * SECOND),))
    assert present(seen(gone, joined("a", 1 * SECOND))).line == Line()


def test_a_claim_that_was_given_up_long_ago_stands_in_line() -> None:
    gone = HELD._replace(given_up=(GivenUp("a", 60 * SECOND),))
    line = present(seen(gone, joined("a", 61 * SECOND))).line
    assert [waiter.claim for waiter in line.waiters] == ["a"]


def test_a_claim_that_was_granted_meanwhile_stands_in_no_line() -> None:
    assert present(seen(HELD, joined("holder", 1 * SECOND))).line == Line()


def test_a_claim_that_joined_twice_stands_in_line_once() -> None:
    line = present(seen(HELD, joined("a", 1 * SECOND), joined("a", 2 * SECOND))).line
    assert [waiter.claim for waiter in line.waiters] == ["a"]


def test_a_refused_waiter_joins_by_one_request_and_is_told_its_place() -> None:
    plan = Deciding("x:", 0.0, Quick(join=True)).take(
        Key("n", "j"), "b", Ask(10.0, "b", queue=Queue(3.0, fair=True))
    )
    program = plan.start(None, clock.now() + 5)
    assert isinstance(next(program), Load)
    request = program.send([seen(HELD, joined("a", 1 * SECOND))])
    assert isinstance(request, Join)
    assert request.waiter.claim == "b"
    with pytest.raises(StopIteration) as done:
        program.send(seen(HELD, joined("a", 1 * SECOND), joined("b", 5 * SECOND)))
    assert isinstance(done.value.value, Queued)
    assert done.value.value.place == 1


def test_one_that_stands_in_line_already_is_granted_the_free_name() -> None:
    plan = Deciding("x:", 0.0, Quick(join=True)).take(
        Key("n", "j"), "a", Ask(10.0, "a", queue=Queue(3.0, fair=True))
    )
    program = plan.start(None, clock.now() + 5)
    assert isinstance(next(program), Load)
    request = program.send([seen(NOTHING, joined("a", 4 * SECOND))])
    assert isinstance(request, Swaps)
    assert request.swaps[0].record.line == Line()
    with pytest.raises(StopIteration) as done:
        program.send([None])
    assert isinstance(done.value.value, Granted)
