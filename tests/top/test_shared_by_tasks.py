"""Tasks that share one lock object: whoever outlived its lease does not end that of the next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from incumbent import (
    AsyncLock,
    AsyncMultiLock,
    AsyncSemaphore,
    LeaseLost,
    Lock,
    MultiLock,
    NotAcquired,
    NotHeld,
    Semaphore,
    clock,
)
from incumbent.runtime.link import link_for
from tests.support.faulty import FaultyEngine

PATIENCE = 5.0
Step = Callable[[], Awaitable[Any]]


def lose(engine: FaultyEngine, lease: Any) -> None:
    """Have the store forget the leases, and the keeper find out."""
    for claim in lease._claims:
        engine.faulty.give(claim.wanted.key, claim.id, None, clock.now() + 30)
        done = threading.Event()
        lease._link.keeper.renew_now(claim, done.set)
        assert done.wait(PATIENCE)


@pytest.fixture
def engine() -> Iterator[FaultyEngine]:
    made = FaultyEngine()
    yield made
    link_for(made).close()


async def one_after_the_other(engine: FaultyEngine, first: Any, second: Any) -> None:
    """`first` gets a lease and loses it; then `second` gets one; then `first` goes on."""
    lost, taken = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        async def wait(lease: Any) -> None:
            lose(engine, lease)
            lost.set()
            await taken.wait()

        with pytest.raises(LeaseLost):
            await first(wait)

    task = asyncio.create_task(late())
    await lost.wait()

    async def meanwhile(lease: Any) -> None:
        taken.set()
        await task
        lease.check()

    await second(meanwhile)


@pytest.mark.parametrize("kind", [Lock, Semaphore])
def test_a_release_through_a_blocking_lock_is_that_of_the_tasks_own_lease(
    engine: FaultyEngine, kind: Any
) -> None:
    more = {} if kind is Lock else {"permits": 1}
    lock = kind("a", store=engine, timeout=0, **more)

    async def user(work: Callable[[Any], Awaitable[None]]) -> None:
        lease = lock.acquire()
        await work(lease)
        assert lock.owned() == lease.valid
        assert lock.release()

    asyncio.run(one_after_the_other(engine, user, user))
    assert not lock.locked()


@pytest.mark.parametrize(
    "make",
    [
        lambda store: Lock("a", store=store, timeout=0),
        lambda store: Lock("a", store=store, timeout=0, reentrant=True),
        lambda store: Semaphore("a", 1, store=store, timeout=0),
        lambda store: MultiLock(["a", "b"], store=store, timeout=0),
    ],
)
def test_a_body_of_a_blocking_lock_ends_the_tasks_own_lease(
    engine: FaultyEngine, make: Callable[[Any], Any]
) -> None:
    lock = make(engine)

    async def user(work: Callable[[Any], Awaitable[None]]) -> None:
        with lock as lease:
            await work(lease)

    asyncio.run(one_after_the_other(engine, user, user))


@pytest.mark.parametrize(
    "make",
    [
        lambda store: AsyncLock("a", store=store, timeout=0),
        lambda store: AsyncLock("a", store=store, timeout=0, reentrant=True),
        lambda store: AsyncSemaphore("a", 1, store=store, timeout=0),
        lambda store: AsyncMultiLock(["a", "b"], store=store, timeout=0),
    ],
)
def test_a_body_of_asyncio_ends_the_tasks_own_lease(
    engine: FaultyEngine, make: Callable[[Any], Any]
) -> None:
    lock = make(engine)

    async def user(work: Callable[[Any], Awaitable[None]]) -> None:
        async with lock as lease:
            await asyncio.shield(asyncio.ensure_future(work(lease)))

    asyncio.run(one_after_the_other(engine, user, user))


def test_another_task_of_the_thread_releases_what_was_left_to_it(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine, timeout=0)

    async def acquire() -> None:
        lock.acquire()

    async def release() -> bool:
        return lock.release()

    async def main() -> None:
        await asyncio.create_task(acquire())
        assert await asyncio.create_task(release())
        assert not lock.locked()

    asyncio.run(main())


@pytest.mark.parametrize("before", ["released it", "was refused", "never asked"])
def test_another_task_does_not_release_what_a_task_holds_that_goes_on(
    engine: FaultyEngine, before: str
) -> None:
    lock = Lock("a", store=engine, timeout=0)

    async def main() -> None:
        taken, end = asyncio.Event(), asyncio.Event()

        async def holds() -> None:
            lease = lock.acquire()
            taken.set()
            await end.wait()
            lease.check()
            assert lock.release()

        if before == "released it":
            lock.acquire()
            assert lock.release()
        task = asyncio.create_task(holds())
        await taken.wait()
        if before == "was refused":
            with pytest.raises(NotAcquired):
                lock.acquire()
        assert not lock.owned()
        with pytest.raises(NotHeld):
            lock.release()
        end.set()
        await task

    asyncio.run(main())


def test_another_thread_releases_nothing(engine: FaultyEngine) -> None:
    lock, said = Lock("a", store=engine), list[BaseException]()
    lease = lock.acquire()

    def release() -> None:
        try:
            lock.release()
        except NotHeld as error:
            said.append(error)

    thread = threading.Thread(target=release)
    thread.start()
    thread.join()
    assert len(said) == 1
    assert lease.release()
