"""Reentrant locks: the caller that holds a lease enters it again, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import incumbent
from incumbent import AsyncLock, Client, Election, LeaseLost, Lock, Misuse, clock
from incumbent.locks.callers import bodies_of_thread, enter
from tests.support.faulty import FaultyEngine
from tests.support.forks import in_a_child
from tests.support.waiting import eventually

PATIENCE = 5.0


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def make(engine: FaultyEngine, name: str = "a", **settings: Any) -> Lock:
    return Lock(name, store=engine, reentrant=True, **settings)


def make_async(engine: FaultyEngine, name: str = "a", **settings: Any) -> AsyncLock:
    return AsyncLock(name, store=engine, reentrant=True, **settings)


def lose(engine: FaultyEngine, lease: Any) -> None:
    """Have the store forget the lease, and the keeper find out."""
    belief = lease.belief
    engine.faulty.give(belief.key, belief.claim_id, None, clock.now() + 30)
    done = threading.Event()
    belief.link.keeper.renew_now(lease._claim, done.set)
    assert done.wait(PATIENCE)


def calls(engine: FaultyEngine) -> tuple[int, int]:
    return engine.faulty.calls["take"], engine.faulty.calls["give"]


def test_the_holder_enters_again_without_a_request_and_only_the_outermost_exit_gives_back(
    engine: FaultyEngine,
) -> None:
    lock = make(engine)
    with lock as outer:
        with lock as inner, Lock("a", store=engine, reentrant=True) as third:
            assert third is not outer
            assert third.fencing_token == inner.fencing_token == outer.fencing_token
            assert third.remaining == pytest.approx(outer.remaining, abs=5)
            assert calls(engine) == (1, 0)
        assert outer.valid
        assert lock.locked()
        with pytest.raises(incumbent.AlreadyReleased):
            inner.check()
        assert (inner.valid, inner.lost, inner.remaining) == (False, False, 0.0)
        assert inner.fencing_token == outer.fencing_token
        assert calls(engine) == (1, 0)
    assert calls(engine) == (1, 1)
    assert not lock.locked()


def test_tries_and_waits_inside_enter_again(engine: FaultyEngine) -> None:
    lock = make(engine, timeout=0)
    with lock:
        for again in (lock.acquire(), lock.acquire(0), lock.acquire(1), lock.try_acquire()):
            assert again is not None
            assert again.release()
        with pytest.raises(incumbent.ConfigError):
            lock.acquire("soon")
    assert calls(engine) == (1, 1)


def test_release_of_the_lock_counts_as_that_of_an_rlock_does(engine: FaultyEngine) -> None:
    lock = make(engine)
    lock.acquire()
    lock.acquire()
    gc.collect()
    assert lock.owned()
    assert lock.release()
    assert lock.owned()
    assert lock.locked()
    assert lock.release()
    assert not lock.owned()
    assert not lock.locked()
    with pytest.raises(incumbent.AlreadyReleased):
        lock.release()


def test_release_of_the_lock_ends_what_was_acquired_inside_a_body_and_not_the_body(
    engine: FaultyEngine,
) -> None:
    lock = make(engine)
    with lock as outer:
        lock.acquire()
        assert lock.release()
        outer.check()
        assert lock.release()
        assert not outer.valid
    assert calls(engine) == (1, 1)


def test_a_second_release_of_an_inner_lease_does_not_end_the_outer_one(
    engine: FaultyEngine,
) -> None:
    lock = make(engine)
    with lock as outer:
        inner = lock.acquire()
        inner.release()
        with pytest.raises(incumbent.AlreadyReleased):
            inner.release()
        outer.check()


def test_leases_may_be_released_in_any_order(engine: FaultyEngine) -> None:
    outer, inner = make(engine).acquire(), make(engine).acquire()
    assert outer.release()
    assert not outer.valid
    inner.check()
    assert calls(engine) == (1, 0)
    assert inner.release()
    assert calls(engine) == (1, 1)
    with make(engine) as later:
        assert later.fencing_token > inner.fencing_token


def test_an_inner_lease_that_is_dropped_gives_the_lease_back_with_a_warning(
    engine: FaultyEngine,
) -> None:
    outer, inner = make(engine).acquire(), make(engine).acquire()
    outer.release()
    with pytest.warns(ResourceWarning, match="dropped without a release"):
        del inner
        gc.collect()
    eventually(lambda: not make(engine).locked())


def test_after_a_loss_nothing_is_taken_anew_until_the_outermost_body_is_left(
    engine: FaultyEngine,
) -> None:
    lock = make(engine)
    with pytest.raises(LeaseLost) as caught, lock as outer:
        lose(engine, outer)
        before = calls(engine)
        for again in (lock.acquire, lock.try_acquire, lock.__enter__, make(engine).acquire):
            with pytest.raises(LeaseLost, match="'a'"):
                again()
        assert calls(engine) == before
    assert caught.value.reason == "taken"
    with lock as anew:
        anew.check()
        assert anew is not outer


def test_an_inner_body_that_outlived_its_lease_ends_in_the_loss_as_does_the_outer(
    engine: FaultyEngine,
) -> None:
    lock = make(engine)
    ended = []
    with pytest.raises(LeaseLost), lock as outer:
        with contextlib.suppress(LeaseLost), lock as inner:
            lose(engine, outer)
        ended.append(inner.lost)
    assert ended == [True]
    with lock:
        pass


def test_what_was_acquired_and_lost_is_let_go_of_by_its_release(engine: FaultyEngine) -> None:
    lock = make(engine)
    lease = lock.acquire()
    lose(engine, lease)
    with pytest.raises(LeaseLost):
        lock.acquire()
    with pytest.raises(LeaseLost):
        lock.release()
    assert lock.acquire().release()


def test_another_thread_is_another_caller(engine: FaultyEngine) -> None:
    lock = make(engine)
    with ThreadPoolExecutor(1) as pool:
        with lock:
            assert pool.submit(lock.try_acquire).result() is None
            assert not pool.submit(lock.owned).result()
            waiting = pool.submit(lambda: lock.acquire(PATIENCE).release())
            eventually(lambda: engine.faulty.calls["take"] >= 3)
            assert lock.owned()
            assert not waiting.done()
        assert waiting.result(PATIENCE)


def test_a_lock_that_is_not_reentrant_enters_nothing_again(engine: FaultyEngine) -> None:
    plain = Lock("a", store=engine)
    with make(engine):
        with pytest.raises(Misuse, match="wait for itself"):
            plain.acquire()
        assert plain.try_acquire() is None
    with plain:
        with pytest.raises(Misuse, match="wait for itself"):
            make(engine).acquire()
        assert make(engine).try_acquire() is None


def test_other_names_namespaces_and_stores_are_other_locks(engine: FaultyEngine) -> None:
    with make(engine), make(engine, "b"), make(engine, namespace="other"), make(FaultyEngine()):
        assert engine.faulty.calls["take"] == 3


def test_two_clients_of_one_store_share_what_the_caller_holds(engine: FaultyEngine) -> None:
    with Client(engine, reentrant=True) as one, Client(engine) as two:
        with one.lock("a") as outer, two.lock("a", reentrant=True) as inner:
            assert inner.fencing_token == outer.fencing_token
            assert inner.renew() > 1
        assert calls(engine) == (1, 1)


def test_what_is_wrong_is_refused_when_the_lock_is_built(engine: FaultyEngine) -> None:
    for kind in (Lock, AsyncLock):
        with pytest.raises(incumbent.ConfigError, match="reentrant=True and once_per"):
            kind("a", store=engine, reentrant=True, once_per="1h")
        with pytest.raises(incumbent.ConfigError, match="once_per"):
            kind("a", store=engine, reentrant=True, slot="s")
    for refused in (
        lambda: Election("a", store=engine, reentrant=True),
        lambda: incumbent.Semaphore("a", 2, store=engine, reentrant=True),
    ):
        with pytest.raises(incumbent.ConfigError, match="only a Lock"):
            refused()
    assert calls(engine) == (0, 0)


def test_a_function_around_which_a_lease_is_taken_may_call_itself(engine: FaultyEngine) -> None:
    @incumbent.exclusive("tree", store=engine, reentrant=True)
    def depth(nodes: list[Any]) -> int:
        incumbent.current().check()
        return 1 + max(map(depth, nodes), default=0)

    @incumbent.exclusive("tree", store=engine, reentrant=True, if_held="skip")
    async def height(nodes: list[Any]) -> int:
        return 1 + max([await height(node) or 0 for node in nodes], default=0)

    assert depth([[], [[]]]) == 3
    assert asyncio.run(height([[], [[]]])) == 3
    assert calls(engine) == (2, 2)


def test_the_inner_settings_are_those_of_the_outer_lease(engine: FaultyEngine) -> None:
    with make(engine, holder="outer", ttl=9), make(engine, holder="inner", ttl=30) as inner:
        assert inner.holder == "outer"
        assert inner.remaining < 9


def test_a_lease_is_not_entered_again_in_a_forks_child(engine: FaultyEngine) -> None:
    lock = make(engine)
    with lock as lease:

        def tried() -> int:
            with pytest.raises(incumbent.NotAcquired):
                lock.acquire(0)
            return 7 if lease.lost else 8

        assert in_a_child(tried) == 7


# -- asyncio --------------------------------------------------------------------------------------


def test_a_task_enters_again_and_its_children_wait(engine: FaultyEngine) -> None:
    lock = make_async(engine)

    async def child() -> int:
        async with lock as lease:
            return lease.fencing_token

    async def scenario() -> None:
        async with lock as outer:
            async with lock as inner:
                assert inner.fencing_token == outer.fencing_token
                assert calls(engine) == (1, 0)
                waiting = asyncio.create_task(child())
                while engine.faulty.calls["take"] < 2:
                    await asyncio.sleep(0.001)
            assert await lock.locked()
            outer.check()
            again = await lock.try_acquire()
            assert again is not None
            assert await again.release()
            assert lock.owned()
            assert not waiting.done()
        assert await waiting > outer.fencing_token
        assert not lock.owned()

    asyncio.run(scenario())
    assert engine.faulty.calls["give"] == 2


def test_a_blocking_lock_does_not_enter_what_a_suspended_task_of_its_thread_holds(
    engine: FaultyEngine,
) -> None:
    lock = make(engine)

    async def holds(entered: asyncio.Event, leave: asyncio.Event) -> None:
        with lock as lease:
            with lock:
                entered.set()
                await leave.wait()
            lease.check()

    async def scenario() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(holds(entered, leave))
        await entered.wait()
        assert lock.try_acquire() is None
        with pytest.raises(Misuse, match="wait for itself"):
            lock.acquire(1)
        assert not lock.owned()
        leave.set()
        await holder

    asyncio.run(scenario())
    with lock:

        async def within() -> None:
            # The thread's body encloses every task, so none of them may take it for its own.
            assert lock.try_acquire() is None

        asyncio.run(within())
    assert engine.faulty.calls["give"] == 2


def test_a_blocking_body_inside_a_task_is_entered_by_the_same_task_in_both_ways(
    engine: FaultyEngine,
) -> None:
    async def scenario() -> None:
        async with make_async(engine) as outer:
            with make(engine) as inner:
                assert inner.fencing_token == outer.fencing_token
            assert outer.valid

    asyncio.run(scenario())
    assert calls(engine) == (1, 1)


@pytest.mark.parametrize("swallows", [False, True])
def test_both_bodies_are_cancelled_before_the_proof_runs_out(
    engine: FaultyEngine, *, swallows: bool
) -> None:
    lock = make_async(engine, ttl=3, grace=1.5)
    seen = []

    async def scenario() -> None:
        async with lock as outer:
            engine.faulty.down = True
            with contextlib.suppress(LeaseLost) if swallows else contextlib.nullcontext():
                async with lock:
                    try:
                        await asyncio.sleep(PATIENCE)
                    finally:
                        seen.append(outer.valid)
            await asyncio.sleep(PATIENCE)

    began = time.monotonic()
    with pytest.raises(LeaseLost):
        asyncio.run(scenario())
    assert seen == [True]
    assert time.monotonic() - began < PATIENCE


def test_a_cancellation_from_elsewhere_stays_one(engine: FaultyEngine) -> None:
    lock = make_async(engine)

    async def nested() -> None:
        async with lock, lock:
            await asyncio.sleep(PATIENCE)

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await nested()
        assert not await lock.locked()

    asyncio.run(scenario())
    assert calls(engine) == (1, 1)


def test_inner_bodies_leave_nothing_behind_on_the_outer_lease(engine: FaultyEngine) -> None:
    lock = make_async(engine)

    async def scenario() -> None:
        async with lock as outer:
            watchers = len(outer._claim.watchers)
            for _ in range(20):
                async with lock:
                    pass
                (await lock.acquire()).check()
                await lock.release()
            assert len(outer._claim.watchers) == watchers
            assert outer._claim.reentries == []

    asyncio.run(scenario())


def test_many_threads_that_enter_twice_never_overlap(engine: FaultyEngine) -> None:
    lock = make(engine)
    inside = overlaps = 0

    def helper(call: Callable[[], None]) -> None:
        with lock:
            call()

    def work() -> None:
        nonlocal inside, overlaps
        for _ in range(20):
            with lock as lease:
                inside += 1
                overlaps += inside > 1
                helper(lease.check)
                inside -= 1

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work) for _ in range(6)]:
            done.result(30)
    assert overlaps == 0
    assert engine.faulty.calls["give"] == 120


def test_the_holding_of_a_thread_that_ended_inside_ends_too(engine: FaultyEngine) -> None:
    lock = make(engine, ttl=1.0)

    def enter() -> None:
        lock.__enter__()

    with pytest.warns(ResourceWarning, match="dropped without a release"):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        del thread
        gc.collect()
    eventually(lambda: not Lock("a", store=engine).locked())


# -- interruptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["_enter", "_exit_body"])
def test_an_inner_body_that_is_interrupted_costs_the_outer_one_nothing(
    engine: FaultyEngine, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[LeaseLost]()
    lock = make(engine, on_lost=lost.append)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with lock as outer:
        watchers = outer._claim.watchers
        of = incumbent.Lease if at == "_exit_body" else Lock
        with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
            if at == "_enter":
                patch.setattr(of, at, interrupted)
            with lock:
                patch.setattr(of, at, interrupted)
        assert outer.valid
        assert outer._claim.ref in outer.belief.link.keeper.refs()
        assert outer._claim.watchers == watchers
        assert not lost
        # It is still known as a body that would wait for its own name.
        with pytest.raises(Misuse, match="wait for itself"):
            Lock("a", store=engine).acquire()
    assert not lost
    assert not lock.locked()


def test_an_inner_entry_that_is_interrupted_leaves_no_body_behind(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, before = make(engine), list(bodies_of_thread())

    def entered_and_interrupted(*given: Any) -> Any:
        enter(*given)
        raise KeyboardInterrupt

    with lock, pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr("incumbent.locks.leases.enter", entered_and_interrupted)
        with lock:
            pass
    assert bodies_of_thread() == before
