"""Locks and their leases, for blocking code and for asyncio.

An asyncio body is cancelled before its proof runs out; blocking code has to check. asyncio is
imported at its first use, so that blocking code does not pay for it at each start of a command.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, Self

from incumbent import clock
from incumbent.callers import (
    bodies_of_task,
    current_task,
    enter_again,
    has_ended,
    present_caller,
)
from incumbent.durations import Duration
from incumbent.errors import LeaseLost, LockError, Misuse, NotAcquired, NotHeld
from incumbent.handles import (
    AnyLease,
    L,
    LeaseHandle,
    LockEntry,
    LockHandle,
    give_up_all,
    loss_of,
    shorten,
    trimmed_traceback,
)
from incumbent.options import parse_timeout
from incumbent.protocol.acquire import acquire, acquire_blocking
from incumbent.protocol.release import release, release_blocking
from incumbent.protocol.words import lease_lost, waits_for_itself

if TYPE_CHECKING:
    from incumbent.model import Holding
    from incumbent.protocol.aio import LeaseScope
    from incumbent.protocol.held import Claim
    from incumbent.protocol.link import Link


class BlockingLease(AnyLease):
    """The blocking operations of a lease on one name, or on several."""

    __slots__ = ()

    def renew(self) -> float:
        """Renew now, and return the seconds for which the lease is proved.

        Raises LeaseLost, StoreUnavailable (the lease may still be valid), AlreadyReleased.
        """
        self.check()
        done = threading.Event()
        self._renew_now(done.set)
        done.wait(self.remaining)
        return self._renewal_verdict()

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Block until the holding ends, for at most `timeout` seconds; True if it was lost."""
        ended = threading.Event()
        tell = ended.set
        self._watch(tell)
        try:
            ended.wait(parse_timeout(timeout))
        finally:
            self._unwatch(tell)
        return self.lost

    def _exit(self) -> LeaseLost | None:
        """Release the lease as its body exits; return the loss to report, if it was lost."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.check()
        self._enter_body()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._exit_body()
            if self._is_released():
                return
            lost = self._exit()
        except BaseException:
            give_up_all(self._link, self._helds, undo_slot=False)
            raise
        if lost is None:
            return
        if error is None:
            raise lost
        add_loss_note(error, lost)


class Lease(LeaseHandle, BlockingLease):
    """A held lease; renewed in the background until it is released. A context manager.

    Blocking code cannot be stopped from outside: it has to check (`check`, `lost`, `wait_lost`,
    `on_lost`), and a body that outlives its lease ends in LeaseLost.
    """

    __slots__ = ()

    def release(self) -> bool:
        """Release the lease; False if the store did not confirm it (then its ttl ends it).

        Raises LeaseLost if it was lost before, also if only the store's answer shows that;
        AlreadyReleased if it was released before.
        """
        now = clock.now()
        if not self._held.machine.valid(now):
            self._refuse_release()
        confirmed = self._exit_inner() or self._release(now)
        if not confirmed and (lost := self._loss()) is not None:
            raise lost
        return confirmed

    def _release(self, now: float | None = None, *, undo_slot: bool = False) -> bool:
        link, held = self._link, self._held
        self._begin_release()
        now = clock.now() if now is None else now
        try:
            return release_blocking(link.port, held, now, undo_slot=undo_slot)
        finally:
            link.keeper.disarm(held)

    def _exit(self) -> LeaseLost | None:
        lost = self._lost_before_release()
        if lost is None and not self._exit_inner() and not self._release():
            lost = self._loss()
        return lost


def release_unless_lost(lease: Lease, *, undo_slot: bool = False) -> bool:
    """Release the lease, and return whether the store confirmed it: False after a loss."""
    if lease._lost_before_release() is not None:
        return False
    return lease._release(undo_slot=undo_slot)


class SuspendingLease(AnyLease):
    """The asyncio operations of a lease on one name, or on several."""

    __slots__ = ()

    _scope: LeaseScope

    async def renew(self) -> float:
        """Renew now, and return the seconds for which it is proved; see Lease.renew."""
        from incumbent.protocol.aio import until_told

        self.check()
        await until_told(self._renew_now, self.remaining)
        return self._renewal_verdict()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the holding ends, for at most `timeout` seconds; True if it was lost."""
        from incumbent.protocol.aio import until_told

        await until_told(self._watch, parse_timeout(timeout), self._unwatch)
        return self.lost

    async def _exit(self) -> LeaseLost | None:
        """See BlockingLease."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self.check()
        self._scope = cancel_at_deadline(self)
        self._enter_body()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from asyncio import CancelledError

        own_cancel = self._scope.close()
        if self._scope.watcher is not None:
            self._unwatch(self._scope.watcher)
        self._exit_body()
        if self._is_released():
            return
        lost = await self._exit() or self._stopped()
        if lost is None:
            return
        if error is None or (own_cancel and isinstance(error, CancelledError)):
            raise lost from error
        add_loss_note(error, lost)

    def _stopped(self) -> LeaseLost | None:
        """The loss to report if the scope stopped the body, even of a proved lease; else None."""
        if not self._scope.fired:
            return None
        first = min(self._helds, key=lambda held: held.machine.stop_at)
        reason = "at_most_for" if first.machine.bounded else "expired"
        name = first.wanted.key.name
        return lease_lost(name, reason, "; the body was cancelled within the lease")


class AsyncLease(LeaseHandle, SuspendingLease):
    """A held lease; renewed in the background until it is released. An async context manager.

    Inside `async with` the task is cancelled at the lease's renew_deadline, so that its clean-up
    still runs within the lease; the caller then gets LeaseLost. Code outside checks as for `Lease`.
    """

    __slots__ = ()

    async def release(self) -> bool:
        """Release the lease; see Lease.release. A cancelled call ends the belief in it too."""
        if not self.valid:
            self._refuse_release()
        confirmed = self._exit_inner() or await self._release()
        if not confirmed and (lost := self._loss()) is not None:
            raise lost
        return confirmed

    async def _release(self, *, undo_slot: bool = False) -> bool:
        self._begin_release()
        try:
            return await release(self._link.async_port(), self._held, undo_slot=undo_slot)
        finally:
            self._link.keeper.disarm(self._held)

    async def _exit(self) -> LeaseLost | None:
        lost = self._lost_before_release()
        if lost is None and not self._exit_inner() and not await self._release():
            lost = self._loss()
        return lost


def add_loss_note(error: BaseException, lost: LeaseLost) -> None:
    """Add a note on the loss to the body's own error, unless the error says the same."""
    if str(lost) != str(error):
        error.add_note(str(lost))


def cancel_at_deadline(lease: AnyLease) -> LeaseScope:
    """Have the calling task cancelled at the end of the lease, until the scope is closed."""
    from incumbent.protocol.aio import LeaseScope

    scope = LeaseScope(*lease._helds)
    look = scope.look_soon
    if lease._helds[0].inner is not None:
        # Noted for removal: a holding entered a thousand times would keep a thousand watchers.
        scope.watcher = look
    lease._watch(look, ahead=None)
    return scope


class TakingHandle(LockHandle[L], Generic[L]):
    """A lock that keeps the lease of each thread or task that acquired it, while that caller lives.

    This is for callers who keep the lock and not the lease. A reentrant lock keeps all leases of a
    caller, in the order of its entries; another lock keeps the last one that it acquired.
    """

    __slots__ = ()

    _may_be_reentrant = True

    def owned(self) -> bool:
        """Whether a lease that this thread or task acquired through this lock is proved now.

        Like `Lease.valid`, this sends no request. False means "not proved": the store may still
        refuse others until the ttl of a lease that could not be renewed is over.
        """
        lease = self._mine()
        return lease is not None and lease.valid

    def _mine(self) -> L | None:
        """The caller's last lease that is not released, or else its last one."""
        me, entries = self._me(), self._entries.copy()
        own = [entry.lease for entry in entries if entry.caller == me] or self._handed_over(entries)
        alive = (lease for lease in reversed(own) if not lease._is_released())
        return next(alive, own[-1] if own else None)

    def _handed_over(self, entries: Sequence[LockEntry[L]]) -> list[L]:
        """The lease for a caller that acquired none: others may have left theirs to it."""
        return []

    def _of_caller(self) -> L:
        lease = self._mine()
        if lease is None:
            raise NotHeld(
                f"release: this thread or task acquired no lease on {self.name!r} through this"
                " lock; others call release() of the lease that acquire() returned"
            )
        return lease

    def _note(self, lease: L) -> L:
        for entry in self._entries.copy():
            if not entry.entered and (entry.lease._is_released() or self._is_replaced(entry)):
                _drop(self._entries, entry)
        self._keep(lease)
        return lease

    def _is_replaced(self, entry: LockEntry[L]) -> bool:
        """Whether a new lease of the caller takes its place."""
        # A live task keeps what it lost: else it would release the lease of the task after it.
        caller = entry.caller and entry.caller()
        return not self._reentrant and (caller is None or caller is self._caller())

    def _keep(
        self, lease: L, *, entered: bool = False, caller: weakref.ref[Any] | None = None
    ) -> None:
        home = self._home()
        if home is not None:
            # Weak references both ways: a lease in a reference cycle would be released late.
            kept_by = weakref.ref(home, partial(_forget, weakref.ref(self)))
            if caller is None:
                # A thread in which no task runs is both.
                caller = kept_by if self._caller() is home else self._me()
            self._entries.append(LockEntry(caller, lease, entered, kept_by))

    def _home(self) -> Any:
        """The thread or task that keeps the caller's leases alive."""
        return self._caller()

    def _has_entered(self, lease: L) -> None:
        if self._reentrant:
            # A caller that ends inside drops its lease, so that the holding ends too.
            self._keep(lease, entered=True)
        else:
            super()._has_entered(lease)

    def _refuse_waiting(self) -> None:
        """Raise Misuse if only this lock keeps a lease of the caller: nothing else would end it."""
        own = [
            entry
            for entry in self._entries.copy()
            if not entry.entered and entry.lease.valid
            if entry.home and entry.home() is self._home()
        ]
        if not own:
            return
        entry = own.pop()
        own.clear()
        _drop(self._entries, entry)
        seen, caller = weakref.ref(entry.lease), entry.caller
        del entry
        kept = seen()
        if kept is None:
            raise Misuse(
                f"{self.name!r} was acquired by this thread or task before, and neither released"
                " nor kept: it would wait for itself. That lease is given back now"
            )
        self._keep(kept, caller=caller)

    def _refuse_reentry(self) -> None:
        """Raise Misuse if the caller would wait for itself."""
        if self._entries and not self._reentrant:
            me = self._me()
            for entry in self._entries.copy():
                # A lost one is in nobody's way, and in the child of a fork it is the parent's.
                if entry.entered and entry.caller == me and entry.lease.valid:
                    raise Misuse(waits_for_itself(entry.lease._held.wanted, self._wanted))

    def _enter_again(self, timeout: Duration | EllipsisType | None) -> tuple[Link, Claim] | None:
        """The caller's holding, entered again, or None. Raises LeaseLost if it was lost."""
        if timeout is not ...:
            parse_timeout(timeout)
        found = enter_again(self._wanted.key, self._link.same)
        if found is None:
            return None
        link, held, proved = found
        if not proved:
            raise loss_of(held, link.keeper.missed(held.machine.deadline))
        return link, held

    def _wait(self, timeout: Duration | EllipsisType | None) -> float | None:
        """Seconds to wait for the lease. Raises Misuse if the caller would wait for itself."""
        wait = self._seconds(timeout)
        if self._entries and wait != 0 and not self._reentrant:
            self._refuse_waiting()
        return wait


def _forget(lock: weakref.ref[TakingHandle[Any]], home: weakref.ref[Any]) -> None:
    alive = lock()
    if alive is not None:
        for entry in alive._entries.copy():
            if entry.home is home:
                _drop(alive._entries, entry)


def _drop(entries: list[LockEntry[L]], entry: LockEntry[L]) -> None:
    try:
        entries.remove(entry)
    except ValueError:
        pass  # another thread was faster


class Lock(TakingHandle[Lease]):
    """A lock on a name, for one holder at a time. Settings: see `incumbent.options.LockSettings`.

    `store`: a URL, a Client, a client or pool of redis-py, psycopg or SQLAlchemy, or None for
    INCUMBENT_STORE or this host's SQLite file. `timeout`: seconds to wait (None: for ever; 0: try
    once). Many threads may use one Lock. Without `reentrant=True`, waiting for the name in the body
    of a lease on it raises Misuse. With it, the thread (or task) that acquired the lease gets
    another Lease on the same holding: same token, deadline and settings, without a request. The
    release of the last one releases the holding; entering a lost holding again raises LeaseLost.
    Raises ConfigError for settings that cannot work.

    >>> with Lock("invoice-7", store="memory:", timeout=5) as lease:
    ...     lease.check(need=2)
    """

    __slots__ = ()

    def _home(self) -> Any:
        # A task of this thread may end before another one releases what it acquired.
        return present_caller() if self._reentrant else threading.current_thread()

    def _handed_over(self, entries: Sequence[LockEntry[Lease]]) -> list[Lease]:
        """The oldest lease that ended tasks of this thread left: who lost one releases first."""
        here = None if self._reentrant else threading.current_thread()
        left = [
            entry.lease
            for entry in entries
            if entry.caller and entry.home and entry.home() is here
            # One that goes on may be in its body.
            if (caller := entry.caller()) is here or has_ended(caller)
        ]
        return [lease for lease in left if not lease._is_released()][:1] or left[-1:]

    def acquire(self, timeout: Duration | EllipsisType | None = ...) -> Lease:
        """Wait for the lease, for at most `timeout` seconds (default: the lock's `timeout`).

        The lock keeps the lease for this thread (see `release`). Raises NotAcquired (after a single
        try), AcquireTimeout (after a wait), StoreUnavailable, OutcomeUnknown, and Misuse for a
        wait in the body of the same name, or if the client was closed.
        """
        return self._acquire(self._note, timeout)

    def _acquire(
        self, keep: Callable[[Lease], Lease], timeout: Duration | EllipsisType | None = ...
    ) -> Lease:
        link, again = self._link, self._enter_again(timeout) if self._reentrant else None
        try:
            if again:
                held = again[1]
            else:
                held = acquire_blocking(link.port, self._wanted, self._wait(timeout))
        except LockError as error:
            shorten(error)
            raise
        try:
            return keep(Lease(*(again or self._armed(held))))
        except BaseException:
            give_up_all(link, (held,), undo_slot=True)
            raise

    def try_acquire(self) -> Lease | None:
        """Try once: the lease, or None if the store refuses it.

        Raises StoreUnavailable or OutcomeUnknown if the store gives no answer.
        """
        try:
            return self.acquire(0)
        except NotAcquired:
            return None

    def release(self) -> bool:
        """Release the lease that this thread acquired through this lock; see Lease.release.

        Raises NotHeld if the thread acquired none through it.
        """
        return self._of_caller().release()

    def locked(self) -> bool:
        """Whether the name is held, or of a semaphore no permit is left, as the store says.

        Raises StoreError if the store gives no answer. The answer may be outdated on arrival:
        decide by `acquire`. A name that is paused or closed is not held.
        """
        return self._is_full(self._holdings())

    def held_by(self) -> str | None:
        """The current holder's name, for display; perhaps outdated by now. Raises StoreError."""
        holdings = self._holdings()
        return holdings[0].holder if holdings else None

    def _holdings(self) -> tuple[Holding, ...]:
        with trimmed_traceback:
            return self._link.store.read(self._wanted.key, self._read_until()).holdings

    def __enter__(self) -> Lease:
        self._refuse_reentry()
        return self._acquire(self._entered)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave().__exit__(kind, error, trace)


class AsyncLock(TakingHandle[AsyncLease]):
    """A lock on a name, for one holder at a time, for asyncio; see `incumbent.Lock`.

    Tasks and event loops may share one.

    >>> async def main():
    ...     async with AsyncLock("invoice-7", store="memory:", timeout=5) as lease:
    ...         lease.check(need=2)
    """

    __slots__ = ()

    _bodies = staticmethod(bodies_of_task)

    def _caller(self) -> Any:
        return present_caller() if self._reentrant else current_task()

    async def acquire(self, timeout: Duration | EllipsisType | None = ...) -> AsyncLease:
        """Wait for the lease; see Lock.acquire. After a cancellation the caller holds nothing."""
        return self._note(await self._acquire(timeout))

    async def _acquire(self, timeout: Duration | EllipsisType | None = ...) -> AsyncLease:
        if self._reentrant and (again := self._enter_again(timeout)):
            return AsyncLease(*again)
        wait = self._wait(timeout)
        with trimmed_traceback:
            held = await acquire(self._link.async_port(), self._wanted, wait)
        return AsyncLease(*self._armed(held))

    async def try_acquire(self) -> AsyncLease | None:
        """Try once: the lease, or None if the store refuses it."""
        try:
            return await self.acquire(0)
        except NotAcquired:
            return None

    async def release(self) -> bool:
        """Release the lease that this task acquired through this lock; see Lock.release."""
        return await self._of_caller().release()

    async def locked(self) -> bool:
        """Whether the name is held; see Lock.locked."""
        return self._is_full(await self._holdings())

    async def held_by(self) -> str | None:
        """The current holder's name, for display; the answer may be outdated on arrival."""
        holdings = await self._holdings()
        return holdings[0].holder if holdings else None

    async def _holdings(self) -> tuple[Holding, ...]:
        port = self._link.async_port()
        with trimmed_traceback:
            return (await port.read(self._wanted.key, self._read_until())).holdings

    async def __aenter__(self) -> AsyncLease:
        self._refuse_reentry()
        lease = await self._acquire()
        # Noted only once entered: entering fails if a frozen process lost the lease meanwhile.
        await lease.__aenter__()
        self._has_entered(lease)
        return lease

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave().__aexit__(kind, error, trace)
