"""Instants, tokens and what may be forgotten: rules that histories of one store do not reach."""

from __future__ import annotations

import pytest

from incumbent.model import Ask, Field, Granted, Key, Parting, Refused, Renewal, Slot
from incumbent.rules import keeping, taking
from incumbent.rules import line as lines
from incumbent.rules.record import (
    EVERYBODY,
    NOTHING,
    Closing,
    LeaseRecord,
    Line,
    Moment,
    Waiter,
    after,
    dated,
    holding_of,
    later_of,
    may_forget,
    moved,
    us_after_write,
    without_holders,
)

SECOND = 1_000_000
DAY = 86_400 * SECOND


def at(now: int, wall: int = 0, floor: int = 0) -> Moment:
    return Moment(now, wall, floor, "epoch")


def taken(record: LeaseRecord = NOTHING, now: int = 0, **more: int) -> tuple[LeaseRecord, Granted]:
    done = taking.take(record, "c", Ask(10.0, "h"), at(now, **more))
    assert isinstance(done.outcome, Granted)
    assert done.record is not None
    return done.record, done.outcome


def test_a_ttl_begins_with_the_write_and_not_with_the_decision() -> None:
    record, _ = taken(now=5 * SECOND)
    written = dated(record, 7 * SECOND)
    assert holding_of(written, "c", 17 * SECOND - 1)
    assert not holding_of(written, "c", 17 * SECOND)


def test_a_renewal_counts_from_its_write_whatever_was_left() -> None:
    record, grant = taken()
    written = dated(record, 0)
    asked = Renewal(Key("n", "j"), "c", grant.token, 10.0, "epoch")
    done = keeping.renew(written, asked, at(1 * SECOND))
    assert done.record is not None
    # The holder counts 10 s from the instant of sending, which may be that of the write.
    assert dated(done.record, 3 * SECOND).grants[0].expires == 13 * SECOND


def test_what_began_before_stays_where_it_was() -> None:
    first = dated(taking.take(NOTHING, "a", Ask(10.0, "h", 2), at(0)).record or NOTHING, 0)
    second = taking.take(first, "b", Ask(10.0, "h", 2), at(1 * SECOND)).record
    assert second is not None
    ends = [grant.expires for grant in dated(second, 4 * SECOND).grants]
    assert ends == [10 * SECOND, 14 * SECOND]


@pytest.mark.parametrize(
    ("last", "wall", "floor", "token"),
    [(0, 0, 0, 1), (7, 0, 0, 8), (7, 100, 0, 100), (7, 100, 500, 500), (900, 100, 500, 901)],
)
def test_a_token_is_above_the_last_one_the_clock_and_the_floor(
    last: int, wall: int, floor: int, token: int
) -> None:
    record = NOTHING._replace(token=last)
    assert taken(record, wall=wall, floor=floor)[1].token == token


def test_a_name_is_kept_as_long_as_anything_of_it_matters() -> None:
    record = dated(taken()[0], 0)
    assert not may_forget(record, 9 * SECOND)
    assert not may_forget(record, DAY - 1)
    assert may_forget(record, DAY)
    assert not may_forget(record._replace(pause=Field(b"", 1)), 2 * DAY)
    assert not may_forget(record._replace(resign=Field(b"", 1)), 2 * DAY)


def test_a_name_outlives_the_slot_that_was_used() -> None:
    ask = Ask(10.0, "h", slot=Slot("s", 3 * 86_400.0))
    record = dated(taking.take(NOTHING, "c", ask, at(0)).record or NOTHING, 0)
    assert not may_forget(record, 3 * DAY - 1)
    assert may_forget(record, 3 * DAY)


def test_a_claim_that_was_given_up_is_remembered_by_a_name_that_nobody_knew() -> None:
    done = keeping.give(NOTHING, "c", None, at(0))
    assert done.record is not None
    assert not may_forget(dated(done.record, 0), 60 * SECOND - 1)


def test_the_later_of_two_instants_is_kept() -> None:
    assert later_of(5, 3, 2) == 5
    assert us_after_write(later_of(4, 3, 2)) == 3
    assert us_after_write(later_of(after(5), 3, 2)) == 5
    assert us_after_write(later_of(after(2), 3, 2)) == 3


def test_no_instant_is_taken_for_one_that_begins_with_the_write() -> None:
    # A fence far in the future of any clock, and of tokens that a test makes up.
    assert us_after_write(1 << 60) is None
    assert us_after_write(after(0)) == 0


def test_after_a_reboot_only_closings_and_slots_go_on() -> None:
    record = dated(taken()[0], 0)
    given = keeping.give(
        record, "c", record.token, at(1 * SECOND), Parting(closed_for=100.0)
    ).record
    assert given is not None
    closed = dated(given, 1 * SECOND)
    rebooted = moved(without_holders(closed), -90 * SECOND)
    assert rebooted.grants == ()
    assert rebooted.closing is not None
    assert rebooted.closing.until == 11 * SECOND


def test_the_holder_for_which_a_name_is_reserved_precedes_the_line() -> None:
    line = Line((Waiter("first", "h1", 3 * SECOND, fair=True),), lapses_at=20 * SECOND)
    record = NOTHING._replace(closing=Closing("old", 7, 15 * SECOND, "next"), line=line)
    outcome = taking.take(record, "a", Ask(5.0, "next"), at(10 * SECOND), None).outcome
    assert isinstance(outcome, Granted)
    outcome = taking.take(record, "b", Ask(5.0, "other"), at(10 * SECOND), None).outcome
    assert isinstance(outcome, Refused)


def test_a_first_waiter_that_is_not_fair_is_overtaken_four_times_in_a_row() -> None:
    line, grants = Line((Waiter("first", "h1", 3 * SECOND, fair=False),), lapses_at=20 * SECOND), 0
    while lines.preceding(line, "other", 10 * SECOND) is None and grants < 10:
        line, grants = lines.served(line, "other", 5 * SECOND, 10 * SECOND), grants + 1
    assert grants == 4


def test_the_next_waiter_is_woken_by_a_grant_that_it_may_share() -> None:
    done = taking.take(NOTHING, "a", Ask(5.0, "h", permits=2), at(0), None)
    assert isinstance(done.outcome, Granted)
    assert done.wake == EVERYBODY
