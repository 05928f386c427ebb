"""Locks on several names, all or none; and leases that several holders share.

All callers take names in the same order, so that no two of them wait for each other; see
`protocol.acquire.acquire_all`. Each name has its own lease and token. Each holder of a semaphore or
of a read-write lock also has its own lease, which is renewed and lost by itself; the store counts
the holders (`Ask.permits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Final, Generic, Never, TypeVar, Unpack

from incumbent.durations import Duration
from incumbent.errors import ConfigError, LockError, NotAcquired
from incumbent.locks.callers import bodies_of_task, current_task
from incumbent.locks.leases import (
    AnyLease,
    AsyncLease,
    BlockingLease,
    L,
    Lease,
    SuspendingLease,
    give_up_all,
    shorten,
    trimmed_traceback,
)
from incumbent.locks.lock import AnyLock, AsyncLock, LeaseKeepingLock, Lock
from incumbent.locks.options import (
    PERMITS_MOST,
    LockSettings,
    explain_arguments,
    lease_request,
    renamed_after_fork,
)
from incumbent.locks.other_words import refuse_words
from incumbent.model import UNLIMITED
from incumbent.protocol.acquire import acquire_all
from incumbent.protocol.claim import LeaseRequest
from incumbent.stores.plan import run_blocking

if TYPE_CHECKING:
    from incumbent.runtime.link import StoreLike

M = TypeVar("M", bound="MultiLeaseHandle")
A = TypeVar("A", Lock, AsyncLock)

NAMES_MOST: Final = 64
"""The most names of one lock: many stores are asked for all of them in one request."""
_REFUSED: Final = ("once_per", "slot", "at_least_for", "reentrant")


# -- several names ---------------------------------------------------------------------------------


class MultiLeaseHandle(AnyLease):
    """Leases on several names, which are valid together or not at all."""

    __slots__ = ()

    @property
    def tokens(self) -> Mapping[str, int]:
        """The fencing token of each name, see Lease.fencing_token."""
        return {claim.wanted.key.name: claim.machine.token for claim in self._claims}

    @property
    def names(self) -> tuple[str, ...]:
        """The leased names, in the order in which they were taken."""
        return tuple(self.tokens)

    def __repr__(self) -> str:
        state = "valid" if self.valid else "lost" if self.lost else "released"
        return f"<{type(self).__name__} {', '.join(self.names)} {state}>"


class MultiLease(MultiLeaseHandle, BlockingLease):
    """Leases on several names, all or none; renewed until they are released. A context manager.

    If one of them is lost, all are: `check` raises, and the body ends in a LeaseLost with its name.
    """

    __slots__ = ()


class AsyncMultiLease(MultiLeaseHandle, SuspendingLease):
    """Leases on several names, all or none; see MultiLease. An async context manager.

    The body is cancelled at the earliest `renew_deadline` of them, or as soon as one is lost.
    """

    __slots__ = ()


class MultiHandle(AnyLock[M], Generic[M]):
    """A lock on several names: the settings that were checked when it was built."""

    __slots__ = ("_requests_as_made",)

    @explain_arguments
    def __init__(
        self,
        names: Collection[str],
        *,
        store: StoreLike | None = None,
        namespace: str = "default",
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> None:
        _refuse_names(names)
        for what in _REFUSED:
            if settings.get(what):
                raise ConfigError(f"{what}: it is for a Lock, which has one name", name=what)
        super().__init__(store, timeout, settings)
        can = self._link.engine.capabilities
        # The same order for everybody: then no two callers can wait for each other.
        self._requests_as_made = [
            lease_request(namespace, it, can, **settings) for it in sorted(names)
        ]

    def _all_wanted(self) -> list[LeaseRequest]:
        return [renamed_after_fork(wanted) for wanted in self._requests_as_made]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the lock leases, in the order in which they are taken."""
        return tuple(wanted.key.name for wanted in self._requests_as_made)


class MultiLock(MultiHandle[MultiLease]):
    """A lock on several names, all or none, for one holder at a time.

    `names`: 1 to 64 different names. They are taken in alphabetical order: during the wait for one,
    the names after it are left to others. `settings` are those of `incumbent.Lock`, for each name,
    except once_per, slot, at_least_for and reentrant. Raises ConfigError for settings that cannot
    work.

    >>> with MultiLock(["account-1", "account-2"], store="memory:", timeout=5) as lease:
    ...     lease.check(need=2)
    """

    __slots__ = ()

    def acquire(
        self, timeout: Duration | EllipsisType | None = ..., **unknown: Never
    ) -> MultiLease:
        """Wait for all names, for at most `timeout` seconds (default: the lock's `timeout`).

        Raises NotAcquired (after a single try), AcquireTimeout (after a wait), StoreUnavailable,
        OutcomeUnknown, and Misuse as `Lock.acquire`: then no name is held, and those taken before
        are released in the store.
        """
        if unknown:
            refuse_words(unknown, "acquire")
        return self._acquire(lambda lease: lease, timeout)

    def _acquire(
        self,
        keep: Callable[[MultiLease], MultiLease],
        timeout: Duration | EllipsisType | None = ...,
    ) -> MultiLease:
        link, wait = self._link, self._seconds_to_wait(timeout)
        try:
            claims = run_blocking(acquire_all(link.port, link.keeper, self._all_wanted(), wait))
        except LockError as error:
            shorten(error)
            raise
        try:
            for claim in claims:
                claim.on_trouble = self._on_trouble
            return keep(MultiLease(link, claims, self._on_lost, self._if_lost))
        except BaseException:
            give_up_all(link, claims, undo_slot=True)
            raise

    def try_acquire(self) -> MultiLease | None:
        """Try once: the lease, or None if the store refuses one of the names."""
        try:
            return self.acquire(0)
        except NotAcquired:
            return None

    def __enter__(self) -> MultiLease:
        return self._acquire(self._enter)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pop_entered().__exit__(kind, error, trace)


class AsyncMultiLock(MultiHandle[AsyncMultiLease]):
    """A lock on several names, all or none, for asyncio; see `incumbent.MultiLock`.

    >>> async def main():
    ...     async with AsyncMultiLock(["account-1", "account-2"], store="memory:") as lease:
    ...         lease.check(need=2)
    """

    __slots__ = ()

    _bodies = staticmethod(bodies_of_task)
    _caller = staticmethod(current_task)

    async def acquire(
        self, timeout: Duration | EllipsisType | None = ..., **unknown: Never
    ) -> AsyncMultiLease:
        """Wait for all names; see MultiLock.acquire. After a cancellation none of them is held."""
        if unknown:
            refuse_words(unknown, "acquire")
        link, wait = self._link, self._seconds_to_wait(timeout)
        with trimmed_traceback:
            claims = await acquire_all(link.async_port(), link.keeper, self._all_wanted(), wait)
        for claim in claims:
            claim.on_trouble = self._on_trouble
        return AsyncMultiLease(link, claims, self._on_lost, self._if_lost)

    async def try_acquire(self) -> AsyncMultiLease | None:
        """Try once: the lease, or None if the store refuses one of the names."""
        try:
            return await self.acquire(0)
        except NotAcquired:
            return None

    async def __aenter__(self) -> AsyncMultiLease:
        lease = await (await self.acquire()).__aenter__()
        self._note_entered(lease)
        return lease

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._pop_entered().__aexit__(kind, error, trace)


def _refuse_names(names: object) -> None:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise ConfigError("names: a list of names; for one alone take a Lock", name="names")
    count, different = len(names), len(set(names))
    if different < count:
        raise ConfigError(
            f"names: {count} names, of which only {different} are different", name="names"
        )
    if not 1 <= count <= NAMES_MOST:
        raise ConfigError(f"names: {count} of them; 1 to {NAMES_MOST} can be taken", name="names")


# -- several holders -------------------------------------------------------------------------------


class _Counted(LeaseKeepingLock[L], Generic[L]):
    """A lock for at most `permits` holders at once."""

    __slots__ = ("_permits",)

    _permits: int

    @explain_arguments
    def __init__(
        self,
        name: str,
        permits: int,
        *,
        store: StoreLike | None = None,
        namespace: str = "default",
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> None:
        if type(permits) is not int or not 1 <= permits <= PERMITS_MOST:
            raise ConfigError(
                f"permits={permits!r}: a number from 1 to {PERMITS_MOST:,}", name="permits"
            )
        self._permits = permits
        super().__init__(name, store=store, namespace=namespace, timeout=timeout, **settings)

    @property
    def permits(self) -> int:
        """The number of holders at once, in the whole fleet."""
        return self._permits


class Semaphore(_Counted[Lease], Lock):
    """A name that at most `permits` holders of the whole fleet lease at once.

    Each holder has its own lease, with its own fencing token and expiry; see `incumbent.Lock` for
    leases, and for the settings: all but once_per, slot, at_least_for, reentrant. All holders must
    give the same `permits`, from 1 to 10,000: while the name is held with another number, `acquire`
    raises ConfigError with both numbers. Waiting for a second permit in the body of the first
    raises Misuse: callers who have one each and wait for another would wait for each other.
    `timeout=0` only tries.

    >>> with Semaphore("gpu", permits=4, store="memory:", timeout=60) as lease:
    ...     lease.check(need=2)
    """

    __slots__ = ()


class AsyncSemaphore(_Counted[AsyncLease], AsyncLock):
    """A name that at most `permits` holders lease at once, for asyncio; see `incumbent.Semaphore`.

    >>> async def main():
    ...     async with AsyncSemaphore("gpu", permits=4, store="memory:") as lease:
    ...         lease.check(need=2)
    """

    __slots__ = ()


class ReadLock(Lock):
    """The side of a ReadWriteLock that readers share."""

    __slots__ = ()
    _permits = UNLIMITED


class AsyncReadLock(AsyncLock):
    """The side of an AsyncReadWriteLock that readers share."""

    __slots__ = ()
    _permits = UNLIMITED


class _ReadWrite(Generic[A]):
    """The two locks on one name."""

    __slots__ = ("read", "write")

    _sides: tuple[type[A], type[A]]

    @explain_arguments
    def __init__(
        self,
        name: str,
        *,
        store: StoreLike | None = None,
        namespace: str = "default",
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> None:
        if settings.get("fair") is False:
            raise ConfigError(
                "fair=False: a read-write lock keeps the order of arrival, or readers would starve"
                " writers",
                name="fair",
            )
        fair: LockSettings = {**settings, "fair": True}
        reads, writes = self._sides
        self.read: A = reads(name, store=store, namespace=namespace, timeout=timeout, **fair)
        """The lock of readers: any number of them hold it at once."""
        self.write: A = writes(name, store=store, namespace=namespace, timeout=timeout, **fair)
        """The lock of writers: one holds it, and no reader beside it."""

    @property
    def name(self) -> str:
        """The name that both locks lease."""
        return self.write.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class ReadWriteLock(_ReadWrite[Lock]):
    """Any number of readers at once (`read`), or one writer (`write`). Each is a `Lock`.

    Waiters get the lock in the order of arrival, so that readers do not starve a writer. A writer's
    fencing token is larger than that of every reader and writer before it. Waiting for `write` in
    the body of `read` raises Misuse: two such readers would wait for each other. Leave that body,
    enter that of `write`, and check again what was read. `write` is a plain Lock on the name, so
    others may use a Lock on it too. The settings are those of `Lock`, all but once_per, slot,
    at_least_for, reentrant; it is always fair.

    >>> prices = ReadWriteLock("prices", store="memory:", timeout=60)
    >>> with prices.read as lease:
    ...     lease.check(need=2)
    >>> with prices.write as lease:
    ...     lease.check(need=2)
    """

    __slots__ = ()
    _sides = (ReadLock, Lock)


class AsyncReadWriteLock(_ReadWrite[AsyncLock]):
    """Any number of readers at once, or one writer, for asyncio; see `incumbent.ReadWriteLock`.

    >>> async def main():
    ...     async with AsyncReadWriteLock("prices", store="memory:").read as lease:
    ...         lease.check(need=2)
    """

    __slots__ = ()
    _sides = (AsyncReadLock, AsyncLock)
