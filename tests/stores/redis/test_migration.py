"""A lease that shares its key with the locks of other clients, while a fleet migrates.

The python clients are the real ones; those of other languages are played by the commands that they
send.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import redis

import incumbent
from incumbent.model import Ask, Gone, Refused, Released
from tests import tiers
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.needs import needs
from tests.support.pace import BUSY
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

SHORT = 1.0
"""Seconds of a lock of theirs that nobody gives back."""
LONG = 60.0


class Theirs:
    """A lock of another client. `take` says whether it got it."""

    template = "{name}"

    def __init__(self, server: redis.Redis, port: int, name: str, ttl: float) -> None:
        self.server = server
        self.port = port
        self.name = name
        self.ttl = ttl
        self.secret = secrets.token_hex(8)

    @property
    def key(self) -> str:
        return self.template.replace("{name}", self.name)

    def take(self) -> bool:
        return bool(self.server.set(self.key, self.value, nx=True, px=int(self.ttl * 1000)))

    def give(self) -> None:
        self.server.eval(UNLOCK, 1, self.key, self.value)

    @property
    def value(self) -> str:
        return self.secret


UNLOCK = (
    "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) end return 0"
)


class RedisPy(Theirs):
    """redis.lock.Lock."""

    template = "{name}"

    def take(self) -> bool:
        self.lock: Any = self.server.lock(self.key, timeout=self.ttl, blocking=False)
        return bool(self.lock.acquire())

    def give(self) -> None:
        self.lock.release()


class PythonRedisLock(Theirs):
    """redis_lock.Lock, which puts its own prefix before the name."""

    template = "lock:{name}"

    def take(self) -> bool:
        import redis_lock

        self.lock: Any = redis_lock.Lock(self.server, self.name, expire=max(1, int(self.ttl)))
        return bool(self.lock.acquire(blocking=False))

    def give(self) -> None:
        self.lock.release()


class RedlockNg(Theirs):
    """redlock.Redlock over this one server."""

    template = "redlock-{name}"

    def take(self) -> bool:
        import redlock

        self.manager: Any = redlock.Redlock(
            [f"redis://127.0.0.1:{self.port}"], retry_count=0, retry_delay_max=0.1
        )
        self.lock = self.manager.acquire(self.key, int(self.ttl * 1000))
        return self.lock is not None

    def give(self) -> None:
        self.manager.release(self.lock)


class Redsync(Theirs):
    """A random value at the name; compared and deleted by a script."""

    template = "mutex-{name}"


class RedLockNet(Theirs):
    """The same under a prefix."""

    template = "redlock:{name}"


class ShedLock(Theirs):
    """Says who, when and where; a lockAtLeastFor would leave the key instead of deleting it."""

    template = "job-lock:default:{name}"

    @property
    def value(self) -> str:
        return f"ADDED:2026-11-21T18:00:00.000Z@host-{self.secret}"

    def give(self) -> None:
        self.server.delete(self.key)


def real(kind: type[Theirs], module: str) -> Any:
    """One that is played by its own package."""
    there = find_spec(module) is not None
    return pytest.param(kind, marks=needs(there, f"{module} is not installed: see `make bench`"))


KINDS = (
    RedisPy,
    real(PythonRedisLock, "redis_lock"),
    real(RedlockNg, "redlock"),
    *(Redsync, RedLockNet, ShedLock),
)


@dataclass
class Both:
    """Our lease and their locks, of one name."""

    ours: Party
    make: Callable[[float], Theirs]
    raw: redis.Redis

    @property
    def key(self) -> str:
        return self.make(1.0).key


@pytest.fixture(params=KINDS, ids=lambda kind: str(kind.__name__))
def both(redis_server: RedisServer, request: pytest.FixtureRequest) -> Iterator[Both]:
    kind: type[Theirs] = request.param
    with (
        redis.Redis(port=redis_server.port) as raw,
        party(redis_server.url, f"restart_wait=0&key={kind.template}") as ours,
    ):
        yield Both(ours, lambda ttl: kind(raw, redis_server.port, ours.key.name, ttl), raw)


def test_neither_gets_what_the_other_holds(both: Both) -> None:
    theirs = both.make(60.0)
    granted = both.ours.take()
    assert not theirs.take()
    assert both.ours.store.give(both.ours.key, both.ours.claim, granted.token, soon()) == Released()
    assert theirs.take()
    for refused in (both.ours.refused(), asyncio.run(refused_async(both.ours))):
        assert refused.reason == "held"
        (holding,) = refused.holders
        assert holding.foreign
        assert 40 < (holding.remaining or 0.0) <= 60
    theirs.give()
    assert both.ours.take().token > granted.token


async def refused_async(ours: Party) -> Refused:
    outcome = await ours.engine.async_store().take(ours.key, new_claim(), Ask(5.0, "h"), soon())
    assert isinstance(outcome, Refused)
    return outcome


def test_neither_gives_back_what_the_other_holds(both: Both) -> None:
    theirs, late = both.make(5.0), both.make(5.0)
    assert late.take()
    both.raw.delete(late.key)
    granted = both.ours.take()
    # A lock of theirs that was lost does not take ours with it (ShedLock deletes what it finds).
    if not isinstance(late, ShedLock):
        # Some of them say so, each by an exception of its own.
        with suppress(Exception):
            late.give()
        assert not theirs.take()
    both.raw.delete(both.key)
    assert theirs.take()
    before = both.raw.get(both.key)
    assert both.ours.store.give(both.ours.key, both.ours.claim, granted.token, soon()) == Gone()
    assert both.ours.store.give(both.ours.key, both.ours.claim, None, soon()) == Gone()
    assert both.raw.get(both.key) == before


def test_people_see_a_foreign_holder(both: Both) -> None:
    assert both.make(5.0).take()
    (holding,) = both.ours.store.read(both.ours.key, soon()).holdings
    assert (holding.foreign, holding.holder) == (True, "<foreign>")
    assert both.ours.key in [
        record.key for record in both.ours.store.scan("faults", both.ours.key.name, soon())
    ]


@pytest.mark.left(tiers.FORMS, "RedisPy", "Redsync", "ShedLock")
def test_a_waiter_gets_it_when_their_ttl_ends(both: Both, redis_server: RedisServer) -> None:
    template = type(both.make(1.0)).template
    with incumbent.Client(f"{redis_server.url}?restart_wait=0&key={template}") as client:
        assert both.make(SHORT).take()
        began = time.monotonic()
        with client.lock(both.ours.key.name, ttl=LONG, timeout=LONG) as lease:
            waited = time.monotonic() - began
            assert lease.valid
            assert not both.make(SHORT).take()
        assert 0.5 * SHORT < waited < SHORT + BUSY


@pytest.mark.parametrize("side", ["blocking", "asyncio"])
def test_a_waiter_gets_it_soon_after_they_gave_it_back(
    both: Both, redis_server: RedisServer, side: str
) -> None:
    theirs = both.make(LONG)
    url = f"{redis_server.url}?restart_wait=0&key={theirs.template}"
    settings: dict[str, Any] = {"ttl": LONG, "timeout": LONG / 2}

    async def wait_async() -> bool:
        async with incumbent.AsyncLock(both.ours.key.name, store=url, **settings) as lease:
            return lease.valid

    def wait() -> bool:
        if side == "asyncio":
            return asyncio.run(wait_async())
        with incumbent.Lock(both.ours.key.name, store=url, **settings) as lease:
            return lease.valid

    assert theirs.take()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        time.sleep(0.3)
        theirs.give()
        assert waiting.result()


@pytest.mark.parametrize("kind", [incumbent.MultiLock, incumbent.Election, incumbent.Semaphore])
def test_whatever_waits_gets_it_soon_after_redis_py_gave_it_back(
    redis_server: RedisServer, kind: Any
) -> None:
    name, url = f"beside-{secrets.token_hex(6)}", f"{redis_server.url}?restart_wait=0&key={{name}}"
    settings: dict[str, Any] = {"store": url, "ttl": LONG, "timeout": LONG / 2}
    with redis.Redis(port=redis_server.port) as raw, ThreadPoolExecutor(1) as pool:
        theirs: Any = raw.lock(name, timeout=LONG, thread_local=False)
        assert theirs.acquire()

        def wait() -> bool:
            if kind is incumbent.MultiLock:
                return incumbent.MultiLock([name], **settings).acquire().release()
            if kind is incumbent.Semaphore:
                return incumbent.Semaphore(name, 1, **settings).acquire().release()
            return incumbent.Election(name, **settings).campaign().release()

        waiting = pool.submit(wait)
        time.sleep(0.3)
        theirs.release()
        assert waiting.result()
