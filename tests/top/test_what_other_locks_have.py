"""`locked`, `owned`, `release`: each says what it asks, and "don't know" is no answer of theirs."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

import incumbent
from incumbent import AsyncLock, Lock
from tests.support.faulty import Fault, FaultyEngine
from tests.support.waiting import eventually

T = TypeVar("T")


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def in_another_thread(call: Callable[[], T]) -> T:
    """What it returns, or raises, there."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    if errors:
        raise errors[0]
    return results[0]


def test_who_keeps_only_the_lock_holds_it_until_release(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine)
    assert not lock.owned()
    lock.acquire()
    gc.collect()
    assert lock.owned()
    assert Lock("a", store=engine).try_acquire() is None
    assert lock.release()
    assert not lock.owned()
    assert not lock.locked()
    with pytest.raises(incumbent.AlreadyReleased):
        lock.release()


def test_locked_asks_the_store_about_everybody(engine: FaultyEngine) -> None:
    other = Lock("a", store=engine)
    assert not other.locked()
    with Lock("a", store=engine):
        assert other.locked()
        assert not other.owned()


def test_locked_without_an_answer_is_neither_yes_nor_no(engine: FaultyEngine) -> None:
    engine.faulty.plan("read", Fault.NOT_SENT)
    with pytest.raises(incumbent.StoreUnavailable):
        Lock("a", store=engine).locked()


def test_owned_asks_no_store_and_ends_with_the_proof(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine, ttl=3, grace=0.5)
    lease = lock.acquire()
    engine.faulty.down = True
    reads = engine.faulty.calls["read"]
    assert lock.owned()
    assert lease.wait_lost(20)
    assert not lock.owned()
    assert engine.faulty.calls["read"] == reads
    with pytest.raises(incumbent.LeaseLost):
        lock.release()


def test_another_thread_neither_owns_nor_releases_what_this_one_acquired(
    engine: FaultyEngine,
) -> None:
    lock = Lock("a", store=engine)
    lease = lock.acquire()
    assert not in_another_thread(lock.owned)
    with pytest.raises(incumbent.NotHeld, match="acquired no lease"):
        in_another_thread(lock.release)
    assert in_another_thread(lease.release)


def test_a_lease_that_was_lost_releases_nothing_of_who_holds_it_now(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine)
    engine.faulty.down = True
    lost = Lock("a", store=engine, ttl=0.3)
    engine.faulty.down = False
    first = lost.acquire()
    engine.faulty.down = True
    assert first.wait_lost(20)
    engine.faulty.down = False
    with lock as second:
        with pytest.raises(incumbent.LeaseLost):
            lost.release()
        assert second.renew() > 0


def test_inside_the_with_release_ends_the_lease(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine)
    with lock:
        assert lock.owned()
        assert lock.release()
    assert not lock.owned()


def test_a_second_acquire_that_would_wait_for_its_own_caller_is_told_so(
    engine: FaultyEngine,
) -> None:
    lock = Lock("a", store=engine)
    lock.acquire()
    assert lock.try_acquire() is None
    assert lock.owned()
    with (
        pytest.warns(ResourceWarning, match="dropped"),
        pytest.raises(incumbent.Misuse, match="wait for itself"),
    ):
        lock.acquire()
    eventually(lambda: not lock.locked())
    with lock:
        pass


def test_who_kept_the_lease_may_wait_for_its_end(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine)
    lease = lock.acquire()
    threading.Timer(0.1, lease.release).start()
    with lock:
        assert not lease.valid
    lease = lock.acquire()
    with pytest.raises(incumbent.AcquireTimeout):
        lock.acquire(timeout="20ms")
    lease.release()
    # Inside of its own body nobody else can end it.
    with lock.acquire(), pytest.raises(incumbent.Misuse, match="would wait for itself"):
        lock.acquire(timeout="20ms")


def test_what_a_thread_left_behind_is_given_back_at_its_end(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine)
    with pytest.warns(ResourceWarning, match="dropped"):
        in_another_thread(lambda: bool(lock.acquire().valid))
        gc.collect()
    eventually(lambda: not lock.locked())


def test_tasks_are_told_apart_as_threads_are(engine: FaultyEngine) -> None:
    lock = AsyncLock("a", store=engine)

    async def other() -> None:
        assert not lock.owned()
        assert await lock.locked()
        with pytest.raises(incumbent.NotHeld):
            await lock.release()

    async def main() -> None:
        assert not await lock.locked()
        await lock.acquire()
        assert lock.owned()
        assert await lock.try_acquire() is None
        await asyncio.create_task(other())
        assert await lock.release()
        assert not lock.owned()
        async with lock:
            assert lock.owned()

    asyncio.run(main())


def test_a_task_that_fails_does_not_keep_its_lease(engine: FaultyEngine) -> None:
    lock = AsyncLock("a", store=engine)

    async def work() -> None:
        await lock.acquire()
        raise ValueError

    async def main() -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - the work's own
            await asyncio.create_task(work())

    with pytest.warns(ResourceWarning, match="dropped"):
        asyncio.run(main())
        gc.collect()
    eventually(lambda: not Lock("a", store=engine).locked())


def test_every_error_is_an_incumbent_error(engine: FaultyEngine) -> None:
    from incumbent import errors

    assert all(issubclass(getattr(errors, name), incumbent.Error) for name in errors.__all__)
    with pytest.raises(incumbent.Error, match="not a name"):
        Lock("a b", store=engine)
