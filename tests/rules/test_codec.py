"""Texts of records: what was written is read again, and what cannot be read is never free."""

from __future__ import annotations

import json
from binascii import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incumbent.model import Field
from incumbent.rules.codec import Unreadable, decoded, decoded_entry, encoded, encoded_entry
from incumbent.rules.record import (
    NOTHING,
    Closing,
    GivenUp,
    Grant,
    LastGrant,
    LeaseRecord,
    Line,
    ListedCandidate,
    Waiter,
    after,
    dated,
    dated_value,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.integers(0, 1 << 53)
instants = st.one_of(counts, counts.map(after))
fields = st.builds(Field, st.binary(max_size=8), counts)
lasts = st.builds(LastGrant, texts, counts, counts, counts)


def grants(permits: st.SearchStrategy[int | None]) -> st.SearchStrategy[Grant]:
    return st.builds(
        Grant,
        *(texts, texts, counts, counts, instants, instants, st.binary(max_size=8), permits),
        counts,
    )


records = st.builds(
    LeaseRecord,
    counts,
    counts,
    st.one_of(
        st.lists(grants(st.none()), max_size=1).map(tuple),
        st.lists(grants(st.just(2)), max_size=3).map(tuple),
    ),
    counts,
    st.none() | lasts,
    st.none() | st.builds(Closing, texts, counts, instants, texts),
    st.none() | fields,
    st.none() | fields,
    st.builds(
        Line,
        st.lists(st.builds(Waiter, texts, texts, counts, st.booleans()), min_size=1).map(tuple),
        instants,
        counts,
    )
    | st.just(Line()),
    st.lists(st.builds(ListedCandidate, texts, instants), max_size=3).map(tuple),
    st.lists(st.builds(GivenUp, texts, instants), max_size=3).map(tuple),
    counts,
    instants,
    st.just({}),
)


@given(records, counts)
@settings(max_examples=200, deadline=None)
def test_a_record_is_read_as_it_was_written(record: LeaseRecord, written: int) -> None:
    assert decoded(encoded(record), written) == dated(record, written)


@given(fields | grants(st.none()) | lasts, counts)
@settings(max_examples=200, deadline=None)
def test_a_value_beside_a_record_is_read_as_it_was_written(
    value: Field | Grant | LastGrant, written: int
) -> None:
    assert decoded_entry(encoded_entry(value), written) == dated_value(value, written)


def test_what_a_later_version_wrote_is_carried_on() -> None:
    text = _sealed({**json.loads(_body(encoded(NOTHING))), "quota": [1, "x"]})
    record = decoded(text, 0)
    assert b'"quota":[1,"x"]' in encoded(record._replace(changes=3))
    # No statement decides over it: it goes by the rules, which carry on what they do not know.
    assert NOTHING.plain
    assert not record.plain


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_record_that_was_changed_by_hand_is_unreadable(data: st.DataObject) -> None:
    text = bytearray(encoded(data.draw(records)))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(0, 255).filter(lambda it: it != text[place]))
    with pytest.raises(Unreadable):
        decoded(bytes(text), 0)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_record_that_was_cut_short_is_unreadable(data: st.DataObject) -> None:
    text = encoded(data.draw(records))
    with pytest.raises(Unreadable):
        decoded(text[: data.draw(st.integers(0, len(text) - 1))], 0)


def _body(text: bytes) -> bytes:
    return text.split(b" ", 2)[2]


def _sealed(parts: object, number: int = 1) -> bytes:
    body = json.dumps(parts, separators=(",", ":")).encode()
    return b"incumbent%d %08x %b" % (number, crc32(body), body)


def _with(**parts: object) -> bytes:
    return _sealed({**json.loads(_body(encoded(NOTHING))), **parts})


ALONE = ["c", "h", 1, 1, 1, 1, "", None, 0]
SHARED = ["d", "h", 1, 1, 1, 1, "", 2, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is not of incumbent"),
        (b"held by me", "is not of incumbent"),
        (_sealed({"token": 1}, number=2), "has format 2"),
        (encoded(NOTHING)[:-1], "cut short"),
        (_sealed([1, 2]), "no JSON object"),
        (_sealed({"token": 1}), "makes no sense"),
        (_with(token=-1), "no count"),
        (_with(token=1.5), "no count"),
        (_with(token=True), "no count"),
        (_with(token=1 << 61), "no count"),
        (_with(keep="+-5"), "no count"),
        (_with(keep="tomorrow"), "no count"),
        (_with(held=[ALONE, ALONE]), "several claims hold it alone"),
        (_with(held=[ALONE, SHARED]), "different numbers of permits"),
        (_with(held=[ALONE[:-1]]), "makes no sense"),
        (_with(held=[[7, *ALONE[1:]]]), "no text"),
        (_with(held=[[*ALONE[:6], "?", None, 0]]), "makes no sense"),
        (_with(pause=["AA=="]), "makes no sense"),
        (_with(line=[[["c", "h", 1]], 0, 0]), "makes no sense"),
    ],
)
def test_a_text_that_makes_no_sense_says_why(text: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        decoded(text, 0)
