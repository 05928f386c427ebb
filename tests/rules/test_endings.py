"""How terms ended, as the field "endings" has it, and which names flap. Pure."""

from __future__ import annotations

import json

import pytest

from incumbent.model import Field, Holding, Key, Past, Record
from incumbent.rules.endings import (
    ENDINGS,
    FLAP_WITHIN,
    TermEnding,
    describe_ending,
    endings_of,
    flapping,
    read_endings,
    with_ending,
)

NOW = 1_800_000_000.0


def record(*endings: TermEnding, **parts: object) -> Record:
    value = None
    for ending in endings:
        value = with_ending(value, ending)
    fields = {} if value is None else {ENDINGS: Field(value, 1)}
    return Record(Key("ns", "job"), fields=fields, **parts)  # type: ignore[arg-type]


def failed(token: int, at: float = NOW, code: int = 3) -> TermEnding:
    return TermEnding(token, "exit", at, code)


def test_an_ending_is_read_as_it_was_written() -> None:
    ending = TermEnding(7, "lost", NOW + 0.25, 143, "its ttl ran out")
    assert read_endings(with_ending(None, ending)) == [ending]


def test_the_last_twenty_are_kept_in_the_order_of_their_terms() -> None:
    value = None
    for token in [3, 1, 2, *range(4, 30)]:
        value = with_ending(value, failed(token))
    assert [one.token for one in read_endings(value)] == list(range(10, 30))


def test_a_term_ends_once() -> None:
    value = with_ending(with_ending(None, failed(1, code=3)), failed(1, code=4))
    assert [one.code for one in read_endings(value)] == [4]


@pytest.mark.parametrize("value", [b"", b"\xff", b"{}", b"[1, null, {}]", b'[{"token": "x"}]'])
def test_a_value_that_was_edited_by_hand_counts_as_no_ending(value: bytes) -> None:
    assert read_endings(value) == []
    assert with_ending(value, failed(1)) == with_ending(None, failed(1))


def test_a_long_reason_is_cut() -> None:
    (ending,) = read_endings(with_ending(None, TermEnding(1, "lost", NOW, None, "x" * 5_000)))
    assert len(ending.why) == 200


@pytest.mark.parametrize(
    ("how", "code", "is_failure"),
    [
        ("exit", 0, False),
        ("exit", 3, True),
        ("exit", 139, True),
        ("exit", 130, False),
        ("exit", None, False),
        ("stopped", 143, False),
        ("asked", 143, False),
        ("at_most_for", 143, False),
        ("lost", 143, True),
        ("not_started", 127, True),
        ("fault", None, True),
    ],
)
def test_what_ended_badly(how: str, code: int | None, is_failure: bool) -> None:
    assert TermEnding(1, how, NOW, code).failed is is_failure


def test_an_ending_is_told_in_words() -> None:
    assert describe_ending(failed(1)) == "its command ended with exit 3"
    assert describe_ending(TermEnding(1, "lost", NOW, 143, "expired")) == "expired"
    assert describe_ending(TermEnding(1, "at_most_for", NOW)) == "at most for"


def test_endings_are_found_by_their_term() -> None:
    assert set(endings_of(record(failed(4), failed(9)))) == {4, 9}
    assert endings_of(record()) == {}


def test_three_bad_endings_within_ten_minutes_are_a_flap() -> None:
    flap = flapping(record(failed(1), failed(2), failed(3, NOW + 1, 5)), NOW)
    assert flap is not None
    assert flap.times == 3
    assert flap.last == "its command ended with exit 5"
    assert str(flap).startswith("3 terms ended badly within 10m")


def test_two_are_none_nor_are_good_ones_nor_old_ones() -> None:
    assert flapping(record(failed(1), failed(2)), NOW) is None
    assert flapping(record(failed(1), failed(2), failed(3, code=0)), NOW) is None
    old = NOW - FLAP_WITHIN - 1
    assert flapping(record(failed(1), failed(2), failed(3, old)), NOW) is None


def test_terms_that_were_never_given_back_count_once_each() -> None:
    history = tuple(Past("a", token, NOW - 60 + token, None) for token in (1, 2, 3))
    assert flapping(record(history=history), NOW) is not None
    present = (Holding("a", 3, 9.0),)
    assert flapping(record(history=history, holdings=present), NOW) is None
    lost = TermEnding(1, "lost", NOW)
    flap = flapping(record(lost, history=history), NOW)
    assert flap is not None
    assert flap.times == 3


def test_the_field_is_small() -> None:
    value = None
    for token in range(20):
        value = with_ending(value, TermEnding(token, "lost", NOW, 143, "x" * 200))
    assert value is not None
    assert len(value) < 8_000
    assert len(json.loads(value)) == 20
