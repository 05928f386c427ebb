"""Locks on several names, all or none.

The names are taken in one order, so that two who take the same ones never wait for each other; see
`protocol.acquire.acquire_all`. Each name is a lease of its own, with its own token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, Unpack

from incumbent.durations import Duration
from incumbent.errors import ConfigError, LeaseLost, Misuse, NotAcquired, NotHeld
from incumbent.handles import LeaseHandle, brief, refuse_copy
from incumbent.inner import bodies_of_task, bodies_of_thread, refuse_waiting_for_oneself
from incumbent.locks import AsyncLease, Lease, note
from incumbent.options import LockSettings, OnLost, parse_timeout, wanted_from
from incumbent.protocol.acquire import acquire_all
from incumbent.protocol.held import Held
from incumbent.protocol.link import Link, link_for
from incumbent.protocol.port import ManyPort, run
from incumbent.protocol.release import release_all

if TYPE_CHECKING:
    from incumbent.protocol.aio import LeaseScope
    from incumbent.protocol.given import StoreLike

H = TypeVar("H", bound=LeaseHandle)
M = TypeVar("M", bound="MultiLeaseHandle[Any]")

NAMES_MOST: Final = 64
"""Names of one lock: all of them are asked for in one request."""
_REFUSED: Final = ("once_per", "slot", "at_least_for", "reentrant")


class MultiLeaseHandle(Generic[H]):
    """Leases on several names, which are valid together or not at all."""

    __slots__ = ("__weakref__", "_held", "_leases", "_link", "tokens")

    def __init__(self, link: Link, leases: Sequence[H]) -> None:
        self._link = link
        self._leases = leases
        self._held: Sequence[Held] = [lease._held for lease in leases]
        self.tokens: Mapping[str, int] = MappingProxyType(
            {lease.name: lease.fencing_token for lease in leases}
        )
        """The fencing token of each name, see Lease.fencing_token."""

    @property
    def names(self) -> tuple[str, ...]:
        """What is leased, in the order in which it was taken."""
        return tuple(self.tokens)

    @property
    def valid(self) -> bool:
        """Whether all of them are proved at this instant."""
        return all(lease.valid for lease in self._leases)

    @property
    def remaining(self) -> float:
        """Seconds for which all are proved without another renewal; 0.0 if one is not."""
        return min(lease.remaining for lease in self._leases)

    @property
    def lost(self) -> bool:
        """Whether one of them ended without our letting go of it."""
        return any(lease.lost for lease in self._leases)

    def check(self, need: Duration = 0.0) -> None:
        """Return only if all are proved for at least `need` more; see Lease.check.

        The LeaseLost names the one that is not.
        """
        for lease in sorted(self._leases, key=lambda lease: not lease.lost):
            lease.check(need)

    def __reduce__(self) -> Any:
        refuse_copy(self)

    def __repr__(self) -> str:
        state = "valid" if self.valid else "lost" if self.lost else "released"
        return f"<{type(self).__name__} {', '.join(self.names)} {state}>"

    def _loss(self) -> LeaseLost | None:
        """The loss of the first that was lost, if one was."""
        lost = [lease for lease in self._leases if lease.lost]
        return min(lost, key=lambda lease: lease._held.machine.deadline)._loss() if lost else None

    def _let_go(self) -> bool:
        return all(lease._let_go() for lease in self._leases)

    def _enter_body(self) -> None:
        for lease in self._leases:
            lease._enter_body()

    def _body_is_over(self) -> bool:
        """Whether it was given back in the body."""
        for lease in self._leases:
            lease._body_is_over()
        return self._let_go()

    async def _end(self, port: ManyPort) -> tuple[LeaseLost | None, bool]:
        """Give all back: what was lost, if something was, and whether the store confirmed all."""
        for lease in self._leases:
            lease._work_is_over()
        lost = self._loss()
        alive = [lease._held for lease in self._leases if lease._take_leave() is None]
        try:
            confirmed = await release_all(port, alive)
        finally:
            for held in alive:
                self._link.keeper.disarm(held)
        return lost or self._loss(), confirmed

    async def _released(self, port: ManyPort) -> bool:
        if self._let_go():
            self._leases[0]._refuse_release()
        lost, confirmed = await self._end(port)
        if lost is not None:
            raise lost
        return confirmed

    def _renew_all(self, tell: Callable[[], None]) -> None:
        """Have all renewed now; `tell` is called once each of them was tried."""
        left = list(self._held)

        def tried() -> None:
            left.pop()
            if not left:
                tell()

        for held in self._held:
            self._link.keeper.renew_now(held, tried)

    def _renewal_verdict(self) -> float:
        return min(lease._renewal_verdict() for lease in self._leases)


class MultiLease(MultiLeaseHandle[Lease]):
    """Leases on several names, all or none; renewed until they are released. A context manager.

    If one of them is lost, all are: `check` raises, and the body ends in LeaseLost that names it.
    """

    __slots__ = ()

    def renew(self) -> float:
        """Renew all now, and return the seconds that are proved; see Lease.renew."""
        self.check()
        done = threading.Event()
        self._renew_all(done.set)
        done.wait(self.remaining)
        return self._renewal_verdict()

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Block until one of them ends, for at most `timeout` seconds; True if it was lost."""
        keeper, ended = self._link.keeper, threading.Event()
        tell = ended.set
        for held in self._held:
            keeper.watch(held, tell)
        try:
            ended.wait(parse_timeout(timeout))
        finally:
            for held in self._held:
                keeper.unwatch(held, tell)
        return self.lost

    def release(self) -> bool:
        """Give all back together; False if the store did not confirm it. See Lease.release."""
        return run(self._released(self._link.port))

    def __enter__(self) -> Self:
        self.check()
        self._enter_body()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._body_is_over():
            return
        lost, _ = run(self._end(self._link.port))
        if lost is None:
            return
        if error is None:
            raise lost
        note(error, lost)


class AsyncMultiLease(MultiLeaseHandle[AsyncLease]):
    """Leases on several names, all or none; see MultiLease. An async context manager.

    The body is cancelled at the first `renew_deadline` of them, or as soon as one is lost.
    """

    __slots__ = ("_scope",)

    _scope: LeaseScope

    async def renew(self) -> float:
        """Renew all now, and return the seconds that are proved; see Lease.renew."""
        from incumbent.protocol.aio import until_told

        self.check()
        await until_told(self._renew_all, self.remaining)
        return self._renewal_verdict()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until one of them ends, for at most `timeout` seconds; True if it was lost."""
        from incumbent.protocol.aio import until_told

        keeper = self._link.keeper

        def of_all(do: Any, tell: Any) -> None:
            for held in self._held:
                do(held, tell)

        seconds = parse_timeout(timeout)
        await until_told(partial(of_all, keeper.watch), seconds, partial(of_all, keeper.unwatch))
        return self.lost

    async def release(self) -> bool:
        """Give all back in one request; see MultiLease.release."""
        return await self._released(self._link.async_port())

    async def __aenter__(self) -> Self:
        from incumbent.protocol.aio import LeaseScope

        self.check()
        self._scope = LeaseScope(*self._held)
        for held in self._held:
            self._link.keeper.watch(held, self._scope.look_soon, ahead=None)
        self._enter_body()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from asyncio import CancelledError

        own_cancel = self._scope.close()
        if self._body_is_over():
            return
        first = min(self._leases, key=lambda lease: lease._held.machine.stop_at)
        first._scope = self._scope
        lost, _ = await self._end(self._link.async_port())
        if (lost := lost or first._stopped()) is None:
            return
        if error is None or (own_cancel and isinstance(error, CancelledError)):
            raise lost from error
        note(error, lost)


class MultiHandle(Generic[M]):
    """What is decided when a lock on several names is built."""

    __slots__ = ("__weakref__", "_entered", "_if_lost", "_link", "_on_lost", "_timeout", "_wanted")

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
        self._link = link_for(store)
        can = self._link.engine.capabilities
        self._wanted = [wanted_from(namespace, it, can, **settings) for it in sorted(names)]
        self._timeout = parse_timeout(timeout)
        self._on_lost = settings.get("on_lost")
        self._if_lost = settings.get("if_lost", "raise")
        self._entered: dict[Hashable, M] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What it leases, in the order in which it is taken."""
        return tuple(wanted.key.name for wanted in self._wanted)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.names)} of {self._link.engine.url}>"

    def __reduce__(self) -> Any:
        refuse_copy(self)

    def _seconds(self, timeout: Duration | EllipsisType | None, bodies: Any) -> float | None:
        if self._link.closed:
            raise Misuse(f"{self.names[0]!r}: the client that this came from was closed")
        wait = self._timeout if timeout is ... else parse_timeout(timeout)
        if wait != 0:
            for wanted in self._wanted:
                refuse_waiting_for_oneself(wanted, self._link.same, bodies)
        return wait

    def _lease_of(self, kind: type[H], helds: Sequence[Held]) -> list[H]:
        on_lost = None if self._on_lost is None else _only_once(self._on_lost)
        return [kind(self._link, held, on_lost, self._if_lost) for held in helds]

    def _leave(self, me: Hashable) -> M:
        lease = self._entered.pop(me, None)
        if lease is None:
            raise NotHeld(f"the lock on {self.names} was not entered here")
        return lease


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

    def acquire(self, timeout: Duration | EllipsisType | None = ...) -> MultiLease:
        """Wait for all of them, for at most `timeout` seconds if given, else as the lock says.

        Raises NotAcquired (tried once), AcquireTimeout (waited), StoreUnavailable, OutcomeUnknown:
        then none is held, and the store is told so.
        """
        link, wait = self._link, self._seconds(timeout, bodies_of_thread())
        with brief:
            helds = run(acquire_all(link.port, link.keeper, self._wanted, wait))
        return MultiLease(link, self._lease_of(Lease, helds))

    def try_acquire(self) -> MultiLease | None:
        """Try once: the lease, or None if the store says that one of the names is not ours."""
        try:
            return self.acquire(0)
        except NotAcquired:
            return None

    def __enter__(self) -> MultiLease:
        lease = self.acquire().__enter__()
        self._entered[threading.get_ident()] = lease
        return lease

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(threading.get_ident()).__exit__(kind, error, trace)


class AsyncMultiLock(MultiHandle[AsyncMultiLease]):
    """Several names that one holder at a time can lease, for asyncio; see `incumbent.MultiLock`.

    >>> async def main():
    ...     async with AsyncMultiLock(["account-1", "account-2"], store="memory:") as lease:
    ...         lease.check(need=2)
    """

    __slots__ = ()

    async def acquire(self, timeout: Duration | EllipsisType | None = ...) -> AsyncMultiLease:
        """Wait for all of them; see MultiLock.acquire. A cancellation leaves nothing believed."""
        link, wait = self._link, self._seconds(timeout, bodies_of_task())
        with brief:
            helds = await acquire_all(link.async_port(), link.keeper, self._wanted, wait)
        return AsyncMultiLease(link, self._lease_of(AsyncLease, helds))

    async def try_acquire(self) -> AsyncMultiLease | None:
        """Try once: the lease, or None if the store says that one of the names is not ours."""
        try:
            return await self.acquire(0)
        except NotAcquired:
            return None

    async def __aenter__(self) -> AsyncMultiLease:
        from asyncio import current_task

        lease = await (await self.acquire()).__aenter__()
        self._entered[current_task()] = lease
        return lease

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from asyncio import current_task

        await self._leave(current_task()).__aexit__(kind, error, trace)


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


def _only_once(on_lost: OnLost) -> OnLost:
    """For the first loss alone."""
    left = [on_lost]

    def call(lost: LeaseLost) -> None:
        if left:
            left.pop()(lost)

    return call
