"""One uncontended acquire and release on Redis; the unit is the bare two commands of redis-py."""

from __future__ import annotations

import asyncio
import os

import redis
import redis.asyncio
import redis_lock
from redis.asyncio.lock import Lock as RedisAsyncLock
from redlock import Redlock
from tests.support.servers import RedisServer

from benchmarks.harness import Contender, Row, compare
from incumbent import AsyncLock, Lock

__all__ = ["async_rows", "sync_rows"]

_RELEASE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""
_TTL_MS = 15_000


def sync_rows(turns: int, pairs: int) -> list[Row]:
    """Blocking clients, client and server on one core."""
    with RedisServer() as server:
        client = redis.Redis(port=server.port)
        sha = str(client.script_load(_RELEASE))
        ours = Lock("pair", store=f"{server.url}?restart_wait=0", ttl=15)
        redlock = Redlock([server.url])

        def bare() -> None:
            value = os.urandom(16)
            client.set("bare", value, nx=True, px=_TTL_MS)
            client.evalsha(sha, 1, "bare", value)

        def incumbent_lock() -> None:
            ours.acquire().release()

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

        return compare(
            [
                Contender("bare SET NX PX + EVALSHA, redis-py", bare),
                Contender("incumbent Lock: fenced, renewed", incumbent_lock, 0.75),
                Contender("redis-py Lock", redis_py_lock),
                Contender("python-redis-lock", python_redis_lock),
                Contender("redlock-ng, one server", redlock_ng),
            ],
            turns,
            pairs,
        )


def async_rows(turns: int, pairs: int) -> list[Row]:
    """One task, client and server on one core."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with RedisServer() as server:
        client = redis.asyncio.Redis(port=server.port)
        sha = loop.run_until_complete(client.script_load(_RELEASE))
        ours = AsyncLock("pair", store=f"{server.url}?restart_wait=0", ttl=15)

        async def bare() -> None:
            value = os.urandom(16)
            await client.set("bare", value, nx=True, px=_TTL_MS)
            await client.evalsha(sha, 1, "bare", value)

        async def incumbent_lock() -> None:
            await (await ours.acquire()).release()

        async def redis_asyncio_lock() -> None:
            lock = RedisAsyncLock(client, "redis-asyncio", timeout=15)
            await lock.acquire()
            await lock.release()

        rows = compare(
            [
                Contender("bare SET NX PX + EVALSHA, redis.asyncio", bare),
                Contender("incumbent AsyncLock: fenced, renewed", incumbent_lock, 1.1),
                Contender("redis.asyncio Lock", redis_asyncio_lock),
            ],
            turns,
            pairs,
        )
        loop.run_until_complete(client.aclose())
    loop.close()
    return rows
