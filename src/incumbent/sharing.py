"""Leases that several may hold at once: semaphores, and locks for readers and writers.

Each holder has a lease of its own, as that of a `Lock`: with a token, renewed, lost by itself. The
store counts (`Ask.permits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from incumbent.durations import Duration
from incumbent.errors import ConfigError
from incumbent.handles import L
from incumbent.locks import AsyncLease, AsyncLock, Lease, Lock, TakingHandle
from incumbent.model import UNLIMITED
from incumbent.options import PERMITS_MOST, LockSettings

if TYPE_CHECKING:
    from incumbent.protocol.link import StoreLike

A = TypeVar("A", Lock, AsyncLock)


class _Counted(TakingHandle[L], Generic[L]):
    """A lock of so many holders at once."""

    __slots__ = ("_permits",)

    _permits: int

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
        """How many may hold it at once, in the whole fleet."""
        return self._permits


class Semaphore(_Counted[Lease], Lock):
    """A name that at most `permits` holders of the whole fleet lease at once.

    Each has a lease of its own, with its own fencing token and expiry; see `incumbent.Lock` for
    what a lease does, and for the settings: all but once_per, slot, at_least_for, reentrant. All
    have to say the same `permits`, from 1 to 10,000: while it is held with another number,
    `acquire` raises ConfigError with both. In the body of one permit a second one is not waited for
    (Misuse): callers who have one each and wait for another would wait for each other. `timeout=0`
    tries.

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
    """Two locks of one name."""

    __slots__ = ("read", "write")

    _sides: tuple[type[A], type[A]]

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
        self.write: A = writes(name, store=store, namespace=namespace, timeout=timeout, **fair)

    @property
    def name(self) -> str:
        """The name that it leases."""
        return self.write.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class ReadWriteLock(_ReadWrite[Lock]):
    """Any number of readers at once (`read`), or one writer (`write`). Each is a `Lock`.

    Waiters get it in the order of arrival, so that readers do not starve a writer. A writer's
    fencing token is larger than that of every reader and writer before it. In the body of `read`
    nobody waits for `write` (Misuse): two that try would wait for each other. Leave that body,
    enter that of `write`, and look again at what was read. `write` is the Lock of that name, which
    others may use too. The settings are those of `Lock`, all but once_per, slot,
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
