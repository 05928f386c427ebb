"""A lease has one body, a `with` ends the lease that it began, and a lease that is dropped ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from incumbent import (
    AsyncLock,
    AsyncMultiLock,
    AsyncSemaphore,
    Election,
    Lock,
    Misuse,
    MultiLock,
    NotAcquired,
    ReadWriteLock,
    Semaphore,
)
from incumbent.locks.callers import bodies_of_thread
from tests.support.faulty import FaultyEngine
from tests.support.pace import LONG
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


@pytest.mark.parametrize("make", [Lock, lambda name, **of: MultiLock([name, "b"], **of)])
def test_a_lease_that_is_entered_twice_is_refused_and_the_first_body_keeps_it(
    engine: FaultyEngine, make: Any
) -> None:
    with make("a", store=engine) as lease:
        with pytest.raises(Misuse, match="one body"), lease:
            pass
        assert lease.valid
    assert not Lock("a", store=engine).locked()


def test_a_thread_that_leaves_a_body_is_in_none(engine: FaultyEngine) -> None:
    lock = MultiLock(["a", "b"], store=engine)
    for _ in range(3):
        with lock:
            assert len(bodies_of_thread()) == 2
    assert not bodies_of_thread()


@pytest.mark.parametrize("make", [AsyncLock, lambda name, **of: AsyncMultiLock([name, "b"], **of)])
def test_a_task_that_enters_the_lease_of_another_is_refused_and_the_other_goes_on(
    engine: FaultyEngine, make: Any
) -> None:
    async def second(lease: Any) -> None:
        async with lease:
            raise AssertionError("it has no second body")

    async def scenario() -> None:
        async with make("a", store=engine) as lease:
            with pytest.raises(Misuse, match="one body"):
                await asyncio.create_task(second(lease))
            await asyncio.sleep(0)
            assert lease.valid
        assert not await AsyncLock("a", store=engine).locked()

    asyncio.run(scenario())


def test_a_lease_of_its_own_is_not_acquired_in_a_body_whose_lease_was_released(
    engine: FaultyEngine,
) -> None:
    lock = Lock("a", store=engine)
    with lock:
        lock.release()
        with pytest.raises(Misuse, match="leave the `with` first"):
            lock.acquire()
        with lock as again:
            assert again.valid
    assert not lock.locked()
    lock.acquire()
    assert lock.release()


def test_it_is_the_same_for_a_task(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        lock = AsyncLock("a", store=engine)
        async with lock:
            await lock.release()
            with pytest.raises(Misuse, match="leave the `with` first"):
                await lock.acquire()
        assert not await lock.locked()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [{"on_lost": print}, {"if_lost": "exit"}, {}])
def test_a_lease_that_is_dropped_is_given_back_at_once_whoever_asked_for_its_loss(
    engine: FaultyEngine, how: dict[str, Any]
) -> None:
    gc.disable()
    try:
        with pytest.warns(ResourceWarning):
            Election("a", store=engine, **how).campaign()
        eventually(lambda: not Lock("a", store=engine).locked())
    finally:
        gc.enable()


def kept_open(lock: Any) -> Iterator[Any]:
    """As a dependency of a web framework, whose threads take turns in its steps."""
    with lock as lease:
        yield lease


async def kept_open_by_tasks(lock: Any) -> AsyncGenerator[Any, None]:
    async with lock as lease:
        yield lease


@pytest.mark.parametrize(
    "make", [lambda **of: Semaphore("a", 2, **of), lambda **of: ReadWriteLock("a", **of).read]
)
def test_a_generator_that_another_thread_resumes_ends_its_own_lease_alone(
    engine: FaultyEngine, make: Any
) -> None:
    lock = make(store=engine)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        first, second = kept_open(lock), kept_open(lock)
        mine, theirs = one.submit(next, first).result(), two.submit(next, second).result()
        two.submit(next, first, None).result()
        assert theirs.valid
        assert not mine.valid
        one.submit(next, second, None).result()
        assert not theirs.valid
    assert not lock._holdings()


@pytest.mark.parametrize(
    "make", [lambda **of: Semaphore("a", 2, **of), lambda **of: ReadWriteLock("a", **of).read]
)
def test_a_body_that_only_tries_gets_another_permit_of_the_same_lock(
    engine: FaultyEngine, make: Any
) -> None:
    lock = make(store=engine, timeout=0)
    with lock as outer:
        with lock as inner:
            assert inner.fencing_token != outer.fencing_token
        assert outer.valid
        assert not inner.valid
    assert not lock._holdings()


def test_a_task_that_only_tries_gets_another_permit_while_one_is_left(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        lock = AsyncSemaphore("a", 2, store=engine, timeout=0)
        async with lock as outer, lock as inner:
            assert outer.valid
            assert inner.valid
            with pytest.raises(NotAcquired):
                await lock.__aenter__()
        assert not await lock._holdings()
        one = AsyncLock("b", store=engine, timeout=0)
        with pytest.raises(Misuse, match="wait for itself"):
            async with one, one:
                pass

    asyncio.run(scenario())


def test_a_generator_that_another_task_resumes_ends_its_own_lease_alone(
    engine: FaultyEngine,
) -> None:
    async def scenario() -> None:
        lock = AsyncSemaphore("a", 2, store=engine)
        first, second = kept_open_by_tasks(lock), kept_open_by_tasks(lock)
        mine = await asyncio.create_task(first.__anext__())
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def other() -> None:
            theirs = await anext(second)
            entered.set()
            await go_on.wait()
            await anext(first, None)
            assert theirs.valid
            assert not mine.valid
            await anext(second, None)
            assert not theirs.valid

        task = asyncio.create_task(other())
        await entered.wait()
        go_on.set()
        await task
        assert not await lock._holdings()

    asyncio.run(scenario())


def test_a_release_that_is_given_too_little_time_ends_in_a_timeout_inside_of_the_body(
    engine: FaultyEngine,
) -> None:
    """`wait_for` of Python 3.11 runs the release in a task of its own."""

    async def scenario() -> None:
        async with AsyncLock("a", store=engine) as lease:
            engine.faulty.delay = LONG
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lease.release(), 0.05)
            engine.faulty.delay = 0.0
            # Nobody cancels it afterwards either.
            await asyncio.sleep(0.05)
        async with asyncio.timeout(LONG):
            while await AsyncLock("a", store=engine).locked():
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_a_lock_is_released_by_its_task_also_within_wait_for(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        lock = AsyncLock("a", store=engine)
        await lock.acquire()
        assert await asyncio.wait_for(lock.release(), LONG)
        assert not await lock.locked()

    asyncio.run(scenario())


def test_a_lease_is_released_from_outside_of_its_loop(engine: FaultyEngine) -> None:
    async def scenario() -> Any:
        return await AsyncLock("a", store=engine).acquire()

    lease = asyncio.run(scenario())
    assert asyncio.run(lease.release())
