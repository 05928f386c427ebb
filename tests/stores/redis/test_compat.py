"""`incumbent.compat` on a real server: what redis-py's and aioredis-lock's own tests look at.

The cases are those of redis-py's tests/test_lock.py and tests/test_asyncio/test_lock.py, written
anew, each for both sides. What differs there, and why:

- test_lock, test_lock_token: the key has more in it than the token, and a ttl (it is renewed).
- test_timeout, test_float_timeout, test_extend_lock*, test_reacquire_lock look at the ttl of the
  key. Ours is the ttl of the lease; how long the lock lasts is looked at instead.
- test_blocking_timeout, test_context_manager_blocking_timeout and
  test_high_sleep_small_blocking_timeout count sleeps. Ours is woken, and waits for all of its time.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
import redis
import redis.asyncio
import redis.lock

import incumbent
from incumbent import clock, compat
from incumbent.stores.redis import engine_from_client
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server


class OnLoop:
    """A lock of asyncio, called as a blocking one is."""

    def __init__(self, run: Callable[[Any], Any], lock: Any) -> None:
        self._run, self.lock = run, lock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.lock, name)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **settings: self._run(value(*args, **settings))

    def __enter__(self) -> Self:
        assert self._run(self.lock.__aenter__()) is self.lock
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self.lock.__aexit__(*error))


class World:
    """One name on the server, and locks on it of one side."""

    def __init__(self, server: RedisServer, side: str, run: Callable[[Any], Any]) -> None:
        self.run = run
        self.side = side
        self.redis = redis.Redis(port=server.port)
        self.client: Any = (
            self.redis if side == "blocking" else redis.asyncio.Redis(port=server.port)
        )
        self.name = f"compat-{secrets.token_hex(6)}"

    def lock(self, name: str | None = None, **settings: Any) -> Any:
        kind: Any = compat.Lock if self.side == "blocking" else compat.AsyncLock
        lock = kind(self.client, name or self.name, **settings)
        return lock if self.side == "blocking" else OnLoop(self.run, lock)

    def take_away(self) -> None:
        """What somebody else wrote stands at the key now."""
        self.redis.set(self.name, "a")


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["blocking", "asyncio"])
def world(
    request: pytest.FixtureRequest, redis_server: RedisServer, loop: asyncio.Runner
) -> Iterator[World]:
    made = World(redis_server, request.param, loop.run)
    yield made
    made.redis.delete(made.name)
    made.redis.close()


def test_it_is_taken_and_given_back(world: World) -> None:
    lock = world.lock()
    assert lock.acquire(blocking=False)
    assert world.redis.exists(world.name)
    assert lock.local.token
    lock.release()
    assert not world.redis.exists(world.name)
    assert lock.local.token is None


@pytest.mark.parametrize("thread_local", [True, False])
def test_a_token_of_the_callers_is_kept_and_shown(world: World, thread_local: bool) -> None:
    lock = world.lock(thread_local=thread_local)
    assert lock.acquire(blocking=False, token="test")
    assert lock.local.token == b"test"
    store = engine_from_client(world.redis, key="{name}")
    assert incumbent.Lock(world.name, store=store).held_by() == "test"
    lock.release()
    assert lock.local.token is None


def test_locked_is_about_everybody_and_owned_about_this_one(world: World) -> None:
    first, second = world.lock(), world.lock()
    assert not first.locked()
    assert not first.owned()
    assert first.acquire(blocking=False)
    assert first.locked()
    assert second.locked()
    assert first.owned()
    assert not second.owned()
    first.release()
    assert not first.locked()
    assert not first.owned()
    assert second.acquire(blocking=False)
    assert not first.owned()
    assert second.owned()
    second.release()


def test_two_exclude_each_other(world: World) -> None:
    first, second = world.lock(), world.lock()
    assert first.acquire(blocking=False)
    assert not second.acquire(blocking=False)
    first.release()
    assert second.acquire(blocking=False)
    assert not first.acquire(blocking=False)
    second.release()


def test_redis_pys_own_lock_and_this_one_exclude_each_other(world: World) -> None:
    theirs: Any = redis.lock.Lock(world.redis, world.name, timeout=30)
    ours = world.lock()
    assert theirs.acquire(blocking=False)
    assert ours.locked()
    assert not ours.acquire(blocking=False)
    theirs.release()
    assert ours.acquire(blocking=False)
    assert not theirs.acquire(blocking=False)
    ours.release()


def test_the_client_makes_it_as_a_lock_class(world: World) -> None:
    kind: Any = compat.Lock if world.side == "blocking" else compat.AsyncLock
    made = world.client.lock(world.name, timeout=7, lock_class=kind)
    assert isinstance(made, kind)
    assert (made.name, made.timeout, made.blocking, made.thread_local) == (
        world.name,
        7,
        True,
        True,
    )


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_it_lasts_for_its_timeout(world: World, timeout: float) -> None:
    lock = world.lock(timeout=timeout)
    assert lock.acquire(blocking=False)
    assert 0 < ends_in(lock) <= timeout
    assert 0 < world.redis.pttl(world.name) <= timeout * 1000
    lock.release()


def ends_in(lock: Any) -> float:
    """Seconds until it ends, whatever is renewed."""
    return float(lock.local.lease._claim.machine.at_most_until - clock.now())


def test_a_wait_ends_after_its_time(world: World) -> None:
    with world.lock():
        began = clock.now()
        assert not world.lock(blocking_timeout=1).acquire()
        assert not world.lock().acquire(blocking_timeout=1)
        assert not world.lock(blocking=False).acquire()
        assert clock.now() - began >= 2


def test_who_waits_gets_it(world: World) -> None:
    first, second = world.lock(thread_local=False), world.lock(blocking_timeout=20)
    assert first.acquire()
    if world.side == "blocking":
        threading.Timer(0.1, first.release).start()
    else:
        lease = first.local.lease
        threading.Timer(0.1, lambda: asyncio.run(lease.release())).start()
    assert second.acquire()
    second.release()


def test_the_body_has_it(world: World) -> None:
    with world.lock(blocking_timeout=10) as lock:
        assert lock.owned()
        assert world.redis.exists(world.name)
    assert not world.redis.exists(world.name)


def test_a_body_that_cannot_have_it_does_not_run(world: World) -> None:
    world.redis.set(world.name, "bar", px=60_000)
    # A busy machine may need some of it for the first connection.
    with pytest.raises(compat.LockError) as said, world.lock(blocking_timeout=2, sleep=1):
        pytest.fail("it ran")
    assert said.value.lock_name == world.name


def test_a_body_that_outlives_it_is_told_unless_it_asks_not_to_be(world: World) -> None:
    with world.lock(timeout=0.1, raise_on_release_error=False) as lock:
        eventually(lambda: not lock.local.lease.valid)
        assert not lock.owned()
    with (
        pytest.raises(compat.LockNotOwnedError),
        world.lock(timeout=0.1, raise_on_release_error=True) as lock,
    ):
        eventually(lambda: not lock.local.lease.valid)
        assert not lock.owned()


def test_a_body_that_released_it_is_told_unless_it_asks_not_to_be(world: World) -> None:
    with world.lock(timeout=10, raise_on_release_error=False) as lock:
        lock.release()
    with (
        pytest.raises(compat.LockError),
        world.lock(timeout=10, raise_on_release_error=True) as lock,
    ):
        lock.release()


def test_what_is_not_held_is_neither_released_nor_extended_nor_reacquired(world: World) -> None:
    lock = world.lock(timeout=10)
    for call in (lock.release, lambda: lock.extend(10), lock.reacquire):
        with pytest.raises(compat.LockError):
            call()


def test_what_was_taken_away_is_not_released(world: World) -> None:
    lock = world.lock()
    assert lock.acquire(blocking=False)
    world.take_away()
    assert not lock.owned()
    with pytest.raises(compat.LockNotOwnedError):
        lock.release()
    assert lock.local.token is None
    assert world.redis.get(world.name) == b"a"


def test_extend_adds_and_replaces(world: World) -> None:
    lock = world.lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(10)
    assert 16 < ends_in(lock) <= 20
    assert lock.extend(10.5, replace_ttl=True)
    assert 8 < ends_in(lock) <= 10.5
    assert lock.extend(1, replace_ttl=True)
    assert lock.local.lease.remaining <= 1
    assert lock.owned()
    lock.release()


def test_what_was_extended_is_renewed_beyond_its_first_end(redis_server: RedisServer) -> None:
    client = redis.Redis(port=redis_server.port)
    lock = compat.Lock(client, f"compat-{secrets.token_hex(6)}", timeout=3)
    assert lock.acquire()
    first_end = lock.local.lease.belief.proof.deadline
    assert lock.extend(60)
    eventually(lambda: lock.local.lease.belief.proof.deadline > first_end + 1, within=30)
    assert lock.owned()
    lock.release()
    client.close()


def test_reacquire_starts_its_time_anew(world: World) -> None:
    lock = world.lock(timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(2, replace_ttl=True)
    assert lock.reacquire()
    assert 8 < ends_in(lock) <= 10
    lock.release()


def test_what_has_no_timeout_is_not_extended(world: World) -> None:
    with world.lock() as lock:
        with pytest.raises(compat.LockError, match="no timeout"):
            lock.extend(10)
        with pytest.raises(compat.LockError, match="no timeout"):
            lock.reacquire()


def test_what_was_taken_away_is_neither_extended_nor_reacquired(world: World) -> None:
    lock = world.lock(timeout=10)
    for call in (lambda: lock.extend(10), lock.reacquire):
        assert lock.acquire(blocking=False)
        world.take_away()
        with pytest.raises(compat.LockNotOwnedError):
            call()
        with pytest.raises(compat.LockNotOwnedError):
            lock.release()
        world.redis.delete(world.name)


def test_a_body_from_which_it_was_taken_away_is_told(world: World) -> None:
    with (
        pytest.raises(compat.LockNotOwnedError),
        world.lock(timeout=10, blocking=False),
    ):
        world.take_away()


def test_its_errors_are_redis_pys_and_ours() -> None:
    assert issubclass(compat.LockNotOwnedError, compat.LockError)
    assert issubclass(compat.LockNotOwnedError, redis.exceptions.LockNotOwnedError)
    for kind in (compat.LockError, compat.LockNotOwnedError, compat.LockTimeoutError):
        assert issubclass(kind, incumbent.Error)
    assert issubclass(compat.LockError, redis.exceptions.LockError)


def test_another_thread_sees_nothing_of_a_lock_that_is_threads_own(
    redis_server: RedisServer,
) -> None:
    client, name = redis.Redis(port=redis_server.port), f"compat-{secrets.token_hex(6)}"
    own = compat.Lock(client, name)
    shared = compat.Lock(client, f"{name}-2", thread_local=False)
    assert own.acquire()
    assert shared.acquire()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.extend([own.owned(), shared.owned()]))
    thread.start()
    thread.join()
    assert seen == [False, True]
    own.release()
    shared.release()
    client.close()


def test_an_extension_that_the_store_does_not_confirm_is_none(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "restart_wait", 0)
    client = redis.Redis(port=proxy.port)
    lock = compat.Lock(client, "a", timeout=10)
    assert lock.acquire()
    before = ends_in(lock)
    proxy.blackhole()
    with pytest.raises(incumbent.StoreUnavailable):
        lock.extend(60)
    assert ends_in(lock) <= before
    with pytest.raises(incumbent.StoreError):
        lock.owned()
    with pytest.raises(incumbent.StoreError):
        lock.locked()
    lock.release()
    client.close()


# -- aioredis-lock --------------------------------------------------------------------------------


def test_aioredis_locks_interface(redis_server: RedisServer) -> None:
    key = f"compat-{secrets.token_hex(6)}"

    async def main() -> None:
        pool = redis.asyncio.ConnectionPool(port=redis_server.port)
        async with compat.RedisLock(pool, key=key, timeout=10, wait_timeout=5) as lock:
            assert await lock.is_owner()
            other = compat.RedisLock(pool, key)
            assert not await other.is_owner()
            assert not await other.acquire(timeout=1, wait_timeout=0)
            assert not await other.release()
            assert not await other.extend(10)
            assert not await other.renew()
            with pytest.raises(compat.LockTimeoutError):
                async with compat.RedisLock(pool, key, wait_timeout=0):
                    pytest.fail("it ran")
            assert await lock.extend(10)
            assert 16 < ends_in(lock._lock) <= 20
            assert await lock.renew(5)
            assert 3 < ends_in(lock._lock) <= 5
            assert await lock.renew()
            assert 8 < ends_in(lock._lock) <= 10
        assert not await lock.is_owner()
        assert await other.acquire(wait_timeout=None)
        assert await other.release()
        await pool.aclose()

    asyncio.run(main())


def test_an_owner_from_whom_it_was_taken_is_no_owner(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"compat-{secrets.token_hex(6)}"

    async def main() -> None:
        client = redis.asyncio.Redis(port=redis_server.port)
        async with compat.RedisLock(client, key) as lock:
            await client.set(key, "somebody else", px=60_000)
            assert not await lock.is_owner()
            assert not await lock.renew(5)
            assert not await lock.extend(5)
        await client.delete(key)
        await client.aclose()

    asyncio.run(main())
    assert "no longer owned" in caplog.text
