"""Locks for asyncio: the body is cancelled before its proof runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from importlib import import_module
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from incumbent import clock
from incumbent.candidacy import Metadata, OnElected, OnLeaderChange, OnRevoked
from incumbent.durations import Duration
from incumbent.errors import LeaseLost, NotAcquired
from incumbent.handles import ClientHandle, LeaseHandle, LockHandle
from incumbent.model import Record
from incumbent.options import LockSettings, parse_timeout
from incumbent.protocol.acquire import acquire
from incumbent.protocol.aio import LeaseScope
from incumbent.protocol.held import Held
from incumbent.protocol.release import release
from incumbent.protocol.words import lease_lost
from incumbent.stores.names import make_key

if TYPE_CHECKING:
    from incumbent.aio_elections import AsyncElection

__all__ = ["AsyncClient", "AsyncLease", "AsyncLock", "enclose"]


class AsyncLease(LeaseHandle):
    """A held lease; renewed in the background until it is released. An async context manager.

    Inside `async with` the task is cancelled at the lease's renew_deadline, so that its clean-up
    still runs within the lease; the caller then gets LeaseLost. Outside it is told, as `Lease` is.
    """

    __slots__ = ("_scope",)

    _scope: LeaseScope

    async def renew(self) -> float:
        """Renew now, and return the seconds that are proved; see Lease.renew."""
        self.check()
        await self._until_told(self._link.keeper.renew_now, self.remaining)
        return self._renewal_verdict()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the holding ends, for at most `timeout` seconds; True if it was lost."""
        keeper = self._link.keeper
        await self._until_told(keeper.watch, parse_timeout(timeout), keeper.unwatch)
        return self.lost

    async def _until_told(
        self, ask: Any, timeout: float | None, done: Callable[[Held, Any], None] | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(told.set)

        ask(self._held, tell)
        try:
            async with asyncio.timeout(timeout):
                await told.wait()
        except TimeoutError:
            return
        finally:
            if done is not None:
                done(self._held, tell)

    async def release(self) -> bool:
        """Give the lease back; see Lease.release. A cancellation leaves nothing believed."""
        if not self.valid:
            self._refuse_release()
        confirmed = await self._release()
        if not confirmed and (lost := self._found_lost()) is not None:
            raise lost
        return confirmed

    async def _release(self, *, undo_slot: bool = False) -> bool:
        self._work_is_over()
        try:
            return await release(self._link.async_port(), self._held, undo_slot=undo_slot)
        finally:
            self._link.keeper.disarm(self._held)

    async def __aenter__(self) -> Self:
        self.check()
        self._scope = enclose(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        own_cancel = self._scope.close()
        if self._let_go():
            return
        lost = self._take_leave()
        if lost is None:
            confirmed = await self._release()
            lost = (None if confirmed else self._found_lost()) or self._stopped()
        if lost is None:
            return
        if error is None or (own_cancel and isinstance(error, asyncio.CancelledError)):
            raise lost from error
        error.add_note(str(lost))

    def _stopped(self) -> LeaseLost | None:
        """A body that the scope stopped has no success to report, though its lease was proved."""
        if not self._scope.fired:
            return None
        reason = "at_most_for" if self._held.machine.bounded else "expired"
        return lease_lost(self.name, reason, "; the body was cancelled within the lease")


def enclose(lease: LeaseHandle) -> LeaseScope:
    """Cancel the calling task at the end of the lease, until the scope is closed."""
    scope = LeaseScope(lease._held)
    lease._link.keeper.watch(lease._held, scope.look_soon, ahead=None)
    return scope


class AsyncLock(LockHandle[AsyncLease]):
    """A name that one holder at a time can lease, for asyncio; see `incumbent.Lock`.

    May be shared by tasks and event loops.

    >>> async def main():
    ...     async with AsyncLock("invoice-7", store="memory:", timeout=5) as lease:
    ...         lease.check(need=2)
    """

    __slots__ = ()

    @staticmethod
    def _me() -> Callable[[], Hashable]:
        return asyncio.current_task

    async def acquire(self, timeout: Duration | EllipsisType | None = ...) -> AsyncLease:
        """Wait for the lease; see Lock.acquire. A cancellation leaves nothing believed."""
        held = await acquire(self._link.async_port(), self._wanted, self._seconds(timeout))
        return AsyncLease(*self._armed(held))

    async def try_acquire(self) -> AsyncLease | None:
        """Try once: the lease, or None if the store says that it is not ours."""
        try:
            return await self.acquire(0)
        except NotAcquired:
            return None

    async def held_by(self) -> str | None:
        """Who holds it now, for people; the answer may be old when it arrives."""
        record = await self._link.engine.async_store().read(self._wanted.key, self._read_until())
        return record.holdings[0].holder if record.holdings else None

    async def __aenter__(self) -> AsyncLease:
        self._entered.refuse_reentry()
        lease = await self.acquire()
        # Remembered once it is entered: what was lost meanwhile, by a frozen process, is not.
        await lease.__aenter__()
        self._entered.add(lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._entered.pop().__aexit__(kind, error, trace)


class AsyncClient(ClientHandle):
    """One store, one namespace and common settings for many locks; see `incumbent.Client`."""

    def lock(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[LockSettings]
    ) -> AsyncLock:
        """A lock of this client's store and namespace; `settings` overrule the client's."""
        return AsyncLock(name, timeout=timeout, **self._for_lock(settings))

    def election(
        self,
        name: str,
        *,
        metadata: Metadata = None,
        timeout: Duration | None = None,
        on_elected: OnElected | None = None,
        on_revoked: OnRevoked | None = None,
        on_leader_change: OnLeaderChange | None = None,
        **settings: Unpack[LockSettings],
    ) -> AsyncElection:
        """A candidate in this client's store and namespace; `settings` overrule the client's."""
        # Elections are made of locks, so they are loaded when the first of them is wanted.
        made: type[AsyncElection] = import_module("incumbent.aio_elections").AsyncElection
        return made(
            name,
            metadata=metadata,
            timeout=timeout,
            on_elected=on_elected,
            on_revoked=on_revoked,
            on_leader_change=on_leader_change,
            **self._for_lock(settings),
        )

    async def read(self, name: str, timeout: Duration = 1.0) -> Record:
        """Everything that the store knows of a name; for people, never for a decision."""
        until = clock.now() + (parse_timeout(timeout) or 0.0)
        return await self._link.engine.async_store().read(make_key(self._namespace, name), until)

    async def scan(self, prefix: str = "", timeout: Duration = 5.0) -> tuple[Record, ...]:
        """The records of all names that begin with `prefix`; for people."""
        until = clock.now() + (parse_timeout(timeout) or 0.0)
        return await self._link.engine.async_store().scan(self._namespace, prefix, until)

    async def aclose(self) -> None:
        """End the renewals and let go of the connections."""
        await self._link.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
