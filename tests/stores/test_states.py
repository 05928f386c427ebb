"""What is said of a name agrees with what a take gets at that instant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key, Parting, Record, Refused, Slot
from incumbent.rules.notices import PAUSE
from incumbent.stores.findings import (
    FREE,
    GRANTS,
    HELD,
    UNKNOWN,
    WAITING,
    Finding,
    at,
    cannot_tell,
    grants_nothing,
    places_of,
    state_of,
    state_of_store,
)
from incumbent.stores.memory import MemoryTable

KEY = Key("default", "job")
CLAIMS = ("a", "b")

steps = st.one_of(
    st.tuples(st.just("take"), st.sampled_from(CLAIMS), st.booleans()),
    st.tuples(st.just("give"), st.sampled_from(CLAIMS), st.sampled_from((0.0, 5.0))),
    st.tuples(st.just("reserve"), st.sampled_from(CLAIMS), st.just(5.0)),
    st.tuples(st.just("pause"), st.just(""), st.booleans()),
    st.tuples(st.just("pass"), st.just(""), st.sampled_from((0.5, 2.0, 6.0))),
)


class World:
    """A table, its clock, and the claims that were granted."""

    def __init__(self) -> None:
        self.table, self.now = MemoryTable(), 0.0
        self.tokens: dict[str, int] = {}

    def take(self, claim: str, slot: Slot | None = None) -> Granted | Refused:
        ask = Ask(3.0, f"holder {claim}", slot=slot)
        outcome = self.table.take(KEY, claim, ask, self.now, self.now)
        if isinstance(outcome, Granted):
            self.tokens[claim] = outcome.token
        return outcome

    def do(self, what: str, claim: str, value: object) -> None:
        if what == "take":
            self.take(claim, Slot("once", 4.0) if value else None)
        elif what in ("give", "reserve") and claim in self.tokens:
            assert isinstance(value, float)
            reserve = "holder b" if what == "reserve" else None
            self.table.give(
                *(KEY, claim, self.tokens.pop(claim), self.now, self.now),
                Parting(closed_for=value, reserve_for=reserve),
            )
        elif what == "pause":
            self.table.put(KEY, PAUSE, b"{}" if value else None, None, self.now)
        elif what == "pass":
            assert isinstance(value, float)
            self.now += value


@given(st.lists(steps, max_size=12))
def test_the_word_for_a_name_is_what_a_take_gets(done: list[tuple[str, str, object]]) -> None:
    world = World()
    for step in done:
        world.do(*step)
    state = state_of(world.table.read(KEY, world.now))
    outcome = world.take("somebody else")
    if isinstance(outcome, Granted):
        assert state.word == FREE
    else:
        assert state.word == outcome.reason


@given(st.lists(steps, max_size=12))
def test_free_without_a_but_is_free_for_a_run_of_a_slot_too(
    done: list[tuple[str, str, object]],
) -> None:
    world = World()
    for step in done:
        world.do(*step)
    state = state_of(world.table.read(KEY, world.now))
    granted = isinstance(world.take("somebody else", Slot("once", 4.0)), Granted)
    assert granted == (state == (FREE, ""))


def test_a_store_that_grants_nothing_yet_is_not_called_free() -> None:
    table = MemoryTable(started=0.0)
    with pytest.raises(StoreUnavailable):
        table.take(KEY, "a", Ask(3.0, "a"), 1.0, 1.0)
    store = state_of_store([grants_nothing("it started 1s ago", "wait")])
    state = state_of(table.read(KEY, 1.0), store)
    assert state == (WAITING, "nobody is given a lease yet: it started 1s ago")


def test_a_store_that_was_not_examined_is_neither_free_nor_waiting() -> None:
    sick: list[Finding] = [("ok", "it answers", ""), ("error", "the disk is slow", "buy one")]
    assert state_of_store(sick) == GRANTS
    doubt = at("node-1", [*sick, cannot_tell("no answer")])
    state = state_of(Record(KEY), state_of_store(doubt))
    assert state == (UNKNOWN, "whether the store gives leases now: node-1: no answer")
    assert state_of_store([*doubt, grants_nothing("new", "wait")]).word == WAITING


def test_too_few_answers_are_neither_held_nor_free() -> None:
    assert state_of(Record(KEY, undecided=True)).word == UNKNOWN


def test_the_word_of_a_holding_needs_no_explanation() -> None:
    world = World()
    world.take("a")
    assert state_of(world.table.read(KEY, 0.0)) == (HELD, "")


def test_the_places_of_a_pool_are_numbered_names_below_it() -> None:
    names = ("gpu/10", "gpu/2", "gpu/x", "gpu", "gpu/1/2", "gpus/1", "gpu/0")
    records = [Record(Key("default", name)) for name in names]
    assert [record.key.name for record in places_of("gpu", records)] == ["gpu/2", "gpu/10"]
