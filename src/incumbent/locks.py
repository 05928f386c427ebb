"""Locks for blocking code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from importlib import import_module
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from incumbent import clock
from incumbent.candidacy import Metadata, OnElected, OnLeaderChange, OnRevoked
from incumbent.durations import Duration
from incumbent.errors import NotAcquired, StoreError
from incumbent.handles import ClientHandle, LeaseHandle, LockHandle
from incumbent.model import Record
from incumbent.options import LockSettings, parse_timeout
from incumbent.policy import Policy
from incumbent.protocol.acquire import Told, acquire, acquire_blocking
from incumbent.protocol.port import run
from incumbent.protocol.release import release_blocking
from incumbent.stores.names import make_key

if TYPE_CHECKING:
    from incumbent.elections import Election

__all__ = ["Candidate", "Client", "Lease", "Lock", "give_back"]

_STANDS_FOR = 1.5
"""Times the ttl: a candidate asks again at least once a ttl."""


class Lease(LeaseHandle):
    """A held lease; renewed in the background until it is released. A context manager.

    Blocking code cannot be stopped from outside: it is *told* (`check`, `lost`, `wait_lost`,
    `on_lost`), and a body that outlived its lease ends in LeaseLost.
    """

    __slots__ = ()

    def renew(self) -> float:
        """Renew now, and return the seconds that are proved.

        Raises LeaseLost, StoreUnavailable (the lease may still be valid), AlreadyReleased.
        """
        self.check()
        done = threading.Event()
        self._link.keeper.renew_now(self._held, done.set)
        done.wait(self.remaining)
        return self._renewal_verdict()

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Block until the holding ends, for at most `timeout` seconds; True if it was lost."""
        keeper, ended = self._link.keeper, threading.Event()
        tell = ended.set
        keeper.watch(self._held, tell)
        try:
            ended.wait(parse_timeout(timeout))
        finally:
            keeper.unwatch(self._held, tell)
        return self.lost

    def release(self) -> bool:
        """Give the lease back; False if the store did not confirm it (then its ttl ends it).

        Raises LeaseLost if it was lost before, also where only the store's answer shows that;
        AlreadyReleased if it was released before.
        """
        link, held, now = self._link, self._held, clock.now()
        if not held.machine.valid(now):
            self._refuse_release()
        self._work_is_over()
        confirmed = release_blocking(link.port, held, now)
        link.keeper.disarm(held)
        if not confirmed and (lost := self._found_lost()) is not None:
            raise lost
        return confirmed

    def _release(self, *, undo_slot: bool = False) -> bool:
        link, held = self._link, self._held
        self._work_is_over()
        confirmed = release_blocking(link.port, held, clock.now(), undo_slot=undo_slot)
        link.keeper.disarm(held)
        return confirmed

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._let_go():
            return
        lost = self._take_leave()
        if lost is None and not self._release():
            lost = self._found_lost()
        if lost is None:
            return
        if error is None:
            raise lost
        error.add_note(str(lost))


def give_back(lease: Lease, *, undo_slot: bool = False) -> bool:
    """Release the lease in the store, also after a loss; whether the store confirmed it."""
    if lease._take_leave() is not None:
        return False
    return lease._release(undo_slot=undo_slot)


class Lock(LockHandle[Lease]):
    """A name that one holder at a time can lease. Settings: see `incumbent.options.LockSettings`.

    `store`: a URL, a Client, a redis-py client or pool, or None for INCUMBENT_STORE or this host's
    SQLite file. `timeout`: seconds to wait (None: for ever; 0: try once). One Lock may be used by
    many threads; it is not reentrant. Raises ConfigError when built with what cannot work.

    >>> with Lock("invoice-7", store="memory:", timeout=5) as lease:
    ...     lease.check(need=2)
    """

    __slots__ = ()

    @staticmethod
    def _me() -> Callable[[], Hashable]:
        return threading.get_ident

    def acquire(self, timeout: Duration | EllipsisType | None = ...) -> Lease:
        """Wait for the lease, for at most `timeout` seconds if given, else as the lock says.

        Raises NotAcquired (tried once), AcquireTimeout (waited), StoreUnavailable, OutcomeUnknown.
        """
        link = self._link
        held = acquire_blocking(link.port, self._wanted, self._seconds(timeout))
        link.keeper.arm(held)
        return Lease(link, held, self._on_lost, self._if_lost)

    def try_acquire(self) -> Lease | None:
        """Try once: the lease, or None if the store says that it is not ours.

        Raises StoreUnavailable or OutcomeUnknown when the store does not say.
        """
        try:
            return self.acquire(0)
        except NotAcquired:
            return None

    def held_by(self) -> str | None:
        """Who holds it now, for people; the answer may be old when it arrives."""
        holdings = self._link.store.read(self._wanted.key, self._read_until()).holdings
        return holdings[0].holder if holdings else None

    def __enter__(self) -> Lease:
        self._entered.refuse_reentry()
        lease = self.acquire()
        self._entered.add(lease)
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)


class Candidate(Lock):
    """A lock for `incumbent lead`: it is listed among the candidates while it waits."""

    __slots__ = ()

    def stand(self, meta: bytes, told: Told) -> Lease:
        """Wait for the lease for ever; `told` hears every answer that is no grant.

        `meta`: what the record says of us. Raises a permanent StoreError, and whatever a signal
        handler raises.
        """
        policy = self.policy
        candidacy = policy.ttl * _STANDS_FOR + policy.request_timeout
        ask = replace(self._wanted.ask, meta=meta, candidacy=candidacy)
        wanted = replace(self._wanted, ask=ask)
        return Lease(*self._armed(run(acquire(self._link.port, wanted, None, told))))

    @property
    def holder(self) -> str:
        """Who we are, as others see it."""
        return self._wanted.ask.holder

    @property
    def policy(self) -> Policy:
        """The times of its leases."""
        return self._wanted.policy

    def tell_outage(self, error: StoreError) -> None:
        """Say that the store is away, once a minute at most."""
        self._link.keeper.tell_outage(self._wanted.key, error)


class Client(ClientHandle):
    """One store, one namespace and common settings for many locks; owns its connections.

    `close` (or leaving the `with` block) ends the renewals: leases that are still held run out.
    """

    def lock(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[LockSettings]
    ) -> Lock:
        """A lock of this client's store and namespace; `settings` overrule the client's."""
        return Lock(name, timeout=timeout, **self._for_lock(settings))

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
    ) -> Election:
        """A candidate in this client's store and namespace; `settings` overrule the client's."""
        # Elections are made of locks, so they are loaded when the first of them is wanted.
        made: type[Election] = import_module("incumbent.elections").Election
        return made(
            name,
            metadata=metadata,
            timeout=timeout,
            on_elected=on_elected,
            on_revoked=on_revoked,
            on_leader_change=on_leader_change,
            **self._for_lock(settings),
        )

    def read(self, name: str, timeout: Duration = 1.0) -> Record:
        """Everything that the store knows of a name; for people, never for a decision."""
        until = clock.now() + (parse_timeout(timeout) or 0.0)
        return self._link.store.read(make_key(self._namespace, name), until)

    def scan(self, prefix: str = "", timeout: Duration = 5.0) -> tuple[Record, ...]:
        """The records of all names that begin with `prefix`; for people."""
        until = clock.now() + (parse_timeout(timeout) or 0.0)
        return self._link.store.scan(self._namespace, prefix, until)

    def close(self) -> None:
        """End the renewals and let go of the connections."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
