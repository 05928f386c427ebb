"""One uncontended acquire and release on Redis; the unit is the bare two commands of redis-py.

Each contender comes twice where its library has a lock object: one that is made for each pair, as
people write it, and one that is made once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
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
    with (
        RedisServer() as server,
        RedisServer() as young,
        redis.Redis(port=server.port) as client,
    ):
        sha = str(client.script_load(_RELEASE))
        pretend_age(server.url, server)
        # For longer than a minute, which a server that has begun just now would be.
        pretend_age(young.url, young, ahead=3600.0)
        store = f"{server.url}?restart_wait=0"
        ours = Lock("pair", store=store, ttl=15)
        on_young = Lock("pair", store=f"{young.url}?restart_wait=0", ttl=15)

        def bare() -> None:
            value = os.urandom(16)
            client.set("bare", value, nx=True, px=_TTL_MS)
            client.evalsha(sha, 1, "bare", value)

        def incumbent_lock() -> None:
            Lock("pair", store=store, ttl=15).acquire().release()

        def incumbent_lock_again() -> None:
            ours.acquire().release()

        def incumbent_lock_on_a_young_server() -> None:
            on_young.acquire().release()

        contenders = [
            Contender("bare SET NX PX + EVALSHA, redis-py", bare),
            Contender("incumbent Lock: fenced, renewed", incumbent_lock, 0.75),
            Contender("incumbent Lock, made once", incumbent_lock_again, 0.65),
            Contender(
                "the same in a server's first minute, when tokens are ahead of its clock",
                incumbent_lock_on_a_young_server,
                0.65,
            ),
        ]
        with _peers(server, client) as peers:
            return compare(contenders + peers, turns, pairs)


@contextmanager
def _peers(server: RedisServer, client: redis.Redis) -> Iterator[list[Contender]]:
    coordinator: Any = coordination.get_coordinator(f"redis://127.0.0.1:{server.port}", b"bench")
    coordinator.start()
    redlock = Redlock([server.url])
    makers: dict[str, Callable[[], Any]] = {
        "redis-py Lock": lambda: client.lock("redis-py", timeout=15),
        "python-redis-lock": lambda: redis_lock.Lock(client, "python-redis-lock", expire=15),
        "tooz redis": lambda: coordinator.get_lock(b"tooz"),
        "pottery Redlock, one server": lambda: pottery.Redlock(
            key="pottery", masters={client}, auto_release_time=15
        ),
        # Its holding is a subscription: no ttl, a connection and a thread for each.
        "portalocker RedisLock": lambda: RedisLock("portalocker", client, thread_sleep_time=0.001),
    }

    def redlock_ng() -> None:
        # Its lock objects come out of acquire: there is no other way.
        lock = redlock.acquire("redlock-ng", _TTL_MS)
        if lock is None:
            raise RuntimeError("redlock-ng did not get its own lock")
        redlock.release(lock)

    yield [
        Contender("redlock-ng, one server", redlock_ng),
        *(
            contender
            for name, make in makers.items()
            for contender in (
                Contender(name, partial(_pair, make)),
                Contender(f"{name}, made once", partial(_pair, partial(_same, make()))),
            )
        ),
    ]
    coordinator.stop()


def _pair(make: Callable[[], Any]) -> None:
    lock = make()
    lock.acquire()
    lock.release()


def _same(lock: Any) -> Any:
    return lock


def async_rows(turns: int, pairs: int) -> list[Row]:
    """One task, client and server on one core; the unit is the bare two commands."""
    with _loop() as loop, RedisServer() as server:
        client = redis.asyncio.Redis(port=server.port)
        sha = loop.run_until_complete(client.script_load(_RELEASE))

        async def bare(name: str) -> None:
            value = os.urandom(16)
            await client.set(name, value, nx=True, px=_TTL_MS)
            await client.evalsha(sha, 1, name, value)

        with _async_peers(loop, server) as (ours, again, peers):
            contenders = [
                Contender("bare SET NX PX + EVALSHA, redis.asyncio", _alone(bare)),
                Contender("incumbent AsyncLock: fenced, renewed", _alone(ours), 1.1),
                Contender("incumbent AsyncLock, made once", _alone(again), 1.1),
                *(Contender(name, _alone(locking)) for name, locking in peers),
            ]
            rows = compare(contenders, turns, pairs)
        loop.run_until_complete(client.aclose())
    return rows


def async_many_rows(turns: int, pairs: int) -> list[Row]:
    """100 tasks, each with a name of its own; the unit is redis.asyncio's Lock on one connection.

    `microseconds` are of one pair: of what one task waits for meanwhile, it is the hundredth part.
    """
    with _loop() as loop, RedisServer() as server, _async_peers(loop, server) as made:
        ours, again, ((unit, on_one), *others) = made
        contenders = [
            Contender(unit, _together(on_one)),
            Contender("incumbent AsyncLock, one connection", _together(ours), 0.25),
            Contender("incumbent AsyncLock, one connection, made once", _together(again), 0.25),
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
) -> Iterator[tuple[_Locking, _Locking, list[tuple[str, _Locking]]]]:
    on_one = redis.asyncio.Redis(port=server.port, single_connection_client=True)
    pooled = redis.asyncio.Redis(port=server.port)
    core: Any = coredis.Redis(port=server.port)
    store = f"{server.url}?restart_wait=0"
    pretend_age(server.url, server)

    def our_lock(name: str) -> AsyncLock:
        return AsyncLock(name, store=store, ttl=15)

    async def ours(make: Callable[[str], AsyncLock], name: str) -> None:
        await (await make(name).acquire()).release()

    async def theirs(make: Callable[[str], Any], name: str) -> None:
        lock = make(name)
        await lock.acquire()
        await lock.release()

    def on(client: redis.asyncio.Redis) -> Callable[[str], Any]:
        return lambda name: RedisAsyncLock(client, f"asyncio-{name}", timeout=15)

    makers: dict[str, Callable[[str], Any]] = {
        "redis.asyncio Lock, one connection": on(on_one),
        "redis.asyncio Lock, pool": on(pooled),
        "coredis Lock": lambda name: core.lock(f"coredis-{name}", timeout=15.0),
    }
    with _entered(loop, core):
        yield (
            partial(ours, our_lock),
            partial(ours, cache(our_lock)),
            [
                variant
                for name, make in makers.items()
                for variant in (
                    (name, partial(theirs, make)),
                    (f"{name}, made once", partial(theirs, cache(make))),
                )
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
