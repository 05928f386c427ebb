"""Locks on one name, for blocking code and for asyncio, and the callers inside them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import EllipsisType, FrameType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Never, NoReturn, TypeVar, Unpack

from incumbent import clock
from incumbent.durations import Duration
from incumbent.errors import ConfigError, LockError, Misuse, NotAcquired, NotHeld
from incumbent.locks.callers import (
    allow_reentry,
    bodies_of_task,
    bodies_of_thread,
    current_task,
    enclosing_generator,
    enter_again,
    has_ended,
    present_caller,
    refuse_waiting_for_oneself,
)
from incumbent.locks.leases import (
    AnyLease,
    AsyncLease,
    L,
    Lease,
    give_up_all,
    shorten,
    trimmed_traceback,
)
from incumbent.locks.options import (
    IfLost,
    LockSettings,
    OnLost,
    explain_arguments,
    lease_request,
    parse_timeout,
    renamed_after_fork,
)
from incumbent.locks.other_words import refuse_copy, refuse_words, refuse_wrong_with, warn_in_loop
from incumbent.protocol.acquire import acquire
from incumbent.protocol.messages import claim_lost, waits_for_itself
from incumbent.runtime.link import Link, link_for
from incumbent.stores.plan import run_blocking

if TYPE_CHECKING:
    from incumbent.model import Holding
    from incumbent.protocol.claim import Claim, LeaseRequest
    from incumbent.runtime.link import StoreLike

A = TypeVar("A", bound=AnyLease)


class LockEntry(NamedTuple, Generic[A]):
    """A lease on a lock: whose it is, and whether a `with` of the lock will release it.

    `ends_with`: the thread or task whose end removes the entry (for a task perhaps its thread);
    None: the `with` removes it. `generator`: the frame of the generator that entered it.
    """

    caller: weakref.ref[Any] | None
    lease: A
    entered: bool
    ends_with: weakref.ref[Any] | None = None
    generator: FrameType | None = None


class AnyLock(Generic[A]):
    """A lock on one name, or on several: its store, its timeout, and the callers inside it."""

    __slots__ = (
        "__weakref__",
        "_entries",
        "_if_lost",
        "_link",
        "_on_lost",
        "_on_trouble",
        "_timeout",
    )

    def __init__(
        self, store: StoreLike | None, timeout: Duration | None, settings: LockSettings
    ) -> None:
        self._link = link_for(store)
        self._timeout = parse_timeout(timeout)
        self._on_lost = settings.get("on_lost")
        self._on_trouble = settings.get("on_trouble")
        self._if_lost: IfLost = settings.get("if_lost", "raise")
        self._entries: list[LockEntry[A]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_wrong_with(cls)

    _bodies = staticmethod(bodies_of_thread)

    # Objects, because numbers of threads are used again. A task is a caller on the blocking side
    # too: several tasks of one thread may share a lock.
    _caller: Callable[[], Any] = staticmethod(present_caller)

    def _all_wanted(self) -> Sequence[LeaseRequest]:
        raise NotImplementedError

    def _names(self) -> str:
        return ", ".join(repr(wanted.key.name) for wanted in self._all_wanted())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._names()} of {self._link.engine.url}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def _seconds_to_wait(self, timeout: Duration | EllipsisType | None) -> float | None:
        """The checked timeout. Raises Misuse if the caller would wait for itself."""
        if self._link.client_end.closed:
            self._link.client_end.refuse(f"{self._names()}: ")
        wait = self._timeout if timeout is ... else parse_timeout(timeout)
        if wait != 0 and (bodies := self._bodies()):
            for wanted in self._all_wanted():
                refuse_waiting_for_oneself(wanted, self._link.identity, bodies)
        return wait

    def _caller_ref(self) -> weakref.ref[Any] | None:
        caller = self._caller()
        return None if caller is None else weakref.ref(caller)

    def _enter(self, lease: A) -> A:
        lease._enter_body()
        self._note_entered(lease)
        return lease

    def _note_entered(self, lease: A) -> None:
        caller, within = self._caller_ref(), enclosing_generator()
        self._entries.append(LockEntry(caller, lease, entered=True, generator=within))

    def _pop_entered(self) -> A:
        """Remove and return the lease that this generator, or the caller, entered last.

        If it entered none, that of the only caller inside. Raises NotHeld.
        """
        entry = None
        try:
            entry = self._last_entered()
            self._entries.remove(entry)
        except NotHeld:
            raise
        except BaseException:
            # An error of a signal handler: the lock would keep its lease, renewed for ever.
            entry = entry or self._last_entered()
            give_up_all(self._link, entry.lease._claims, undo_slot=False)
            raise
        return entry.lease

    def _last_entered(self) -> LockEntry[A]:
        # From a copy: while other threads remove entries, an iteration of the list skips some.
        me, entries = self._caller_ref(), self._entries.copy()
        inside = [entry for entry in entries if entry.entered]
        # A generator may be left by another caller than the one that entered it, who is inside too:
        # of a semaphore, that one's own lease goes on.
        within = enclosing_generator()
        if within is not None and (ours := [it for it in inside if it.generator is within]):
            return ours[-1]
        # Weak references of one object are equal, also when they are not the same.
        own = [entry for entry in inside if entry.caller == me] or inside
        if not own or any(entry.caller != own[0].caller for entry in own):
            raise NotHeld(f"the lock on {self._names()} was not entered here")
        return own[-1]


class SingleLock(AnyLock[L], Generic[L]):
    """A lock on one name: the settings that were checked when it was built."""

    __slots__ = ("_reentrant", "_request_as_made")

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
        super().__init__(store, timeout, settings)
        can = self._link.engine.capabilities
        self._wanted = lease_request(namespace, name, can, self._permits, **settings)
        self._reentrant = settings.get("reentrant", False)
        if self._reentrant and not (self._may_be_reentrant and self._wanted.permits is None):
            raise ConfigError("reentrant: only a Lock can be entered again", name="reentrant")

    _permits: int | None = None
    """`Ask.permits`: the number of holders at once; None: exclusive."""
    _may_be_reentrant = False

    @property
    def _wanted(self) -> LeaseRequest:
        return renamed_after_fork(self._request_as_made)

    @_wanted.setter
    def _wanted(self, wanted: LeaseRequest) -> None:
        self._request_as_made = wanted

    def _all_wanted(self) -> Sequence[LeaseRequest]:
        return (self._wanted,)

    @property
    def name(self) -> str:
        """The name that the lock leases."""
        return self._wanted.key.name

    def _is_full(self, holdings: Sequence[Holding]) -> bool:
        """Whether another holder would be refused beside these holdings."""
        permits = self._permits
        if permits is None or any(holding.permits != permits for holding in holdings):
            return bool(holdings)
        return 0 < permits <= len(holdings)

    def _arm(self, claim: Claim) -> tuple[Link, Sequence[Claim], OnLost | None, IfLost]:
        """Make the keeper renew `claim`; return the arguments of its lease object."""
        claim.on_trouble = self._on_trouble
        self._link.keeper.arm(claim)
        if self._reentrant:
            allow_reentry(claim, self._link)
        return self._link, (claim,), self._on_lost, self._if_lost

    def _read_until(self) -> float:
        return clock.now() + self._wanted.policy.request_timeout


class LeaseKeepingLock(SingleLock[L], Generic[L]):
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
        lease = self._callers_lease()
        return lease is not None and lease.valid

    def _callers_lease(self) -> L | None:
        """The caller's last lease that is not released, or else its last one."""
        me, entries = self._caller_ref(), self._entries.copy()
        own = [entry.lease for entry in entries if entry.caller == me] or self._handed_over(entries)
        alive = (lease for lease in reversed(own) if not lease._is_released())
        return next(alive, own[-1] if own else None)

    def _handed_over(self, entries: Sequence[LockEntry[L]]) -> list[L]:
        """The leases that others may have left to a caller that acquired none."""
        return []

    def _lease_to_release(self) -> L:
        lease = self._callers_lease()
        if lease is None:
            raise NotHeld(
                f"release: this thread or task acquired no lease on {self.name!r} through this"
                " lock; others call release() of the lease that acquire() returned"
            )
        return lease

    def _replace_kept(self, lease: L) -> L:
        """Keep `lease` for a later `release`, in place of those that were released."""
        for entry in self._entries.copy():
            if not entry.entered and (entry.lease._is_released() or self._is_replaced(entry)):
                _drop(self._entries, entry)
        self._keep(lease)
        return lease

    def _is_replaced(self, entry: LockEntry[L]) -> bool:
        """Whether a new lease of the caller takes its place."""
        # A task that lives keeps the entry of a lease that it lost: without the entry, its
        # `release` would release the lease of the next task.
        caller = entry.caller and entry.caller()
        return not self._reentrant and (caller is None or caller is self._caller())

    def _keep(
        self, lease: L, *, entered: bool = False, caller: weakref.ref[Any] | None = None
    ) -> None:
        ends_with = self._entries_end_with()
        if ends_with is not None:
            # Weak references both ways: a lease in a reference cycle would be released late.
            kept_by = weakref.ref(ends_with, partial(_forget, weakref.ref(self)))
            if caller is None:
                # A thread in which no task runs is both.
                caller = kept_by if self._caller() is ends_with else self._caller_ref()
            self._entries.append(LockEntry(caller, lease, entered, kept_by))

    def _entries_end_with(self) -> Any:
        """The thread or task whose end drops what is kept for the caller."""
        return self._caller()

    def _note_entered(self, lease: L) -> None:
        if self._reentrant:
            # A caller that ends inside drops its lease, so that the holding ends too.
            self._keep(lease, entered=True)
        else:
            super()._note_entered(lease)

    def _refuse_waiting(self) -> None:
        """Raise Misuse if only this lock keeps a lease of the caller: nothing else would end it."""
        own = [
            entry
            for entry in self._entries.copy()
            if not (entry.entered or entry.lease._is_released()) and entry.lease.valid
            if entry.ends_with and entry.ends_with() is self._entries_end_with()
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

    def _refuse_in_released_body(self) -> None:
        """Raise Misuse in a `with` of this lock whose lease was released: nobody ends the next."""
        if self._entries and any(
            entry.entered and entry.lease._is_released() and entry.caller == self._caller_ref()
            for entry in self._entries.copy()
        ):
            raise Misuse(
                f"{self.name!r}: its lease was released in this `with`, whose end would not release"
                " another: leave the `with` first, or write a second one inside"
            )

    def _refuse_reentry(self) -> None:
        """Raise Misuse if the caller would wait for itself."""
        # Who only tries may get another permit.
        tries = self._timeout == 0 and self._permits is not None
        if self._entries and not (self._reentrant or tries):
            me = self._caller_ref()
            for entry in self._entries.copy():
                # A lost lease is in nobody's way, and in a fork's child it is the parent's.
                if entry.entered and entry.caller == me and entry.lease.valid:
                    raise Misuse(waits_for_itself(entry.lease._claim.wanted, self._wanted))

    def _enter_again(
        self, timeout: Duration | EllipsisType | None
    ) -> tuple[Link, Sequence[Claim]] | None:
        """The caller's holding, entered again, or None. Raises LeaseLost if it was lost."""
        if timeout is not ...:
            parse_timeout(timeout)
        found = enter_again(self._wanted.key, self._link.identity)
        if found is None:
            return None
        link, claim, proved = found
        if not proved:
            raise claim_lost(claim, link.keeper.seconds_unscheduled(claim.machine.deadline))
        return link, (claim,)

    def _seconds_to_wait(self, timeout: Duration | EllipsisType | None) -> float | None:
        wait = super()._seconds_to_wait(timeout)
        if self._entries and wait != 0 and not self._reentrant:
            self._refuse_waiting()
        return wait


def _forget(lock: weakref.ref[LeaseKeepingLock[Any]], ends_with: weakref.ref[Any]) -> None:
    alive = lock()
    if alive is not None:
        for entry in alive._entries.copy():
            if entry.ends_with is ends_with:
                _drop(alive._entries, entry)


def _drop(entries: list[LockEntry[L]], entry: LockEntry[L]) -> None:
    try:
        entries.remove(entry)
    except ValueError:
        pass  # another thread was faster


class Lock(LeaseKeepingLock[Lease]):
    """A lock on a name, for one holder at a time. See `incumbent.locks.options.LockSettings`.

    `ttl` (15 s): after a crash, how long until another gets the lease; it is renewed while held, so
    that the work may last longer. `store`: a URL, a Client, a client or pool of redis-py, psycopg
    or SQLAlchemy, or None for INCUMBENT_STORE or this host's SQLite file. `timeout`: seconds to
    wait (None: for ever; 0: try once). Many threads may use one Lock. Without `reentrant=True`,
    waiting for the name in the body of a lease on it raises Misuse. With it, the thread (or task)
    that acquired the lease gets another Lease on the same holding: same token, deadline and
    settings, without a request. The release of the last one releases the holding; entering a lost
    holding again raises LeaseLost. Raises ConfigError for settings that cannot work.

    >>> with Lock("invoice-7", store="memory:", timeout=5) as lease:
    ...     lease.check(need=2)
    """

    __slots__ = ()

    def _entries_end_with(self) -> Any:
        # A task of this thread may end before another one releases what it acquired.
        return present_caller() if self._reentrant else threading.current_thread()

    def _handed_over(self, entries: Sequence[LockEntry[Lease]]) -> list[Lease]:
        """The oldest lease that ended tasks of this thread left behind."""
        # The oldest, because one that lost a lease releases before one that got the name next.
        here = None if self._reentrant else threading.current_thread()
        left = [
            entry.lease
            for entry in entries
            if entry.caller and entry.ends_with and entry.ends_with() is here
            # A task that still runs may be in the body of its lease.
            if (caller := entry.caller()) is here or has_ended(caller)
        ]
        return [lease for lease in left if not lease._is_released()][:1] or left[-1:]

    def acquire(self, timeout: Duration | EllipsisType | None = ..., **unknown: Never) -> Lease:
        """Wait for the lease, for at most `timeout` seconds (default: the lock's `timeout`).

        The lock keeps the lease for this thread (see `release`). Raises NotAcquired (after a single
        try), AcquireTimeout (after a wait), StoreUnavailable, OutcomeUnknown, and Misuse for a
        wait in the body of the same name, or if the client was closed.
        """
        if unknown:
            refuse_words(unknown, "acquire")
        self._refuse_in_released_body()
        return self._acquire(self._replace_kept, timeout)

    def _acquire(
        self, keep: Callable[[Lease], Lease], timeout: Duration | EllipsisType | None = ...
    ) -> Lease:
        link = self._link
        reentered = self._enter_again(timeout) if self._reentrant else None
        try:
            if reentered:
                (claim,) = reentered[1]
            else:
                wait = self._seconds_to_wait(timeout)
                warn = None if wait == 0 else self._warn_in_loop
                claim = run_blocking(acquire(link.port, self._wanted, wait, warn))
        except LockError as error:
            shorten(error)
            raise
        try:
            # From the grant on nobody but us knows of it: an error of a signal handler must not
            # leave it held.
            return keep(Lease(*(reentered or self._arm(claim))))
        except BaseException:
            give_up_all(link, (claim,), undo_slot=True)
            raise

    def _warn_in_loop(self, _: object) -> None:
        warn_in_loop(repr(self), f"Async{type(self).__name__}")

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
        return self._lease_to_release().release()

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
        return self._acquire(self._enter)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pop_entered().__exit__(kind, error, trace)


class AsyncLock(LeaseKeepingLock[AsyncLease]):
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

    async def acquire(
        self, timeout: Duration | EllipsisType | None = ..., **unknown: Never
    ) -> AsyncLease:
        """Wait for the lease; see Lock.acquire. After a cancellation the caller holds nothing."""
        if unknown:
            refuse_words(unknown, "acquire")
        self._refuse_in_released_body()
        return self._replace_kept(await self._acquire(timeout))

    async def _acquire(self, timeout: Duration | EllipsisType | None = ...) -> AsyncLease:
        if self._reentrant and (reentered := self._enter_again(timeout)):
            return AsyncLease(*reentered)
        wait = self._seconds_to_wait(timeout)
        with trimmed_traceback:
            claim = await acquire(self._link.async_port(), self._wanted, wait)
        return AsyncLease(*self._arm(claim))

    async def try_acquire(self) -> AsyncLease | None:
        """Try once: the lease, or None if the store refuses it."""
        try:
            return await self.acquire(0)
        except NotAcquired:
            return None

    def release(self) -> Coroutine[Any, Any, bool]:
        """Release the lease that this task acquired through this lock; see Lock.release."""
        # Looked up here, in the caller's task: see AsyncLease.release.
        return self._lease_to_release().release()

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
        self._note_entered(lease)
        return lease

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._pop_entered().__aexit__(kind, error, trace)
