"""How long a refused caller waits, and for what it does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import incumbent
from incumbent import (
    AcquireTimeout,
    AsyncLock,
    Election,
    Lock,
    NotAcquired,
    StoreUnavailable,
    clock,
)
from incumbent.model import Ask, Holding, Key, Queued, Refused, TakeOutcome
from incumbent.protocol.acquire import acquire as protocol_acquire
from incumbent.runtime.link import link_for
from incumbent.stores.plan import run_blocking
from tests.support.faulty import FaultyEngine

AN_HOUR = 3600.0
THEIRS = (Holding("<foreign>", remaining=60.0, foreign=True),)
OURS = (Holding("other", 7, 60.0, 60.0, 1.0),)

Acquire = Callable[..., Any]


def blocking(engine: FaultyEngine, timeout: Any = ..., **settings: Any) -> bool:
    return Lock("a", store=engine, **settings).acquire(timeout).release()


def suspending(engine: FaultyEngine, timeout: Any = ..., **settings: Any) -> bool:
    async def main() -> bool:
        lease = await AsyncLock("a", store=engine, **settings).acquire(timeout)
        return await lease.release()

    return asyncio.run(main())


SIDES = pytest.mark.parametrize("acquire", [blocking, suspending])


class Script:
    """What takes are answered, in order, the last one again and again; and how long waits are."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *outcomes: Refused | StoreUnavailable | None
    ) -> None:
        self.engine = FaultyEngine()
        can = replace(self.engine.capabilities, waits="pubsub")
        monkeypatch.setattr(self.engine, "capabilities", can)
        self.outcomes = list(outcomes)
        self.waits: list[float] = []
        self.ends: list[float] = []
        store = self.engine.faulty
        monkeypatch.setattr(store, "take", self._take)
        monkeypatch.setattr(store, "wait_change", self._wait)
        monkeypatch.setattr(self.engine.async_store(), "wait_change", self._wait_async)
        self._granted: Callable[..., TakeOutcome] = partial(type(store).take, store)

    def _take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, StoreUnavailable):
            raise outcome
        return self._granted(key, claim, ask, until) if outcome is None else outcome

    def _wait(self, key: Key, seen: str, until: float) -> None:
        self.waits.append(until - clock.now())
        self.ends.append(until)

    async def _wait_async(self, key: Key, seen: str, until: float) -> None:
        self._wait(key, seen, until)


Write = Callable[..., Script]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Makes a script; the stores end with the test."""
    made: list[Script] = []

    def script(*outcomes: Refused | StoreUnavailable | None) -> Script:
        made.append(Script(monkeypatch, *outcomes))
        return made[-1]

    yield script
    for one in made:
        link_for(one.engine).close()


# -- holders that announce no release -------------------------------------------------------------


@SIDES
def test_a_waiter_looks_again_and_again_while_a_foreign_client_holds(
    acquire: Acquire, write: Write
) -> None:
    refusals = [Refused("held", THEIRS, 60.0, str(seen)) for seen in range(5)]
    script = write(*refusals, None)
    assert acquire(script.engine)
    assert len(script.waits) == 5
    assert all(wait < 0.11 for wait in script.waits)
    assert len({round(wait, 4) for wait in script.waits}) > 1, "without jitter"


@SIDES
def test_the_last_look_is_early_enough_for_its_answer(acquire: Acquire, write: Write) -> None:
    script = write(Refused("held", THEIRS, 60.0, "1"))
    with pytest.raises(AcquireTimeout):
        acquire(script.engine, 0.5)
    last = max(script.ends)
    early = [last - end for end in script.ends if end != last]
    assert early
    assert min(early) > 0.049


@SIDES
def test_only_the_first_in_line_looks_for_those_behind_it(acquire: Acquire, write: Write) -> None:
    behind = Queued("held", THEIRS, 60.0, "1", 1)
    first = Queued("held", THEIRS, 60.0, "2", 0)
    script = write(behind, first, None)
    assert acquire(script.engine, ttl=15)
    assert script.waits[0] > 14
    assert script.waits[1] < 0.11


@SIDES
def test_a_store_that_watches_needs_no_look(
    acquire: Acquire, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(Refused("held", THEIRS, 60.0, "1"), None)
    can = replace(script.engine.capabilities, waits="watch")
    monkeypatch.setattr(script.engine, "capabilities", can)
    assert acquire(script.engine, ttl=15)
    assert script.waits[0] > 14


@SIDES
def test_a_waiter_for_one_of_ours_is_woken_and_does_not_look(
    acquire: Acquire, write: Write
) -> None:
    script = write(Queued("held", OURS, 60.0, "1", 0), None)
    assert acquire(script.engine, ttl=15)
    assert script.waits[0] > 14


# -- slots that are used --------------------------------------------------------------------------

ONCE: dict[str, Any] = {"once_per": AN_HOUR}
USED = Refused("used", OURS, AN_HOUR, "slot")


@SIDES
@pytest.mark.parametrize("timeout", [None, 60])
def test_a_slot_that_is_used_for_longer_ends_the_wait_at_once(
    acquire: Acquire, timeout: float | None, write: Write
) -> None:
    script = write(USED)
    with pytest.raises(NotAcquired, match="ran already: its slot was used by other") as caught:
        acquire(script.engine, timeout, **ONCE)
    assert script.waits == []
    assert caught.value.reason == "used"
    assert caught.value.held_by == "other"
    assert caught.value.retry_after == AN_HOUR
    assert isinstance(caught.value, AcquireTimeout) == (timeout is not None)


@SIDES
@pytest.mark.parametrize("timeout", [None, 60])
def test_a_slot_that_becomes_used_during_the_wait_ends_it(
    acquire: Acquire, timeout: float | None, write: Write
) -> None:
    script = write(Refused("held", OURS, 10.0, "1"), USED)
    with pytest.raises(NotAcquired) as caught:
        acquire(script.engine, timeout, **ONCE)
    assert (len(script.waits), caught.value.reason) == (1, "used")


@SIDES
def test_a_slot_that_ends_within_the_timeout_is_waited_for(acquire: Acquire, write: Write) -> None:
    script = write(Refused("used", OURS, 5.0, "slot"), None)
    assert acquire(script.engine, 60, **ONCE)
    assert 4 < script.waits[0] <= 5.1


@SIDES
def test_a_refusal_for_the_turn_of_another_says_whose_turn_it_is(
    acquire: Acquire, write: Write
) -> None:
    script = write(Refused("turn", OURS, 5.0, "1"))
    with pytest.raises(NotAcquired, match="goes to other next, which is first in line") as caught:
        acquire(script.engine, 0)
    assert (caught.value.reason, caught.value.held_by) == ("turn", "other")


@SIDES
@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize(
    "refused",
    [
        Refused("paused", seen="1"),
        Refused("closed", OURS, AN_HOUR, "1"),
        Refused("reserved", OURS, AN_HOUR, "1"),
        Refused("turn", OURS, AN_HOUR, "1"),
        Refused("held", OURS, AN_HOUR, "1"),
    ],
)
def test_what_may_end_sooner_is_waited_for(
    acquire: Acquire,
    timeout: float | None,
    refused: Refused,
    write: Write,
) -> None:
    script = write(refused, None)
    assert acquire(script.engine, timeout, ttl=15)
    assert script.waits[0] > 14


def test_a_candidate_waits_for_its_next_slot(write: Write) -> None:
    script = write(USED, None)
    term = Election("a", store=script.engine, **ONCE).campaign()
    assert term.release()
    assert len(script.waits) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_decorated_function_does_not_wait_for_a_used_slot(is_async: bool, write: Write) -> None:
    script = write(USED)
    store = script.engine

    async def work() -> str:
        return "ran"

    function: Any = work if is_async else lambda: "ran"

    def call(made: Any) -> Any:
        return asyncio.run(made()) if is_async else made()

    assert call(incumbent.once("a", per=AN_HOUR, store=store)(function)) is None
    waits = incumbent.exclusive("a", once_per=AN_HOUR, store=store)(function)
    with pytest.raises(NotAcquired) as caught:
        call(waits)
    assert caught.value.reason == "used"
    assert script.waits == []


# -- outages --------------------------------------------------------------------------------------


def impatient(engine: FaultyEngine, outage_most: float = 0.2) -> Lock:
    lock = Lock("a", store=engine)
    lock._wanted = lock._wanted._replace(outage_most=outage_most)
    return lock


def test_an_outage_of_its_length_ends_a_wait_that_has_no_end(
    write: Write,
) -> None:
    script = write(Refused("held", OURS, 10.0, "1"), StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable, match="away"):
        impatient(script.engine).acquire()


def test_a_store_that_says_when_it_grants_again_is_waited_for(
    write: Write,
) -> None:
    # A busy machine may ask up to two seconds after that.
    restarted = StoreUnavailable("restarted", retry_after=2.1)
    script = write(restarted, StoreUnavailable("not yet", retry_after=0.05), None)
    assert impatient(script.engine, outage_most=2.0).acquire().release()


@SIDES
def test_where_nobody_may_watch_time_proves_that_a_holder_is_dead(
    acquire: Acquire, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = write(Refused("held", OURS, 0.05, "1", holder_may_be_dead=True), None)

    def refuse(key: Key, seen: str, until: float) -> None:
        raise StoreUnavailable("this account may not watch", permanent=True)

    monkeypatch.setattr(script, "_wait", refuse)
    monkeypatch.setattr(script.engine.faulty, "wait_change", refuse)
    began = clock.now()
    assert acquire(script.engine, 0)
    assert clock.now() - began >= 0.05


def test_a_slot_that_was_used_while_its_holder_was_watched_is_refused_as_used(
    write: Write,
) -> None:
    held = Refused("held", OURS, 0.01, "1", holder_may_be_dead=True)
    script, replies = write(held, Refused("used")), list[object]()
    lock = Lock("a", store=script.engine)
    with pytest.raises(NotAcquired):
        run_blocking(protocol_acquire(lock._link.port, lock._wanted, 0, replies.append))
    assert replies == [held, Refused("used")]
