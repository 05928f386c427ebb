"""Errors and numbers of `incumbent.compat`: what callers of redis-py catch, and what is refused.

The reports: redis-py 4279, 4282 and 4315 (a time that leaves none ends the lock, and says True);
3255 (a wait that never ends); celery, django-redis, dogpile and redbeat catch redis-py's errors.
"""

from __future__ import annotations

import asyncio
import pickle
import secrets
from collections.abc import Callable, Iterator
from math import inf, nan
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import exceptions

import incumbent
from incumbent import clock, compat
from incumbent.errors import StoreUnavailable
from tests import tiers
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

PATIENCE = 30.0
HUGE = 1e300
FAMILIES = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.RedisError)


@pytest.fixture
def name() -> str:
    return f"compat-{secrets.token_hex(6)}"


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    made = redis.Redis(port=redis_server.port)
    yield made
    made.close()


@pytest.fixture
def cut_off(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A client whose server cannot be reached."""
    monkeypatch.setattr(compat, "_OUTAGE", 0.3)
    proxy.refuse()
    made = redis.Redis(port=proxy.port)
    yield made
    made.close()


# -- errors of both families ----------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], Any]] = {
    "a try": lambda lock: lock.acquire(blocking=False),
    "a wait with an end": lambda lock: lock.acquire(blocking_timeout=0.5),
    "a wait without one": lambda lock: lock.acquire(),
    "a wait that is longer than an outage": lambda lock: lock.acquire(blocking_timeout=PATIENCE),
    "locked": lambda lock: lock.locked(),
}


@pytest.mark.left(
    tiers.MEET,
    "a try-ConnectionError",
    "a wait that*-RedisError",
    "a wait with an end-TimeoutError",
    "a wait without one-ConnectionError",
    "locked-RedisError",
)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("call", CALLS)
def test_what_catches_redis_pys_errors_catches_an_outage(
    cut_off: redis.Redis, call: str, family: type[Exception]
) -> None:
    began = clock.now()
    with pytest.raises(family) as caught:
        CALLS[call](compat.Lock(cut_off, "a", timeout=5))
    assert isinstance(caught.value, incumbent.StoreUnavailable)
    assert clock.now() - began < PATIENCE / 2


@pytest.mark.parametrize("call", CALLS)
def test_what_catches_redis_pys_errors_catches_an_outage_under_asyncio(
    cut_off: redis.Redis, call: str
) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=cut_off.connection_pool.connection_kwargs["port"])
        lock = compat.AsyncLock(client, "a", timeout=5)
        with pytest.raises(exceptions.ConnectionError):
            await CALLS[call](lock)
        with pytest.raises(exceptions.ConnectionError):
            await compat.RedisLock(client, "a").acquire(wait_timeout=None)
        await client.aclose()

    asyncio.run(main())


def test_an_outage_that_begins_during_a_wait_ends_it(
    proxy: FaultProxy, client: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "_OUTAGE", 0.3)
    with compat.Lock(client, name):
        here = redis.Redis(port=proxy.port)
        assert not compat.Lock(here, name).acquire(blocking=False)
        proxy.blackhole()
        with pytest.raises(exceptions.ConnectionError):
            compat.Lock(here, name).acquire()
        here.close()


def test_what_is_not_known_is_of_both_families_too(
    proxy: FaultProxy, client: redis.Redis, name: str
) -> None:
    here = redis.Redis(port=proxy.port)
    lock = compat.Lock(here, name, timeout=10)
    assert lock.acquire()
    proxy.blackhole()
    calls: list[Callable[[], object]] = [lambda: lock.extend(60), lock.reacquire]
    for call in (*calls, lock.owned, lock.locked):
        with pytest.raises(exceptions.ConnectionError) as caught:
            call()
        assert isinstance(caught.value, incumbent.StoreError)
        assert isinstance(caught.value, exceptions.TimeoutError)
    lock.release()
    here.close()


@pytest.mark.parametrize(
    "error", [compat.RedisUnavailable("why"), compat.RedisOutcomeUnknown("why", retry_after=2.0)]
)
def test_an_error_of_both_families_keeps_what_it_knows(error: incumbent.StoreError) -> None:
    error.name = "a"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.name) == ("why", "a")
    assert again.retry_after == error.retry_after
    for family in (*FAMILIES, incumbent.StoreError):
        assert isinstance(again, family)


def test_a_wrong_name_is_of_both_families(client: redis.Redis) -> None:
    with pytest.raises(exceptions.LockError) as caught:
        compat.Lock(client, "with a blank").acquire()
    assert isinstance(caught.value, incumbent.ConfigError)
    assert caught.value.name == "name"


@pytest.mark.parametrize(
    "use",
    [
        lambda client: compat.Lock(client, b"\xff"),
        lambda client: compat.Lock(client, "n").acquire(token=b"\xff\x00"),
        lambda client: compat.AsyncLock(client, b"\xff"),
        lambda _: compat.Lock(None, "n"),  # type: ignore[arg-type]
        lambda _: compat.RedisLock(object(), "n"),  # type: ignore[arg-type]
        lambda client: compat.Lock(redis.Redis(connection_pool=Own.pool(client)), "n"),
    ],
    ids=["name", "token", "async name", "None", "object", "a connection of its own"],
)
def test_what_cannot_be_used_is_of_both_families(
    client: redis.Redis, use: Callable[[Any], object]
) -> None:
    with pytest.raises(exceptions.LockError) as caught:
        use(client)
    assert isinstance(caught.value, incumbent.ConfigError)
    assert "weak reference" not in str(caught.value)


class Own(redis.Connection):
    """A class of the user's own, whose connections may be anything."""

    @classmethod
    def pool(cls, client: redis.Redis) -> redis.ConnectionPool:
        return redis.ConnectionPool(cls, **client.connection_pool.connection_kwargs)


# -- numbers --------------------------------------------------------------------------------------

NO_TIME: tuple[Any, ...] = (-20, -0.5, nan, -inf, inf, True, HUGE, 10**400, "soon")


@pytest.mark.parametrize("more", NO_TIME, ids=lambda it: f"{it!r:.20}")
def test_an_extension_that_leaves_no_time_is_refused_and_the_lock_stays(
    client: redis.Redis, name: str, more: Any
) -> None:
    lock = compat.Lock(client, name, timeout=10)
    assert lock.acquire(blocking=False)
    ends = lock.local.lease._claim.machine.at_most_until
    for replace in (False, True):
        with pytest.raises(exceptions.LockError) as caught:
            lock.extend(more, replace_ttl=replace)
        assert isinstance(caught.value, incumbent.ConfigError)
    for none_left in (0, 0.0004):
        with pytest.raises(compat.BadSetting):
            lock.extend(none_left, replace_ttl=True)
    lock.timeout = more
    with pytest.raises(compat.BadSetting):
        lock.reacquire()
    lock.timeout = 10
    assert lock.local.lease._claim.machine.at_most_until == ends
    assert lock.owned()
    lock.release()


def test_an_extension_by_nothing_is_a_confirmation(client: redis.Redis, name: str) -> None:
    lock = compat.Lock(client, name, timeout=10)
    assert lock.acquire(blocking=False)
    ends = lock.local.lease._claim.machine.at_most_until
    assert lock.extend(0)
    assert lock.local.lease._claim.machine.at_most_until == ends
    lock.release()


def test_extensions_at_the_same_time_are_added_up(redis_server: RedisServer, name: str) -> None:
    """The second began while the first had taken the bound away, and left the lock without one."""

    async def main() -> None:
        client = redis.asyncio.Redis(port=redis_server.port)
        lock = compat.AsyncLock(client, name, timeout=10)
        assert await lock.acquire()
        machine = lock.local.lease._claim.machine
        ends = machine.at_most_until
        assert await asyncio.gather(*[lock.extend(10) for _ in range(3)]) == [True] * 3
        assert machine.at_most_until == ends + 30
        await lock.release()
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("failing", [0, 1])
def test_an_extension_that_fails_beside_another_leaves_the_end_of_that(
    client: redis.Redis, name: str, failing: int
) -> None:
    lock = compat.Lock(client, name, timeout=10)
    assert lock.acquire(blocking=False)
    machine = lock.local.lease._claim.machine
    ends = machine.at_most_until
    calls = [lock._lasting("extend", more, more=True) for more in (5, 7)]
    for call in calls:
        call.__enter__()
    with pytest.raises(exceptions.ConnectionError):
        calls[failing].__exit__(StoreUnavailable, StoreUnavailable("away"), None)
    calls[not failing].__exit__(None, None, None)
    assert machine.at_most_until == ends + (7, 5)[failing]
    lock.release()


def test_an_aioredis_lock_is_neither_extended_nor_renewed_to_no_time(
    redis_server: RedisServer, name: str
) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=redis_server.port)
        lock = compat.RedisLock(client, name, timeout=10)
        assert await lock.acquire()
        for more in NO_TIME:
            with pytest.raises(compat.BadSetting):
                await lock.extend(more)
            with pytest.raises(compat.BadSetting):
                await lock.renew(more)
            with pytest.raises(compat.BadSetting):
                await compat.RedisLock(client, name).acquire(timeout=more)
        assert await lock.is_owner()
        assert await lock.release()
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("number", NO_TIME, ids=lambda it: f"{it!r:.20}")
def test_a_timeout_or_a_sleep_that_is_no_time_is_refused_before_anything_is_held(
    client: redis.Redis, name: str, number: Any
) -> None:
    for settings in ({"timeout": number}, {"sleep": number}):
        with pytest.raises(compat.BadSetting):
            compat.Lock(client, name, **settings).acquire()
    with pytest.raises(compat.BadSetting):
        compat.Lock(client, name).acquire(sleep=number)
    assert not client.exists(name)


@pytest.mark.parametrize("number", [nan, True, "soon", b"3", [], 3j])
def test_a_wait_that_is_no_time_is_refused(client: redis.Redis, name: str, number: Any) -> None:
    with pytest.raises(compat.BadSetting):
        compat.Lock(client, name).acquire(blocking_timeout=number)
    assert not client.exists(name)


def test_a_wait_below_0_is_one_try_and_one_without_end_has_none(
    client: redis.Redis, name: str
) -> None:
    lock = compat.Lock(client, name, timeout=0, sleep=0)
    for endless in (inf, 1e9, HUGE, 10**400):
        assert lock.acquire(blocking_timeout=endless)
        lock.release()
    assert lock.acquire()
    assert not compat.Lock(client, name).acquire(blocking_timeout=-1)
    assert not compat.Lock(client, name).acquire(blocking_timeout=-inf)
    lock.release()


# -- a server that lost its data ------------------------------------------------------------------


def test_tests_that_flush_the_server_need_not_wait_for_it(
    own_redis: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "restart_wait", 0)
    client = redis.Redis(port=own_redis.port)
    for _ in range(3):
        lock = compat.Lock(client, name, timeout=10)
        assert lock.acquire(blocking=False)
        lock.release()
        client.flushall()
    monkeypatch.undo()
    with pytest.raises(compat.RedisUnavailable, match="nobody is given a lease"):
        compat.Lock(client, name).acquire(blocking=False)
    client.close()


def test_a_wait_lasts_until_a_new_server_grants(
    own_redis: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "_OUTAGE", 0.1)
    monkeypatch.setattr(compat, "restart_wait", 2.5)
    client = redis.Redis(port=own_redis.port)
    lock = compat.Lock(client, name)
    assert lock.acquire()
    lock.release()
    client.close()
