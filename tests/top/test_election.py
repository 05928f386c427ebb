"""Elections as decisions: leaders read from records, metadata, pauses between terms."""

from __future__ import annotations

import random

import pytest

from incumbent.election import (
    CandidatePauses,
    Leader,
    encode_metadata,
    leader_by_refusal,
    leader_of,
    read_metadata,
    watch_for,
)
from incumbent.errors import ConfigError
from incumbent.model import Holding, Key, Record, Refused

KEY = Key("default", "a")


def held(meta: bytes = b"", remaining: float | None = 3.0) -> Record:
    return Record(KEY, (Holding("me", 7, remaining, meta=meta),))


def test_metadata_survives_the_way_to_a_follower_whatever_texts_it_has() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    for _ in range(200):
        texts = ["".join(chr(chance.randrange(1, 0xD7FF)) for _ in range(5)) for _ in range(4)]
        metadata = dict(zip(texts[:2], texts[2:], strict=True))
        leader = leader_of(held(encode_metadata(metadata)))
        assert leader == Leader("me", 7, metadata, encode_metadata(metadata))


@pytest.mark.parametrize(
    "bad", [{"a": 1}, {1: "a"}, ["a"], "a", {"a": "x" * 1024}, b"x" * 1025, {"a": "\ud800"}]
)
def test_metadata_that_cannot_be_carried_is_refused_by_name(bad: object) -> None:
    with pytest.raises(ConfigError) as caught:
        encode_metadata(bad)  # type: ignore[arg-type]
    assert caught.value.name == "metadata"


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\x00", b"{", b"[1]", b'{"a": 1}', b"null", b"[" * 100_000]
)
def test_metadata_of_others_reads_as_empty_and_stays_to_be_seen(raw: bytes) -> None:
    assert read_metadata(raw) == {}
    leader = leader_of(held(raw))
    assert leader is not None
    assert leader.raw == raw


def test_nobody_leads_by_an_empty_record() -> None:
    assert leader_of(Record(KEY)) is None


def test_only_a_refusal_for_a_holder_names_a_leader() -> None:
    holders = (Holding("me", 7),)
    assert leader_by_refusal(Refused("held", holders)) == Leader("me", 7)
    assert leader_by_refusal(Refused("closed", holders)) is None
    assert leader_by_refusal(Refused("reserved", holders)) is None
    assert leader_by_refusal(Refused("paused")) is None


def test_leaders_can_be_kept_in_sets() -> None:
    assert len({Leader("me", 7, {"a": "b"}), Leader("me", 7, {"a": "b"})}) == 1


def test_an_observer_sleeps_until_the_leaders_ttl_runs_out() -> None:
    assert 3.0 <= watch_for(held(), 9, 0.5, ttl=15) <= 3.002
    assert watch_for(held(remaining=None), 9, 0.5, ttl=15) == 15


def test_an_observer_of_nobody_looks_soon_and_then_ever_more_rarely() -> None:
    waits = [watch_for(Record(KEY), vacant, 0.999, ttl=15) for vacant in range(9)]
    assert waits == sorted(waits)
    assert waits[0] <= 0.02
    assert waits[-1] == pytest.approx(1.0, abs=0.01)
    assert watch_for(Record(KEY), 10**6, 0.999, ttl=0.5) <= 0.5


def test_short_terms_make_the_pause_grow_and_a_long_one_resets_it() -> None:
    standing = CandidatePauses(ttl=15, head_start=3)
    pauses = [standing.pause(0.1, 0.999) for _ in range(9)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.21
    assert 4.9 < pauses[-1] <= 5.0
    assert standing.pause(15.1, 0.999) < 0.11


def test_the_pause_is_jittered_down_to_nothing() -> None:
    assert CandidatePauses(ttl=15, head_start=3).pause(0.1, 0.0) == 0.0


def test_who_was_asked_to_go_gives_the_others_a_head_start() -> None:
    assert CandidatePauses(ttl=15, head_start=3).pause(60, 0.0, asked=True) == 3
