"""The checker: what may be passes, and each rule bites on a history written by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.history.checker import RULES, check
from tests.history.events import (
    Due,
    Entry,
    Event,
    GivenUp,
    Grant,
    History,
    Left,
    Removed,
    Run,
    Stands,
    Witness,
    from_line,
    to_line,
)

FIRST = Grant("a", "job", "a-1", 10, sent=0.0, heard=0.1, until=1.0)
SECOND = Grant("b", "job", "b-1", 11, sent=0.5, heard=1.2, until=2.0)
WORK = Witness("a", "job", 10, 0.1, 0.9)
NIGHT = Run("a", "job", "night", "a-1", begin=0.1, keep=10.0)
GOOD: tuple[Event, ...] = (
    FIRST,
    SECOND,
    WORK,
    Witness("b", "job", 11, 1.2, 1.9),
    Left("a", "job", "a-1", 1.0, "released"),
    Left("b", "job", "b-1", 2.0, "released"),
    NIGHT,
    Due("job", "night", 0.0, 5.0),
    Entry("job", "night", "ok", "a-1"),
    GivenUp("c", "job", "c-1", 3.0),
    Stands("job", "c-1", 2.0),
)


def broken(*events: Event, but: frozenset[str] = frozenset()) -> set[str]:
    return {one.rule for one in check(History(list(events)), but=but)}


def test_a_history_that_may_be_breaks_no_rule() -> None:
    assert broken(*GOOD) == set()


def test_two_that_believe_at_once_are_seen() -> None:
    assert broken(FIRST, replace(SECOND, heard=0.999)) == {"belief"}


def test_a_long_belief_is_seen_below_a_short_one() -> None:
    third = Grant("c", "job", "c-1", 12, sent=1.4, heard=1.5, until=1.8)
    assert broken(replace(FIRST, until=1.6), replace(SECOND, until=1.3), third) == {"belief"}


def test_beliefs_of_different_names_may_overlap() -> None:
    assert broken(FIRST, replace(SECOND, key="other", heard=0.2)) == set()


def test_a_grant_that_came_too_late_is_no_belief() -> None:
    assert broken(replace(FIRST, heard=1.5, until=1.5), SECOND) == set()


def test_as_many_believe_at_once_as_there_are_permits_and_no_more() -> None:
    one, two = (replace(of, heard=0.5, until=2.0, permits=2) for of in (FIRST, SECOND))
    third = Grant("c", "job", "c-1", 12, sent=0.4, heard=0.6, until=1.8, permits=2)
    assert broken(one, two) == set()
    assert broken(one, two, third) == {"belief"}
    assert broken(one, two, replace(third, sent=2.1, heard=2.2, until=3.0)) == set()
    readers = [replace(of, permits=0) for of in (one, two, third)]
    assert broken(*readers) == set()


def test_one_that_shares_may_begin_later_than_another_with_a_larger_token_has_ended() -> None:
    work = [Witness("b", "job", 11, 0.1, 0.2, 0), Witness("a", "job", 10, 0.3, 0.4, 0)]
    assert check(History(list(work))) == []
    for permits in (None, 3):
        (broken,) = check(History([work[0], replace(work[1], permits=permits)]))
        assert broken.rule == "tokens"


@pytest.mark.parametrize("permits", [None, 0, 3])
def test_who_asked_otherwise_believes_beside_nobody(permits: int | None) -> None:
    one = replace(FIRST, until=2.0, permits=2)
    other = replace(SECOND, heard=0.7, permits=permits)
    assert broken(one, other) == {"belief"}
    assert broken(one, replace(other, heard=2.1, until=3.0)) == set()


def test_those_who_share_work_at_once_and_leave_in_any_order() -> None:
    work = replace(WORK, permits=2)
    beside = Witness("b", "job", 11, 0.2, 1.9, permits=2)
    assert broken(work, beside) == set()
    assert broken(work, beside, replace(beside, who="c", token=12)) == {"witness"}
    one, two = (replace(of, until=2.0, permits=2) for of in (FIRST, SECOND))
    left = Left("a", "job", "a-1", 2.0, "released")
    assert broken(one, replace(two, heard=0.6), left) == set()


def test_two_that_work_at_once_are_seen_whatever_they_believe() -> None:
    assert broken(WORK, Witness("b", "job", 11, 0.8, 1.9)) == {"witness"}


@pytest.mark.parametrize("token", [9, 10])
def test_a_token_that_does_not_grow_is_seen(token: int) -> None:
    assert broken(FIRST, replace(SECOND, token=token)) == {"tokens"}


def test_a_token_that_was_answered_before_another_was_asked_for_is_smaller() -> None:
    """Though the second was never believed."""
    late = Grant("b", "job", "b-1", 9, sent=0.2, heard=5.0, until=5.0)
    assert broken(FIRST, late) == {"tokens"}
    assert broken(FIRST, replace(late, sent=0.05)) == set()


def test_work_with_an_older_token_is_seen() -> None:
    assert broken(WORK, Witness("b", "job", 9, 1.2, 1.9)) == {"tokens"}


def test_work_in_two_pieces_has_one_token() -> None:
    assert broken(WORK, Witness("a", "job", 10, 0.95, 1.0)) == set()


def test_released_after_the_record_was_removed_is_untrue() -> None:
    removed = Removed("job", "a-1", 0.5)
    assert broken(*GOOD, removed) == {"truth"}
    assert broken(FIRST, removed, Left("a", "job", "a-1", 1.0, "lost")) == set()
    assert broken(FIRST, removed, Left("a", "job", "a-1", 1.0, "unknown")) == set()


def test_released_after_another_had_it_is_untrue() -> None:
    left = Left("a", "job", "a-1", 1.0, "released")
    other = Grant("b", "job", "b-1", 11, sent=0.5, heard=0.6, until=0.7)
    assert broken(FIRST, left, other) == {"belief", "truth"}


def test_the_release_of_one_that_came_after_is_true() -> None:
    assert broken(FIRST, SECOND, Left("b", "job", "b-1", 2.0, "released")) == set()


def test_a_claim_that_was_given_up_is_in_no_record() -> None:
    given_up = GivenUp("a", "job", "a-9", 3.0)
    assert broken(given_up, Stands("job", "a-9", 3.5)) == {"ghost"}
    assert broken(given_up, Stands("job", "a-9", 3.5, "night")) == {"ghost"}
    assert broken(given_up, Stands("job", "a-1", 3.5)) == set()


def test_a_slot_is_used_once() -> None:
    again = replace(NIGHT, who="b", claim="b-1", begin=9.0)
    assert broken(NIGHT, again) == {"slot"}
    assert broken(NIGHT, replace(again, begin=11.0)) == set()
    assert broken(NIGHT, replace(again, slot="day")) == set()
    assert broken(replace(NIGHT, undone=True), again) == set()


def test_a_slot_without_an_entry_is_a_gap() -> None:
    due = Due("job", "night", 0.0, 5.0)
    assert broken(due) == {"ledger"}
    assert not check(History([due], ends=4.0))


def test_a_slot_has_one_entry() -> None:
    entry = Entry("job", "night", "ok", "a-1")
    assert broken(NIGHT, entry, entry) == {"ledger"}


@pytest.mark.parametrize(
    "entry",
    [Entry("job", "night", "missed"), Entry("job", "night", "ok", "b-1")],
    ids=["says that nothing ran", "names another run"],
)
def test_an_entry_that_is_not_of_the_run_is_seen(entry: Entry) -> None:
    assert broken(NIGHT, entry) == {"ledger"}


def test_an_entry_for_nothing_is_seen() -> None:
    assert broken(Entry("job", "night", "ok", "a-1")) == {"ledger"}
    assert broken(Entry("job", "night", "missed")) == set()


def test_an_entry_that_hides_a_loss_is_seen() -> None:
    lost = Left("a", "job", "a-1", 1.0, "lost")
    assert broken(NIGHT, Entry("job", "night", "ok", "a-1"), lost) == {"ledger"}
    assert broken(NIGHT, Entry("job", "night", "lost", "a-1"), lost) == set()


def test_rules_that_faults_excuse_are_left_out() -> None:
    assert broken(FIRST, replace(SECOND, heard=0.2, token=9), but=frozenset({"belief"})) == {
        "tokens"
    }


def test_each_rule_bites_somewhere_above() -> None:
    assert set(RULES) == {"belief", "witness", "tokens", "truth", "ghost", "slot", "ledger"}


@pytest.mark.parametrize("event", GOOD, ids=lambda event: type(event).__name__)
def test_events_go_through_a_line_of_text(event: Event) -> None:
    assert from_line(json.loads(json.dumps(to_line(event)))) == event
