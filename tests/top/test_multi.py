"""Locks on several names: all or none, in one order, and the loss of one is the loss of all."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

import incumbent
from incumbent import (
    AcquireTimeout,
    AlreadyReleased,
    AsyncLock,
    AsyncMultiLock,
    Client,
    ConfigError,
    LeaseLost,
    Lock,
    Misuse,
    MultiLock,
    NotAcquired,
    OutcomeUnknown,
    StoreUnavailable,
    clock,
)
from incumbent.model import Ask, Key, TakeOutcome
from tests.support.faulty import Fault, FaultyEngine
from tests.support.waiting import eventually

PATIENCE = 5.0
NAMES = ["b", "a", "c"]


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def make(engine: FaultyEngine, names: Any = NAMES, **settings: Any) -> MultiLock:
    return MultiLock(names, store=engine, **settings)


def held(engine: FaultyEngine) -> list[str]:
    with Client(engine) as client:
        return sorted(found.key.name for found in client.scan() if found.holdings)


def lose(engine: FaultyEngine, lease: Any, name: str) -> None:
    """Have the store forget one of the names, and the keeper find out."""
    (mine,) = [it for it in lease._claims if it.wanted.key.name == name]
    engine.faulty.give(mine.wanted.key, mine.id, None, clock.now() + 30)
    done = threading.Event()
    lease._link.keeper.renew_now(mine, done.set)
    assert done.wait(PATIENCE)


def test_all_names_are_held_by_one_lease_and_given_back_at_the_end(engine: FaultyEngine) -> None:
    with make(engine, holder="me") as lease:
        assert lease.names == ("a", "b", "c")
        assert held(engine) == ["a", "b", "c"]
        assert set(lease.tokens) == {"a", "b", "c"}
        assert all(token > 0 for token in lease.tokens.values())
        assert lease.valid
        assert not lease.lost
        assert 10 < lease.remaining < 14.5
        lease.check(need=2)
        assert lease.renew() > 10
        with pytest.raises(LeaseLost, match="needed"):
            lease.check(need=20)
    assert held(engine) == []
    with pytest.raises(AlreadyReleased):
        lease.check()
    with pytest.raises(AlreadyReleased):
        lease.release()


def test_a_name_that_another_holds_leaves_none_of_them_held(engine: FaultyEngine) -> None:
    for taken in "abc":
        other, lock = Lock(taken, store=engine, holder="other").acquire(), make(engine)
        assert lock.try_acquire() is None
        with pytest.raises(NotAcquired, match=f"'{taken}' is held by other"):
            lock.acquire(0)
        with pytest.raises(AcquireTimeout, match=f"'{taken}' is held by other"):
            lock.acquire("50ms")
        assert held(engine) == [taken]
        for name in {*"abc"} - {taken}:
            assert Lock(name, store=engine, timeout=0).acquire().release()
        other.release()


def test_while_it_waits_for_a_name_only_those_before_it_are_held(engine: FaultyEngine) -> None:
    with ThreadPoolExecutor(1) as pool:
        with Lock("b", store=engine):
            waiting = pool.submit(make(engine).acquire, PATIENCE)
            eventually(lambda: held(engine) == ["a", "b"] and engine.faulty.calls["take"] >= 4)
            assert Lock("c", store=engine, timeout=0).acquire().release()
        lease = waiting.result(PATIENCE)
    assert held(engine) == ["a", "b", "c"]
    assert lease.release()
    assert held(engine) == []


@pytest.mark.parametrize("fault", [Fault.NOT_SENT, Fault.LOST_REQUEST, Fault.LOST_REPLY])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_an_error_of_the_store_leaves_none_of_them_held(
    engine: FaultyEngine, fault: Fault, before: int
) -> None:
    engine.faulty.plan("take", *[None] * before, fault, fault)
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        make(engine, ttl=60).acquire(0)
    eventually(lambda: held(engine) == [])


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
def test_a_doubt_is_settled_by_the_same_claim(engine: FaultyEngine, fault: Fault) -> None:
    engine.faulty.plan("take", None, fault)
    with make(engine, timeout=0) as lease:
        lease.check()
    eventually(lambda: held(engine) == [])


def test_a_release_without_an_answer_stays_owed(engine: FaultyEngine) -> None:
    lease = make(engine, ttl=60).acquire()
    engine.faulty.plan("give", None, Fault.NOT_SENT)
    assert not lease.release()
    eventually(lambda: held(engine) == [])


def test_an_interruption_leaves_none_of_them_held(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, tries = engine.faulty.take, count()

    def interrupted(key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        outcome = take(key, claim, ask, until)
        if next(tries) == 1:
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(engine.faulty, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(engine, ttl=60).acquire()
    eventually(lambda: held(engine) == [])


def test_a_lease_that_was_lost_during_the_wait_is_taken_anew(engine: FaultyEngine) -> None:
    with ThreadPoolExecutor(1) as pool:
        with Lock("b", store=engine):
            waiting = pool.submit(make(engine).acquire, PATIENCE)
            eventually(lambda: engine.faulty.calls["take"] >= 4)
            with Client(engine) as client:
                (first,) = client.read("a").holdings
            engine.faulty.give(Key("default", "a"), first.claim, None, clock.now() + 30)
            (mine,) = [
                found
                for ref in lock_keeper(engine).refs()
                if (found := ref()) is not None and found.id == first.claim
            ]
            done = threading.Event()
            lock_keeper(engine).renew_now(mine, done.set)
            assert done.wait(PATIENCE)
        lease = waiting.result(PATIENCE)
    assert held(engine) == ["a", "b", "c"]
    assert lease.tokens["a"] > first.token
    lease.release()


def lock_keeper(engine: FaultyEngine) -> Any:
    return Lock("a", store=engine)._link.keeper


def test_the_loss_of_one_is_the_loss_of_all_and_the_body_names_it(engine: FaultyEngine) -> None:
    told: list[LeaseLost] = []
    with pytest.raises(LeaseLost, match="'b'") as caught, make(engine, on_lost=told.append) as it:
        lose(engine, it, "b")
        assert it.lost
        assert not it.valid
        assert it.remaining == 0.0
        assert it.wait_lost(PATIENCE)
        with pytest.raises(LeaseLost, match="'b'"):
            it.check()
        assert held(engine) == ["a", "c"]
    assert caught.value.name == "b"
    assert held(engine) == []
    eventually(lambda: len(told) == 1)
    assert told[0].name == "b"


def test_a_release_after_a_loss_says_so_and_gives_the_others_back(engine: FaultyEngine) -> None:
    lease = make(engine).acquire()
    lose(engine, lease, "a")
    with pytest.raises(LeaseLost, match="'a'"):
        lease.release()
    assert held(engine) == []


def test_a_loss_that_only_the_release_finds_is_raised(engine: FaultyEngine) -> None:
    with pytest.raises(LeaseLost, match="'c'"), make(engine) as lease:
        mine = lease._claims[2]
        engine.faulty.give(mine.wanted.key, mine.id, None, clock.now() + 30)
    assert held(engine) == []


def test_the_errors_of_a_body_keep_the_loss_as_a_note(engine: FaultyEngine) -> None:
    with pytest.raises(ValueError, match="mine") as caught, make(engine) as lease:
        lose(engine, lease, "c")
        raise ValueError("mine")
    assert any("'c'" in words for words in caught.value.__notes__)


def test_a_lease_that_is_dropped_is_given_back_with_warnings(engine: FaultyEngine) -> None:
    with pytest.warns(ResourceWarning, match="dropped without a release"):
        make(engine).acquire()
        gc.collect()
    eventually(lambda: held(engine) == [])


def test_in_a_body_every_wait_for_one_of_its_names_is_refused(engine: FaultyEngine) -> None:
    lock = make(engine)
    with lock:
        for other in (Lock("b", store=engine), make(engine, ["c", "d"]), lock):
            with pytest.raises(Misuse, match="wait for itself"):
                other.acquire()
        assert lock.try_acquire() is None
        assert held(engine) == ["a", "b", "c"]
    with Lock("b", store=engine), pytest.raises(Misuse, match="wait for itself"):
        lock.acquire()
    with lock:
        pass


@pytest.mark.parametrize("names", [["a", "b"], ["b", "a"]])
def test_one_lock_serves_many_threads(engine: FaultyEngine, names: list[str]) -> None:
    lock, inside, overlaps = make(engine, names), 0, 0

    def work() -> None:
        nonlocal inside, overlaps
        for _ in range(10):
            with lock as lease:
                lease.check()
                inside += 1
                overlaps += inside > 1
                inside -= 1

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result(30)
    assert overlaps == 0


def test_what_cannot_work_is_refused_with_the_numbers_and_nothing_is_taken(
    engine: FaultyEngine,
) -> None:
    for kind in (MultiLock, AsyncMultiLock):
        for names, why in (
            ([], "0 of them; 1 to 64"),
            (["a", "b", "a"], "3 names, of which only 2"),
            ([f"n{number}" for number in range(65)], "65 of them; 1 to 64"),
            ("ab", "a list of names"),
            (["a", "b c"], "is not a name"),
        ):
            with pytest.raises(ConfigError, match=why):
                kind(names, store=engine)
        for setting in (
            {"once_per": "1h"},
            {"slot": "s"},
            {"at_least_for": 1},
            {"reentrant": True},
        ):
            with pytest.raises(ConfigError, match=f"{next(iter(setting))}: it is for a Lock"):
                kind(["a"], store=engine, **setting)
    assert engine.faulty.calls["take"] == 0


def test_a_client_makes_them_with_its_settings(engine: FaultyEngine) -> None:
    with Client(engine, namespace="bank", ttl=9, holder="me") as client:
        with client.multi_lock(["a", "b"], timeout=5) as lease:
            assert lease.remaining < 9
            assert held(engine) == []
            assert {found.key.name for found in client.scan() if found.holdings} == {"a", "b"}
        lock = client.multi_lock(["a"])
    with pytest.raises(Misuse, match="was closed"):
        lock.acquire()


# -- asyncio --------------------------------------------------------------------------------------


def test_a_task_holds_all_and_gives_all_back(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with incumbent.AsyncClient(engine) as client:
            async with client.multi_lock(NAMES, timeout=5) as lease:
                assert held(engine) == ["a", "b", "c"]
                assert await lease.renew() > 10
                assert not await lease.wait_lost(0.01)
                lease.check()
                assert await AsyncMultiLock(["c", "d"], store=client).try_acquire() is None
                with pytest.raises(Misuse, match="wait for itself"):
                    await AsyncLock("a", store=client).acquire()
            assert held(engine) == []
            with pytest.raises(AlreadyReleased):
                await lease.release()

    asyncio.run(scenario())


def test_the_body_of_a_task_is_cancelled_when_one_is_lost(engine: FaultyEngine) -> None:
    async def scenario() -> list[str]:
        async with AsyncMultiLock(NAMES, store=engine) as lease:
            try:
                await asyncio.to_thread(lose, engine, lease, "b")
                await asyncio.sleep(PATIENCE)
            finally:
                kept.extend(held(engine))
        return kept

    kept: list[str] = []
    with pytest.raises(LeaseLost, match="'b'"):
        asyncio.run(scenario())
    assert kept == ["a", "c"]
    assert held(engine) == []


def test_the_body_of_a_task_is_cancelled_once_before_the_first_of_them_runs_out(
    engine: FaultyEngine,
) -> None:
    cleaned: list[bool] = []

    async def scenario() -> None:
        async with AsyncMultiLock(NAMES, store=engine, ttl=2.4, grace=1.2) as lease:
            engine.faulty.down = True
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                await asyncio.sleep(0.05)  # a second cancellation would end the clean-up
                cleaned.append(lease.valid)

    with pytest.raises(LeaseLost, match="cancelled within the lease"):
        asyncio.run(scenario())
    assert cleaned == [True]


def test_a_cancellation_during_the_wait_leaves_none_of_them_held(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with AsyncLock("b", store=engine):
            waiting = asyncio.create_task(AsyncMultiLock(NAMES, store=engine, ttl=60).acquire())
            while engine.faulty.calls["take"] < 4:
                await asyncio.sleep(0.001)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        while held(engine):
            await asyncio.sleep(0.001)

    asyncio.run(scenario())
