"""Locks with the interface of redis-py and of aioredis-lock, on leases: change one import.

`Lock` and `AsyncLock` replace redis-py's `Lock`, `RedisLock` replaces aioredis-lock's. They use the
same key in Redis, so old and new instances exclude each other while a fleet migrates. Differences:

- `timeout` means what it means there: the longest time that the lock lasts, from the grant or from
  `extend` and `reacquire`. (For `incumbent.Lock` it is the time to wait.) In that time the lease is
  renewed with a ttl of 2 to 15 s, so a crashed holder loses it after the ttl. Without `timeout` a
  lock does not last for ever: it ends with its process.
- It fails closed. A lock that cannot be proved is not owned, whatever the key says. If the store
  does not answer, calls raise `RedisUnavailable` or `RedisOutcomeUnknown`; a wait, however long,
  raises them after 5 s of an outage.
- A server that started, or lost its data, less than a ttl ago grants nothing yet: waits go on, and
  tries raise `RedisUnavailable`. Tests that flush the server set `incumbent.compat.restart_wait` to
  0 before they make a lock; then a flush while a lock is held lets two hold it.
- The key holds more than a token: others see `token=` as the holder. Setting `local.token` does not
  hand the lock over. A lock object that is dropped releases its lease.
- Tasks that share an object each have a lock of their own, as threads have. A caller that never
  acquires, to which another handed its lock, releases and extends the oldest: with `thread_local`
  the oldest of its thread. One that does, and has none, only what a caller left that has ended.
- Waiters are woken where incumbent holds the lock; beside other clients they poll every
  `sleep` seconds, as theirs do. `acquire` waits for all of its `blocking_timeout`.
- Names must be valid for `incumbent.Lock`, and bytes must be UTF-8. Times must be finite, at most
  366 days (a longer `blocking_timeout` has no end), and leave the lock some time to live. Others
  raise `BadSetting`. (`incumbent.safe_name` makes a valid name, but not the key that they use.)

Every error is an `incumbent.Error` and also an error of redis-py, as its callers expect.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeAlias
from weakref import WeakKeyDictionary

from redis import exceptions

from incumbent import clock
from incumbent.durations import DAY, parse_duration
from incumbent.errors import (
    ConfigError,
    Error,
    LeaseLost,
    NotAcquired,
    OutcomeUnknown,
    StoreUnavailable,
)
from incumbent.locks import leases
from incumbent.locks import lock as locks
from incumbent.locks.callers import ByCaller
from incumbent.locks.leases import L, SingleLease
from incumbent.locks.options import LockSettings
from incumbent.model import Holding
from incumbent.stores.base import Engine
from incumbent.stores.redis import engine_from_client

if TYPE_CHECKING:
    from incumbent.protocol.claim import LeaseRequest
    from incumbent.runtime.link import RedisClient, RedisClusterClient, RedisPool

    Client: TypeAlias = RedisClient | RedisPool | RedisClusterClient

__all__ = [
    "AsyncLock",
    "BadSetting",
    "Lock",
    "LockError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "RedisLock",
    "RedisOutcomeUnknown",
    "RedisUnavailable",
]

_log = logging.getLogger("incumbent")

restart_wait: float | None = None
"""Seconds for which a server that is new or lost its data grants nothing to locks made from now on.

None: as in docs/redis.md. 0: none, for tests that flush the server.
"""

_TTL: Final = (2.0, 15.0)
"""Seconds: the shortest and the longest ttl, whatever `timeout` is."""
_OUTAGE: Final = 5.0
"""Seconds of an outage after which a wait fails: redis-py would raise, after its retries."""
# `sleep=0` would ask the server without a pause.
_SLEEP_LEAST: Final = 0.01
_engines: Final[WeakKeyDictionary[object, dict[float | None, Engine]]] = WeakKeyDictionary()


class LockError(Error, exceptions.LockError):
    """The lock could not be acquired, or is not in the state that the call needs."""


class LockNotOwnedError(LockError, exceptions.LockNotOwnedError):
    """The lock was held by this object, and no longer is."""


class LockTimeoutError(Error, TimeoutError):
    """`RedisLock` could not be acquired within its `wait_timeout`."""


class BadSetting(ConfigError, exceptions.LockError):
    """A name, a time or another argument cannot work; nothing was changed."""


class RedisUnavailable(StoreUnavailable, exceptions.ConnectionError, exceptions.TimeoutError):
    """The request was certainly not applied."""


class RedisOutcomeUnknown(OutcomeUnknown, exceptions.ConnectionError, exceptions.TimeoutError):
    """The request was perhaps applied."""


_IN_BOTH: Final[dict[type[Error], type[Error]]] = {
    ConfigError: BadSetting,
    StoreUnavailable: RedisUnavailable,
    OutcomeUnknown: RedisOutcomeUnknown,
}


class _BothFamilies:
    """Turns our errors into errors that callers of redis-py catch, too."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for ours, both in _IN_BOTH.items():
            if isinstance(error, ours):
                raised = both(str(error))
                raised.__dict__.update(error.__dict__)
                raise raised from error.__cause__


_both_families: Final = _BothFamilies()


class _KeptLease:
    """A lease, and the token that it shows. `extending`: the calls that make it last longer now;
    `bound`: its end, which the machine has not while they wait. Both are changed under `mutex`.
    """

    def __init__(self, lease: Any = None, token: bytes | None = None) -> None:
        self.lease = lease
        self.token = token
        # One that a signal handler's call may enter again.
        self.mutex = threading.RLock()
        self.extending: set[object] = set()
        self.bound: float = inf if lease is None else lease._claim.machine.at_most_until


class _OfThread(ByCaller[_KeptLease], threading.local):
    pass


class _Handle(Generic[L]):
    """The part that both of redis-py's locks share: everything that sends no request."""

    def __init__(
        self,
        redis: Client,
        name: str | bytes,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        self.name = _text_of(name, "name")
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self._kept = _OfThread() if self.thread_local else ByCaller[_KeptLease]()
        try:
            engines = _engines.setdefault(redis, {})
        except TypeError:  # None and the like, which are refused in words below
            engines = {}
        if restart_wait not in engines:
            with _both_families:
                engines[restart_wait] = engine_from_client(
                    redis, key="{name}", restart_wait=restart_wait
                )
        self._store = engines[restart_wait]

    @property
    def local(self) -> _KeptLease:
        """The caller's `token`, as in redis-py, and its `lease`."""
        return self._kept.own() or _KeptLease()

    def _settings(self, token: str | bytes | None) -> LockSettings:
        settings = LockSettings()
        # As in redis-py, 0 means none.
        if self.timeout:
            least, most = _TTL
            seconds = parse_duration(self.timeout, "timeout", least=0.001)
            ttl = min(max(seconds, least), most)
            settings = LockSettings(ttl=ttl, grace=0.0, at_most_for=seconds)
        if token is not None:
            settings["holder"] = _text_of(token, "token")
        return settings

    def _polling(self, wanted: LeaseRequest, sleep: float | None) -> LeaseRequest:
        every = parse_duration(self.sleep if sleep is None else sleep, "sleep")
        return wanted._replace(poll_every=max(_SLEEP_LEAST, every), outage_most=_OUTAGE)

    def _seconds_to_wait(self, blocking: bool | None, timeout: float | None) -> float | None:
        if not (self.blocking if blocking is None else blocking):
            return 0.0
        seconds: Any = self.blocking_timeout if timeout is None else timeout
        if seconds is None or (isinstance(seconds, int | float) and seconds > 366 * DAY):
            return None
        # As in redis-py, a negative one is a single try. NaN and other types are refused later.
        return 0.0 if isinstance(seconds, int | float) and seconds < 0 else seconds

    def _keep(self, lease: L, token: str | bytes | None) -> bool:
        given = lease.belief.claim_id if token is None else token
        self._kept.keep(_KeptLease(lease, given.encode() if isinstance(given, str) else given))
        return True

    def _mine(self) -> L | None:
        lease: L | None = self.local.lease
        return lease if lease is not None and lease.valid else None

    def _leave(self) -> L:
        kept = self.local
        if kept.lease is None:
            raise self._error("Cannot release a lock that's not owned or is already unlocked.")
        # Before the release: whatever becomes of that, the caller is done with it.
        self._kept.drop(kept)
        lease: L = kept.lease
        return lease

    @contextmanager
    def _lasting(self, what: str, seconds: float, *, more: bool = False) -> Iterator[L]:
        """Make the lease end `seconds` from now (`more`: that much later) if the body renews it."""
        kept, this = self.local, object()
        lease: L | None = kept.lease
        if lease is None:
            raise self._error(f"Cannot {what} an unlocked lock")
        if not self.timeout:
            raise self._error(f"Cannot {what} a lock with no timeout")
        with _both_families:
            # A time that leaves none would end the lock and report it as prolonged.
            seconds = parse_duration(seconds, f"{what}: time", least=0.0 if more else 0.001)
            machine, now = lease._claim.machine, clock.now()
            try:
                lease.check()
                with kept.mutex:
                    kept.extending.add(this)
                    # A lease that its bound ends next is not renewed, but the store must confirm
                    # it.
                    machine.move_end(inf)
                yield lease
                with kept.mutex:
                    kept.bound = (kept.bound if more else now) + seconds
            except LeaseLost as lost:
                raise self._not_owned(what, lost) from None
            finally:
                with kept.mutex:
                    kept.extending.discard(this)
                    # In any case: without a confirmation the bound is the one from before.
                    if not kept.extending:
                        machine.move_end(kept.bound)

    def _error(self, message: str) -> LockError:
        return LockError(message, lock_name=self.name)

    def _not_owned(self, what: str, lost: LeaseLost) -> LockNotOwnedError:
        return LockNotOwnedError(
            f"Cannot {what} a lock that's no longer owned: {lost}", lock_name=self.name
        )

    def _not_acquired(self) -> LockError:
        return self._error("Unable to acquire lock within the time specified")

    def _not_released(self, error: LockError) -> None:
        if self.raise_on_release_error:
            raise error
        _log.warning("%s: unlocked or no longer owned at the end of its body: %s", self.name, error)


class Lock(_Handle[leases.Lease]):
    """In place of redis-py's `redis.lock.Lock`, also as `client.lock(name, lock_class=Lock)`."""

    def _lock(self, token: str | bytes | None = None, sleep: float | None = None) -> locks.Lock:
        lock = locks.Lock(self.name, store=self._store, **self._settings(token))
        lock._wanted = self._polling(lock._wanted, sleep)
        return lock

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Wait for the lock, or try once; False if another holder had it.

        Raises RedisUnavailable, RedisOutcomeUnknown, BadSetting.
        """
        with _both_families:
            wait = self._seconds_to_wait(blocking, blocking_timeout)
            # Before the request: a caller that is refused must not get another's lease for its own.
            self._kept.note_attempt()
            try:
                lease = self._lock(token, sleep).acquire(wait)
            except NotAcquired:
                return False
        return self._keep(lease, token)

    def release(self) -> None:
        """Release it. Raises LockError, LockNotOwnedError; nothing if the store does not answer."""
        try:
            self._leave().release()
        except LeaseLost as lost:
            raise self._not_owned("release", lost) from None

    def locked(self) -> bool:
        """Whether any holder has the lock, as the store says. Raises as `acquire`."""
        with _both_families:
            return self._lock().locked()

    def owned(self) -> bool:
        """Whether this lock is proved, and the store confirms it. Raises as `acquire`."""
        lease = self._mine()
        with _both_families:
            return lease is not None and _is_among(self._lock()._holdings(), lease)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Prolong the lock by that much, or (`replace_ttl`) to that from now; the store confirms.

        Raises LockError, LockNotOwnedError, and, where the lock lasts as before, RedisUnavailable
        and BadSetting (for a time that is not finite, or would leave none).
        """
        with self._lasting("extend", additional_time, more=not replace_ttl) as lease:
            lease.renew()
        return True

    def reacquire(self) -> bool:
        """Make the lock last for `timeout` from now. Raises as `extend`."""
        with self._lasting("reacquire", self.timeout or 0.0) as lease:
            lease.renew()
        return True

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.release()
        except LockError as late:
            self._not_released(late)


class AsyncLock(_Handle[leases.AsyncLease]):
    """In place of redis-py's `redis.asyncio.lock.Lock`; see `Lock`. A loss cancels no body."""

    def _lock(
        self, token: str | bytes | None = None, sleep: float | None = None
    ) -> locks.AsyncLock:
        lock = locks.AsyncLock(self.name, store=self._store, **self._settings(token))
        lock._wanted = self._polling(lock._wanted, sleep)
        return lock

    async def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Wait for the lock, or try once; see Lock.acquire."""
        with _both_families:
            wait = self._seconds_to_wait(blocking, blocking_timeout)
            self._kept.note_attempt()
            try:
                lease = await self._lock(token, sleep).acquire(wait)
            except NotAcquired:
                return False
        return self._keep(lease, token)

    async def release(self) -> None:
        """Release the lock; see Lock.release."""
        try:
            await self._leave().release()
        except LeaseLost as lost:
            raise self._not_owned("release", lost) from None

    async def locked(self) -> bool:
        """Whether any holder has the lock; see Lock.locked."""
        with _both_families:
            return await self._lock().locked()

    async def owned(self) -> bool:
        """Whether this lock is proved, and the store confirms it; see Lock.owned."""
        lease = self._mine()
        with _both_families:
            return lease is not None and _is_among(await self._lock()._holdings(), lease)

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Make the lock last longer; see Lock.extend."""
        with self._lasting("extend", additional_time, more=not replace_ttl) as lease:
            await lease.renew()
        return True

    async def reacquire(self) -> bool:
        """Make the lock last for `timeout` from now; see Lock.reacquire."""
        with self._lasting("reacquire", self.timeout or 0.0) as lease:
            await lease.renew()
        return True

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise self._not_acquired()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.release()
        except LockError as late:
            self._not_released(late)


class RedisLock:
    """In place of aioredis-lock's `RedisLock`, on a client or pool of `redis.asyncio`.

    `timeout`: seconds that the lock lasts at most; `wait_timeout`: seconds to wait, None: for ever.
    """

    def __init__(
        self, pool_or_conn: Client, key: str, timeout: float = 30, wait_timeout: float | None = 30
    ) -> None:
        self.pool_or_conn = pool_or_conn
        self.key = key
        self.timeout = timeout
        self.wait_timeout = wait_timeout
        self._lock = AsyncLock(pool_or_conn, key, timeout, thread_local=False)

    async def acquire(self, timeout: float = 30, wait_timeout: float | None = 30) -> bool:
        """Wait for the lock; False if other holders had it all that time. Raises StoreError."""
        self._lock.timeout = timeout
        return await self._lock.acquire(blocking_timeout=wait_timeout)

    async def extend(self, added_time: float) -> bool:
        """Make the lock last longer; False if it is no longer held here. Raises StoreError."""
        return await self._lasts(added_time)

    async def renew(self, timeout: float | None = None) -> bool:
        """Make the lock last for `timeout` (default: as it was made) from now; as `extend`."""
        return await self._lasts(timeout or self.timeout, replace_ttl=True)

    async def is_owner(self) -> bool:
        """Whether this lock is proved, and the store confirms it. Raises StoreError."""
        return await self._lock.owned()

    async def release(self) -> bool:
        """Release the lock; False if it was no longer held here."""
        try:
            await self._lock.release()
        except LockError:
            return False
        return True

    async def _lasts(self, seconds: float, *, replace_ttl: bool = False) -> bool:
        try:
            return await self._lock.extend(seconds, replace_ttl)
        except LockError:
            return False

    async def __aenter__(self) -> Self:
        if not await self.acquire(self.timeout, self.wait_timeout):
            raise LockTimeoutError("Unable to acquire lock within timeout")
        return self

    async def __aexit__(self, *_: object) -> None:
        if not await self.release():
            _log.warning("%s: no longer owned at the end of its body", self.key)


def _text_of(value: str | bytes, what: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise BadSetting(f"{what}={value!r:.60}: {error.reason} of UTF-8", name=what) from None


def _is_among(holdings: Sequence[Holding], lease: SingleLease) -> bool:
    """Whether the lease is among the store's `holdings`, and still proved."""
    return lease.belief.claim_id in [holding.claim for holding in holdings] and lease.valid
