"""Locks on several names, all or none.

The names are taken in one order, so that two who take the same ones never wait for each other; see
`protocol.acquire.acquire_all`. Each name is a lease of its own, with its own token.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack

from incumbent.callers import bodies_of_task, current_task
from incumbent.durations import Duration
from incumbent.errors import ConfigError, LeaseLost, NotAcquired
from incumbent.handles import AnyLease, AnyLock, brief
from incumbent.lease import State
from incumbent.locks import BlockingLease, SuspendingLease
from incumbent.options import LockSettings, wanted_from
from incumbent.protocol.acquire import acquire_all
from incumbent.protocol.held import Wanted
from incumbent.protocol.port import ManyPort, run
from incumbent.protocol.release import release_all

if TYPE_CHECKING:
    from incumbent.protocol.link import StoreLike

M = TypeVar("M", bound="MultiLeaseHandle")

NAMES_MOST: Final = 64
"""Names of one lock: many stores are asked for all of them in one request."""
_REFUSED: Final = ("once_per", "slot", "at_least_for", "reentrant")


class MultiLeaseHandle(AnyLease):
    """Leases on several names, which are valid together or not at all."""

    __slots__ = ()

    @property
    def tokens(self) -> Mapping[str, int]:
        """The fencing token of each name, see Lease.fencing_token."""
        return {held.wanted.key.name: held.machine.token for held in self._helds}

    @property
    def names(self) -> tuple[str, ...]:
        """What is leased, in the order in which it was taken."""
        return tuple(self.tokens)

    def __repr__(self) -> str:
        state = "valid" if self.valid else "lost" if self.lost else "released"
        return f"<{type(self).__name__} {', '.join(self.names)} {state}>"

    async def _give_back(self, port: ManyPort) -> tuple[LeaseLost | None, bool]:
        """What was lost, if something was, and whether the store confirmed all the rest."""
        self._work_is_over()
        lost = self._take_leave()
        alive = [held for held in self._helds if held.machine.state is State.HELD]
        try:
            confirmed = await release_all(port, alive)
        finally:
            for held in alive:
                self._link.keeper.disarm(held)
        return lost or self._loss(), confirmed

    async def _released(self, port: ManyPort) -> bool:
        if self._let_go():
            self._refuse_release()
        lost, confirmed = await self._give_back(port)
        if lost is not None:
            raise lost
        return confirmed


class MultiLease(MultiLeaseHandle, BlockingLease):
    """Leases on several names, all or none; renewed until they are released. A context manager.

    If one of them is lost, all are: `check` raises, and the body ends in LeaseLost that names it.
    """

    __slots__ = ()

    def release(self) -> bool:
        """Give all back together; False if the store did not confirm it. See Lease.release."""
        return run(self._released(self._link.port))

    def _end(self) -> LeaseLost | None:
        return run(self._give_back(self._link.port))[0]


class AsyncMultiLease(MultiLeaseHandle, SuspendingLease):
    """Leases on several names, all or none; see MultiLease. An async context manager.

    The body is cancelled at the first `renew_deadline` of them, or as soon as one is lost.
    """

    __slots__ = ()

    async def release(self) -> bool:
        """Give all back together; see MultiLease.release."""
        return await self._released(self._link.async_port())

    async def _end(self) -> LeaseLost | None:
        return (await self._give_back(self._link.async_port()))[0]


class MultiHandle(AnyLock[M], Generic[M]):
    """What is decided when a lock on several names is built."""

    __slots__ = ("_wanted",)

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
        self._wanted = [wanted_from(namespace, it, can, **settings) for it in sorted(names)]

    def _all_wanted(self) -> list[Wanted]:
        return self._wanted

    @property
    def names(self) -> tuple[str, ...]:
        """What it leases, in the order in which it is taken."""
        return tuple(wanted.key.name for wanted in self._wanted)


class MultiLock(MultiHandle[MultiLease]):
    """Several names that one holder at a time can lease, all or none.

    `names`: 1 to 64 different ones. They are taken in the order of the alphabet: while it waits for
    one, those after it are left to others. `settings` are those of `incumbent.Lock`, for each name,
    but for once_per, slot, at_least_for and reentrant. Raises ConfigError when built with what
    cannot work.

    >>> with MultiLock(["account-1", "account-2"], store="memory:", timeout=5) as lease:
    ...     lease.check(need=2)
    """

    __slots__ = ()

    def _caller(self) -> Any:
        return threading.current_thread()

    def acquire(self, timeout: Duration | EllipsisType | None = ...) -> MultiLease:
        """Wait for all of them, for at most `timeout` seconds if given, else as the lock says.

        Raises NotAcquired (tried once), AcquireTimeout (waited), StoreUnavailable, OutcomeUnknown:
        then none is held, and the store is told so.
        """
        link, wait = self._link, self._seconds(timeout)
        with brief:
            helds = run(acquire_all(link.port, link.keeper, self._wanted, wait))
        return MultiLease(link, helds, self._on_lost, self._if_lost)

    def try_acquire(self) -> MultiLease | None:
        """Try once: the lease, or None if the store says that one of the names is not ours."""
        try:
            return self.acquire(0)
        except NotAcquired:
            return None

    def __enter__(self) -> MultiLease:
        lease = self.acquire().__enter__()
        self._has_entered(lease)
        return lease

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave().__exit__(kind, error, trace)


class AsyncMultiLock(MultiHandle[AsyncMultiLease]):
    """Several names that one holder at a time can lease, for asyncio; see `incumbent.MultiLock`.

    >>> async def main():
    ...     async with AsyncMultiLock(["account-1", "account-2"], store="memory:") as lease:
    ...         lease.check(need=2)
    """

    __slots__ = ()

    _bodies = staticmethod(bodies_of_task)

    def _caller(self) -> Any:
        return current_task()

    async def acquire(self, timeout: Duration | EllipsisType | None = ...) -> AsyncMultiLease:
        """Wait for all of them; see MultiLock.acquire. A cancellation leaves nothing believed."""
        link, wait = self._link, self._seconds(timeout)
        with brief:
            helds = await acquire_all(link.async_port(), link.keeper, self._wanted, wait)
        return AsyncMultiLease(link, helds, self._on_lost, self._if_lost)

    async def try_acquire(self) -> AsyncMultiLease | None:
        """Try once: the lease, or None if the store says that one of the names is not ours."""
        try:
            return await self.acquire(0)
        except NotAcquired:
            return None

    async def __aenter__(self) -> AsyncMultiLease:
        lease = await (await self.acquire()).__aenter__()
        self._has_entered(lease)
        return lease

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave().__aexit__(kind, error, trace)


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
