"""Records as columns: nothing is lost, and the usual record needs no text beside them."""

from __future__ import annotations

from hypothesis import given, settings

from incumbent.model import Ask, Granted, Released
from incumbent.rules import keeping, taking
from incumbent.rules.columns import columns_of, record_of
from incumbent.rules.record import NOTHING, LeaseRecord, Moment, dated
from tests.rules.test_codec import counts, records

ASK = Ask(10.0, "host-1", meta=b"m")
US = 1_000_000


def at(seconds: float) -> Moment:
    return Moment(int(seconds * US), int(seconds * US))


@given(records, counts)
@settings(max_examples=300, deadline=None)
def test_a_record_in_columns_is_the_same_record(record: LeaseRecord, written: int) -> None:
    """What no rule writes (a token without its grant) has no columns of its own."""
    last = record.last and record.last._replace(token=record.token)
    if not record.granted or last is None:
        record = record._replace(granted=0, last=None)
    else:
        record = record._replace(last=last)
    columns = columns_of(record)
    known = dated(record, written)
    again = record_of(columns, written)
    assert dated(again, written) == known


def test_a_lease_and_its_end_need_no_text() -> None:
    record = taking.take(NOTHING, "c1", ASK, at(1)).record
    assert record is not None
    record = dated(record, 1 * US)
    assert columns_of(record).rest == b""
    given = keeping.give(record, "c1", record.token, at(2))
    assert isinstance(given.outcome, Released)
    assert given.record is not None
    assert columns_of(given.record).rest == b""
    assert columns_of(given.record).claim == ""


def test_a_name_with_a_doubt_or_a_candidate_is_plain_again_once_that_is_over() -> None:
    doubted = keeping.give(NOTHING, "c1", None, at(1)).record
    assert doubted is not None
    doubted = dated(doubted, 1 * US)
    stood = taking.take(doubted, "c2", ASK, at(2)).record
    assert stood is not None
    stood = dated(stood, 2 * US)
    waits = Ask(10.0, "host-2", candidacy=5.0)
    stood = taking.take(stood, "c3", waits, at(3)).record
    assert stood is not None
    stood = dated(stood, 3 * US)
    assert not stood.plain
    later = taking.take(stood, "c4", ASK, at(100))
    assert isinstance(later.outcome, Granted)
    assert later.record is not None
    assert later.record.plain
    assert columns_of(dated(later.record, 100 * US)).rest == b""


def test_a_doubt_that_is_not_over_stays() -> None:
    doubted = keeping.give(NOTHING, "c1", None, at(1)).record
    assert doubted is not None
    taken = taking.take(dated(doubted, 1 * US), "c2", ASK, at(2)).record
    assert taken is not None
    assert [it.claim for it in taken.given_up] == ["c1"]
