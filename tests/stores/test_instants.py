"""Stores at the very instant at which something ends, by clocks that stand still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.model import Ask, ByClaim, Gone, Granted, Key, Parting, Refused, Renewal, Slot, Stale
from incumbent.stores.base import Store
from incumbent.stores.memory import MemoryStore
from tests.stores.postgresql.world import MovedWorld
from tests.stores.sqlite.test_store import Machine

KEY = Key("default", "job")
ASK = Ask(10.0, "me", slot=Slot("monday", 60.0))
A_MOMENT = 1 / 64  # exact as a binary fraction, and in microseconds


def soon() -> float:
    return clock.now() + 5


@dataclass
class At:
    """A store whose time passes when it is told to."""

    store: Store
    pass_time: Callable[[float], None]

    def take(self, claim: str, ask: Ask = ASK) -> Granted:
        outcome = self.store.take(KEY, claim, ask, soon())
        assert isinstance(outcome, Granted), outcome
        return outcome

    def refuses(self, claim: str, ask: Ask = ASK) -> bool:
        return isinstance(self.store.take(KEY, claim, ask, soon()), Refused)


def in_memory() -> At:
    now = [1_000.0]

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    return At(MemoryStore(lambda: now[0], lambda: now[0]), pass_time)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[At]:
    if request.param == "memory":
        made = in_memory()
    elif request.param == "sqlite":
        machine = Machine(tmp_path / "leases.db")
        made = At(machine.store, machine.sleep)
    else:
        world = MovedWorld(request.getfixturevalue("postgres_server"), 1_800_000_000.0)
        made = At(world.engine.store(), world.pass_time)
    yield made
    made.store.close()


def test_a_lease_is_over_at_the_instant_at_which_it_ends(at: At) -> None:
    mine = at.take("a")
    at.pass_time(10.0)
    assert at.store.read(KEY, soon()).holdings == ()
    renewal = Renewal(KEY, "a", mine.token, 10.0, mine.epoch)
    assert at.store.renew([renewal], soon()) == [Gone()]
    assert at.store.put(KEY, "state", b"x", ByClaim("a", mine.token), soon()) == Stale()
    assert at.store.give(KEY, "a", mine.token, soon()) == Gone()
    assert at.take("b", Ask(10.0, "me")).token > mine.token


def test_the_last_moment_of_a_lease_is_its_holders(at: At) -> None:
    mine = at.take("a")
    at.pass_time(10.0 - A_MOMENT)
    assert at.refuses("b")
    at.store.renew([Renewal(KEY, "a", mine.token, 10.0, mine.epoch)], soon())
    at.pass_time(10.0 - A_MOMENT)
    assert at.refuses("b")


def test_a_repeat_at_the_instant_at_which_the_lease_ends_is_a_new_grant(at: At) -> None:
    mine = at.take("a", Ask(10.0, "me"))
    at.pass_time(10.0)
    assert at.take("a", Ask(10.0, "me")).token > mine.token


def test_a_slot_opens_at_the_instant_at_which_it_ends(at: At) -> None:
    at.take("a")
    at.pass_time(60.0 - A_MOMENT)
    assert at.refuses("b")
    at.pass_time(A_MOMENT)
    at.take("b")


def test_a_closing_ends_at_its_instant(at: At) -> None:
    mine = at.take("a")
    at.store.give(KEY, "a", mine.token, soon(), parting=Parting(closed_for=5.0))
    open_ = Ask(10.0, "me")
    at.pass_time(5.0 - A_MOMENT)
    assert at.refuses("b", open_)
    at.pass_time(A_MOMENT)
    at.take("b", open_)
