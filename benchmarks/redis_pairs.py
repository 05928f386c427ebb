"""One uncontended acquire and release on Redis; the unit is the bare two commands of redis-py."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import coredis
import pottery
import redis
import redis.asyncio
import redis_lock
from portalocker.redis import RedisLock
from redis.asyncio.lock import Lock as RedisAsyncLock
from redlock import Redlock
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer
from tooz import coordination

from benchmarks.harness import Contender, Row, compare
from incumbent import AsyncLock, Lock

__all__ = ["async_many_rows", "async_rows", "sync_rows"]

_RELEASE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""
_TTL_MS = 15_000
_TASKS = 100
_EACH = 5
"""Pairs of each task in one measured piece of work."""

_Locking = Callable[[str], Awaitable[object]]
"""An acquire and release of the named lock."""


def sync_rows(turns: int, pairs: int) -> list[Row]:
    """Blocking clients, client and server on one core."""
    with RedisServer() as server, redis.Redis(port=server.port) as client:
        sha = str(client.script_load(_RELEASE))
        # In the first minute tokens run ahead of the clock, and a take is a little slower.
        pretend_age(server.url, server)
        ours = Lock("pair", store=f"{server.url}?restart_wait=0", ttl=15)

        def bare() -> None:
            value = os.urandom(16)
            client.set("bare", value, nx=True, px=_TTL_MS)
            client.evalsha(sha, 1, "bare", value)

        def incumbent_lock() -> None:
            ours.acquire().release()

        contenders = [
            Contender("bare SET NX PX + EVALSHA, redis-py", bare),
            Contender("incumbent Lock: fenced, renewed", incumbent_lock, 0.65),
        ]
        with _peers(server, client) as peers:
            return compare(contenders + peers, turns, pairs)


@contextmanager
def _peers(server: RedisServer, client: redis.Redis) -> Iterator[list[Contender]]:
    coordinator: Any = coordination.get_coordinator(f"redis://127.0.0.1:{server.port}", b"bench")
    coordinator.start()
    tooz_lock = coordinator.get_lock(b"tooz")
    redlock = Redlock([server.url])

    def redis_py_lock() -> None:
        lock = client.lock("redis-py", timeout=15)
        lock.acquire()
        lock.release()

    def python_redis_lock() -> None:
        lock = redis_lock.Lock(client, "python-redis-lock", expire=15)
        lock.acquire()
        lock.release()

    def redlock_ng() -> None:
        lock = redlock.acquire("redlock-ng", _TTL_MS)
        if lock is None:
            raise RuntimeError("redlock-ng did not get its own lock")
        redlock.release(lock)

    def tooz() -> None:
        tooz_lock.acquire()
        tooz_lock.release()

    def pottery_redlock() -> None:
        lock: Any = pottery.Redlock(key="pottery", masters={client}, auto_release_time=15)
        lock.acquire()
        lock.release()

    def portalocker() -> None:
        # Its holding is a subscription: no ttl, a connection and a thread for each.
        lock = RedisLock("portalocker", client, thread_sleep_time=0.001)
        lock.acquire()
        lock.release()

    yield [
        Contender("redis-py Lock", redis_py_lock),
        Contender("python-redis-lock", python_redis_lock),
        Contender("redlock-ng, one server", redlock_ng),
        Contender("tooz redis", tooz),
        Contender("pottery Redlock, one server", pottery_redlock),
        Contender("portalocker RedisLock", portalocker),
    ]
    coordinator.stop()


def async_rows(turns: int, pairs: int) -> list[Row]:
    """One task, client and server on one core; the unit is the bare two commands."""
    with _loop() as loop, RedisServer() as server:
        client = redis.asyncio.Redis(port=server.port)
        sha = loop.run_until_complete(client.script_load(_RELEASE))

        async def bare(name: str) -> None:
            value = os.urandom(16)
            await client.set(name, value, nx=True, px=_TTL_MS)
            await client.evalsha(sha, 1, name, value)

        with _async_peers(loop, server) as (ours, peers):
            contenders = [
                Contender("bare SET NX PX + EVALSHA, redis.asyncio", _alone(bare)),
                Contender("incumbent AsyncLock: fenced, renewed", _alone(ours), 1.1),
                *(Contender(name, _alone(locking)) for name, locking in peers),
            ]
            rows = compare(contenders, turns, pairs)
        loop.run_until_complete(client.aclose())
    return rows


def async_many_rows(turns: int, pairs: int) -> list[Row]:
    """100 tasks, each with a name of its own; the unit is redis.asyncio's Lock on one connection.

    `microseconds` are of one pair: of what one task waits for meanwhile, it is the hundredth part.
    """
    with _loop() as loop, RedisServer() as server, _async_peers(loop, server) as (ours, peers):
        (unit, on_one), *others = peers
        contenders = [
            Contender(unit, _together(on_one)),
            Contender("incumbent AsyncLock, one connection", _together(ours), 0.25),
            *(Contender(name, _together(locking)) for name, locking in others),
        ]
        rows = compare(contenders, turns, max(1, pairs // (_TASKS * _EACH)))
        return [replace(row, microseconds=row.microseconds / (_TASKS * _EACH)) for row in rows]


def _alone(locking: _Locking) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        await locking("pair")

    return work


def _together(locking: _Locking) -> Callable[[], Awaitable[None]]:
    async def one(name: str) -> None:
        for _ in range(_EACH):
            await locking(name)

    async def work() -> None:
        await asyncio.gather(*(one(f"pair-{task}") for task in range(_TASKS)))

    return work


@contextmanager
def _async_peers(
    loop: asyncio.AbstractEventLoop, server: RedisServer
) -> Iterator[tuple[_Locking, list[tuple[str, _Locking]]]]:
    on_one = redis.asyncio.Redis(port=server.port, single_connection_client=True)
    pooled = redis.asyncio.Redis(port=server.port)
    core: Any = coredis.Redis(port=server.port)
    locks: dict[str, AsyncLock] = {}
    pretend_age(server.url, server)

    async def ours(name: str) -> None:
        lock = locks.get(name)
        if lock is None:
            lock = locks[name] = AsyncLock(name, store=f"{server.url}?restart_wait=0", ttl=15)
        await (await lock.acquire()).release()

    async def theirs(client: redis.asyncio.Redis, name: str) -> None:
        lock = RedisAsyncLock(client, f"asyncio-{name}", timeout=15)
        await lock.acquire()
        await lock.release()

    async def coredis_lock(name: str) -> None:
        lock = core.lock(f"coredis-{name}", timeout=15.0)
        await lock.acquire()
        await lock.release()

    with _entered(loop, core):
        yield (
            ours,
            [
                ("redis.asyncio Lock, one connection", lambda name: theirs(on_one, name)),
                ("redis.asyncio Lock, pool", lambda name: theirs(pooled, name)),
                ("coredis Lock", coredis_lock),
            ],
        )
    for client in (on_one, pooled):
        loop.run_until_complete(client.aclose())


@contextmanager
def _entered(loop: asyncio.AbstractEventLoop, client: Any) -> Iterator[None]:
    """A client that has to be left in the task that entered it."""
    ready, over = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        async with client:
            ready.set()
            await over.wait()

    staying = loop.create_task(stay())
    loop.run_until_complete(ready.wait())
    yield
    over.set()
    loop.run_until_complete(staying)


@contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
