"""Locks of `incumbent.compat` that tasks or threads share: nobody releases what another holds.

The reports: aredis 119, aioredis-py 1040, redis-py 3255. There a token is kept for each thread, and
tasks are of one thread.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

from incumbent import compat
from tests import tiers
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

SHORT, PATIENCE = 0.2, 30.0


@pytest.fixture
def name() -> str:
    return f"compat-{secrets.token_hex(6)}"


@pytest.fixture
def blocking(redis_server: RedisServer) -> Iterator[redis.Redis]:
    client = redis.Redis(port=redis_server.port)
    yield client
    client.close()


class Shared:
    """One object of asyncio, which many tasks call; each may ask for a time of its own."""

    def __init__(self, client: Any, name: str, kind: str) -> None:
        if kind == "RedisLock":
            self.lock: Any = compat.RedisLock(client, name)
        else:
            self.lock = compat.AsyncLock(client, name, thread_local=kind == "of the thread")

    async def acquire(self, timeout: float, wait: float = PATIENCE) -> bool:
        if isinstance(self.lock, compat.RedisLock):
            return await self.lock.acquire(timeout, wait)
        self.lock.timeout = timeout
        return bool(await self.lock.acquire(blocking_timeout=wait))

    async def release(self) -> str:
        lock = self.lock._lock if isinstance(self.lock, compat.RedisLock) else self.lock
        try:
            await lock.release()
        except compat.LockNotOwnedError:
            return "no longer owned"
        except compat.LockError:
            return "not held"
        return "released"


KINDS = ("of the thread", "of all", "RedisLock")


def with_client(server: RedisServer, scenario: Callable[[Any], Any]) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        try:
            await scenario(client)
        finally:
            await client.aclose()

    asyncio.run(main())


@pytest.mark.left(tiers.FORMS, "RedisLock", "of all")
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_outlived_its_lock_does_not_release_that_of_the_next(
    redis_server: RedisServer, name: str, kind: str
) -> None:
    async def scenario(client: Any) -> None:
        shared, got = Shared(client, name, kind), asyncio.Event()

        async def late() -> str:
            assert await shared.acquire(SHORT)
            await got.wait()
            return await shared.release()

        first = asyncio.create_task(late())
        await asyncio.sleep(0)
        assert await shared.acquire(PATIENCE)
        got.set()
        assert await first == "no longer owned"
        assert await client.exists(name)
        assert await shared.release() == "released"
        assert not await client.exists(name)

    with_client(redis_server, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_releases_what_another_task_acquired_and_left_to_it(
    redis_server: RedisServer, name: str, kind: str
) -> None:
    async def scenario(client: Any) -> None:
        shared = Shared(client, name, kind)
        assert await asyncio.create_task(shared.acquire(PATIENCE))
        assert await asyncio.create_task(shared.release()) == "released"
        # Python 3.11 awaits this in a task of its own.
        assert await asyncio.wait_for(shared.acquire(PATIENCE), PATIENCE)
        assert await asyncio.wait_for(shared.release(), PATIENCE) == "released"
        assert not await client.exists(name)

    with_client(redis_server, scenario)


def test_whoever_was_left_a_lock_releases_the_oldest_and_never_a_later_one(
    redis_server: RedisServer, name: str
) -> None:
    async def scenario(client: Any) -> None:
        shared = Shared(client, name, "of the thread")
        assert await asyncio.create_task(shared.acquire(SHORT))
        assert await shared.acquire(PATIENCE)
        assert await asyncio.create_task(shared.release()) == "no longer owned"
        assert await client.exists(name)
        assert await shared.release() == "released"

    with_client(redis_server, scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["released it before", "was refused"])
def test_a_task_that_has_no_lock_does_not_release_that_of_a_task_in_its_body(
    redis_server: RedisServer, name: str, kind: str, first: str
) -> None:
    async def scenario(client: Any) -> None:
        shared, end = Shared(client, name, kind), asyncio.Event()

        async def holds() -> str:
            assert await shared.acquire(PATIENCE)
            holding.set()
            await end.wait()
            return await shared.release()

        if first == "released it before":
            assert await shared.acquire(PATIENCE)
            assert await shared.release() == "released"
        holding = asyncio.Event()
        other = asyncio.create_task(holds())
        await holding.wait()
        if first == "was refused":
            assert not await shared.acquire(PATIENCE, wait=SHORT)
        assert await shared.release() == "not held"
        assert await client.exists(name)
        end.set()
        assert await other == "released"

    with_client(redis_server, scenario)


def test_ten_tasks_with_one_object_come_in_one_by_one(redis_server: RedisServer, name: str) -> None:
    async def scenario(client: Any) -> None:
        lock, inside, most = compat.AsyncLock(client, name, timeout=PATIENCE), 0, 0

        async def body() -> None:
            nonlocal inside, most
            async with lock:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.wait_for(asyncio.gather(*(body() for _ in range(10))), PATIENCE)
        assert most == 1

    with_client(redis_server, scenario)


def test_owned_and_extend_are_about_the_tasks_own_lock(
    redis_server: RedisServer, name: str
) -> None:
    async def scenario(client: Any) -> None:
        lock, next_one = compat.AsyncLock(client, name, timeout=SHORT), asyncio.Event()

        async def late() -> None:
            assert await lock.acquire()
            token = lock.local.token
            lock.timeout = PATIENCE
            await next_one.wait()
            assert lock.local.token == token
            assert not await lock.owned()
            with pytest.raises(compat.LockNotOwnedError):
                await lock.extend(PATIENCE)

        first = asyncio.create_task(late())
        await asyncio.sleep(0)
        assert await lock.acquire()
        next_one.set()
        await first
        assert await lock.owned()
        assert await lock.extend(PATIENCE)
        await lock.release()

    with_client(redis_server, scenario)


@pytest.mark.filterwarnings("ignore:.* waits in a running event loop:RuntimeWarning")
def test_tasks_that_share_a_blocking_lock_release_their_own(
    blocking: redis.Redis, name: str
) -> None:
    lock = compat.Lock(blocking, name, timeout=SHORT)

    async def main() -> None:
        got = asyncio.Event()

        async def late() -> None:
            assert lock.acquire()
            lock.timeout = PATIENCE
            await got.wait()
            with pytest.raises(compat.LockNotOwnedError):
                lock.release()

        first = asyncio.create_task(late())
        await asyncio.sleep(0)
        assert lock.acquire()
        got.set()
        await first
        assert lock.owned()
        lock.release()

    asyncio.run(main())


def test_threads_that_share_a_lock_of_all_release_their_own(
    blocking: redis.Redis, name: str
) -> None:
    lock, got = compat.Lock(blocking, name, timeout=SHORT, thread_local=False), threading.Event()
    taken = threading.Event()

    def late() -> None:
        assert lock.acquire()
        lock.timeout = PATIENCE
        taken.set()
        assert got.wait(PATIENCE)
        with pytest.raises(compat.LockNotOwnedError):
            lock.release()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(late)
        assert taken.wait(PATIENCE)
        assert lock.acquire()
        got.set()
        first.result()
        assert lock.owned()
        lock.release()


def test_a_thread_that_ends_leaves_a_threads_own_lock_to_nobody(
    blocking: redis.Redis, name: str
) -> None:
    lock = compat.Lock(blocking, name)
    with pytest.warns(ResourceWarning, match="dropped without a release"):
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        eventually(lambda: not blocking.exists(name))
    with pytest.raises(compat.LockError):
        lock.release()


def test_what_is_never_released_is_not_kept_for_ever(blocking: redis.Redis, name: str) -> None:
    lock = compat.Lock(blocking, name)
    kept = lock._kept

    async def keep() -> None:
        kept.keep(compat._KeptLease())

    async def main() -> None:
        await asyncio.gather(*(keep() for _ in range(3 * kept._MOST)))

    asyncio.run(main())
    assert len(kept._kept) == kept._MOST
