"""One uncontended acquire and release of what several may hold, on Redis; the unit is a Lock."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import redis
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer

from benchmarks.harness import Contender, Row, compare
from incumbent import Lock
from incumbent.locks.several import ReadWriteLock, Semaphore

__all__ = ["shared_rows"]

_MOST = 1.3


def shared_rows(turns: int, pairs: int) -> list[Row]:
    """Blocking clients, client and server on one core; locks are made once."""
    with RedisServer() as server, redis.Redis(port=server.port) as client, ExitStack() as held:
        pretend_age(server.url, server)
        store = f"{server.url}?restart_wait=0"
        for name, permits in (("one-left-2", 2), ("one-left-100", 100)):
            for _ in range(permits - 1):
                held.callback(Semaphore(name, permits, store=store, ttl=60).acquire().release)
        both = ReadWriteLock("both", store=store)
        return compare(
            [
                Contender("incumbent Lock", _pair(Lock("pair", store=store))),
                Contender("Semaphore(2)", _pair(Semaphore("two", 2, store=store)), _MOST),
                Contender("Semaphore(100)", _pair(Semaphore("many", 100, store=store)), _MOST),
                Contender("ReadWriteLock.read", _pair(both.read), _MOST),
                Contender("ReadWriteLock.write", _pair(both.write), _MOST),
                Contender(
                    "Semaphore(2), 1 is taken", _pair(Semaphore("one-left-2", 2, store=store))
                ),
                Contender(
                    "Semaphore(100), 99 are taken",
                    _pair(Semaphore("one-left-100", 100, store=store)),
                ),
                Contender("sorted set of 2, redis-py", partial(_recipe, client, 2)),
            ],
            turns,
            pairs,
        )


def _pair(lock: Lock) -> Callable[[], object]:
    return lambda: lock.acquire().release()


def _recipe(client: redis.Redis, permits: int) -> None:
    """The counting semaphore of J. L. Carlson, "Redis in Action" (2013), 6.3.1: not renewed."""
    name, now = uuid.uuid4().hex, time.time()
    pipe = client.pipeline()
    pipe.zremrangebyscore("recipe", "-inf", now - 15)
    pipe.zadd("recipe", {name: now})
    pipe.zrank("recipe", name)
    if pipe.execute()[-1] >= permits:
        raise RuntimeError("the recipe did not get its own permit")
    client.zrem("recipe", name)
