"""The part that blocking and asyncio leases and locks share: everything that does not wait.

How a lease ends, in four words:

    | word    | what happens                                                    | ends in        |
    |---------|-----------------------------------------------------------------|----------------|
    | stop    | the work has to end, with time left for its clean-up; the lease | still held     |
    |         | is proved: `renew_deadline`, an operator, a better candidate    |                |
    | exit    | control leaves a body; the last one of a reentrant lock to      | a release, or  |
    |         | exit releases                                                   | LeaseLost      |
    | release | we are done: the store is told, so that others need not wait    | RELEASED       |
    | lose    | the proof ended, or the store says that the lease is not ours   | LOST           |
"""

from __future__ import annotations

import logging
import os
import select
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar, Unpack

from incumbent import clock
from incumbent.callers import (
    bodies_of_thread,
    enter,
    forget_bodies,
    present_caller,
    refuse_waiting_for_oneself,
    remember,
)
from incumbent.durations import DAY, Duration, parse_duration, say_seconds
from incumbent.errors import (
    AlreadyReleased,
    ConfigError,
    Error,
    LeaseLost,
    LockError,
    Misuse,
    NotHeld,
    StoreError,
    StoreUnavailable,
)
from incumbent.lease import LeaseState, Proof
from incumbent.options import IfLost, LockSettings, OnLost, parse_timeout, wanted_from
from incumbent.protocol.held import Claim, LeaseRequest
from incumbent.protocol.link import Link, link_for
from incumbent.protocol.release import give_up
from incumbent.protocol.threads import notifier
from incumbent.protocol.words import asked_by, lease_lost
from incumbent.unpatched import original

if TYPE_CHECKING:
    from incumbent.model import Holding, Key, Notice
    from incumbent.policy import Policy
    from incumbent.protocol.link import StoreLike

A = TypeVar("A", bound="AnyLease")
L = TypeVar("L", bound="LeaseHandle")

_log = logging.getLogger("incumbent")

_DRIVERS: Final = frozenset({"hiredis", "incumbent", "psycopg", "sqlite3"})
_EXIT_LOST = 123
_EXIT_AHEAD = 0.1
"""Seconds, at most half of the grace, by which the exit is early: the interpreter may be busy."""
_STDERR = 2
_RELEASED = (LeaseState.LEAVING, LeaseState.RELEASED)


class AnyLease:
    """A lease on one name, or on several: then it is valid as long as all of them are.

    Validity is computed at each read, so it needs no notification.
    """

    __slots__ = ("__weakref__", "_exits", "_helds", "_leave_bodies", "_link", "_scope")

    @staticmethod
    def _now() -> float:
        return clock.now()

    def __init__(
        self,
        link: Link,
        helds: Sequence[Claim],
        on_lost: OnLost | None = None,
        if_lost: IfLost = "raise",
    ) -> None:
        self._link = link
        self._helds = helds
        self._exits: Callable[[], None] | None = None
        self._leave_bodies: Sequence[Callable[[], None]] = ()
        if if_lost == "exit":
            self._exits = partial(_exit_if_lost, helds)
            self._watch(self._exits, min(_EXIT_AHEAD, helds[0].wanted.policy.grace / 2))
        if on_lost is not None:
            self._watch(partial(_call_if_lost, helds, [on_lost]))

    @property
    def valid(self) -> bool:
        """Whether the lease is proved at this instant."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is proved without another renewal; 0.0 if it is not."""
        now = self._now()
        return min([held.machine.remaining(now) for held in self._helds])

    @property
    def lost(self) -> bool:
        """Whether the lease ended without being released."""
        return _first_lost(self._helds, self._now()) is not None

    def check(self, need: Duration = 0.0) -> None:
        """Return only if the lease is proved for at least `need` more.

        Otherwise raises LeaseLost, which names the lease, or AlreadyReleased after a release; also
        ConfigError.
        """
        # NaN is refused: it would never be more than what is left.
        seconds = need if type(need) is float and 0 <= need <= DAY else parse_duration(need, "need")
        now = clock.now()
        for held in self._helds:
            left = held.machine.remaining(now)
            if left <= 0 or left < seconds:
                raise self._why_not(held, left, seconds)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def _why_not(self, held: Claim, left: float, seconds: float) -> Error:
        lost, name = self._loss(), held.wanted.key.name
        if lost is not None:
            return lost
        if held.machine.state in _RELEASED:
            return AlreadyReleased(f"the lease on {name!r} was released")
        why = f": {say_seconds(left)} left, {say_seconds(seconds)} needed"
        return lease_lost(name, "need", why)

    def _loss(self) -> LeaseLost | None:
        """The loss of the lease that was lost first; None if none was lost."""
        held = _first_lost(self._helds, self._now())
        return None if held is None else self._loss_of(held)

    def _loss_of(self, held: Claim) -> LeaseLost:
        return loss_of(held, self._link.keeper.missed(held.machine.deadline))

    def _is_released(self) -> bool:
        """Whether a release began, by us; it may have been confirmed or not."""
        return all(held.machine.state in _RELEASED for held in self._helds)

    def _enter_body(self) -> None:
        if not self._leave_bodies:
            self._leave_bodies = [enter(held, self._link.same) for held in self._helds]

    def _exit_body(self) -> None:
        for leave in self._leave_bodies:
            leave()

    def _lost_before_release(self) -> LeaseLost | None:
        """The loss that a release finds, or None. Has lost claims cleaned up later."""
        now = self._now()
        over = [held for held in self._helds if not held.machine.valid(now)]
        for held in over:
            if not held.exit_inner() and held.machine.reason != "forked":
                self._link.keeper.hand_over(held.debt(now, undo_slot=False))
        return self._loss() or self._loss_of(over[0]) if over else None

    def _begin_release(self) -> None:
        """From here on a loss is raised by the release, and ends no process."""
        if self._exits is not None:
            self._unwatch(self._exits)

    def _refuse_release(self) -> NoReturn:
        held = self._helds[0]
        if self._is_released():
            raise AlreadyReleased(f"the lease on {held.wanted.key.name!r} was released before")
        raise self._lost_before_release() or self._loss_of(held)

    def _watch(self, tell: Callable[[], None], ahead: float | None = 0.0) -> None:
        for held in self._helds:
            self._link.keeper.watch(held, tell, ahead=ahead)

    def _unwatch(self, tell: Callable[[], None]) -> None:
        for held in self._helds:
            self._link.keeper.unwatch(held, tell)

    def _renew_now(self, tell: Callable[[], None]) -> None:
        """Renew all leases now. `tell` is called once each of them was tried."""
        left = list(self._helds)

        def tried() -> None:
            left.pop()
            if not left:
                tell()

        for held in self._helds:
            self._link.keeper.renew_now(held, tried)

    def _renewal_verdict(self) -> float:
        """The seconds proved after a requested renewal. Raises StoreUnavailable if it failed."""
        self.check()
        for held in self._helds:
            if held.failures:
                name = held.wanted.key.name
                raise StoreUnavailable(
                    f"the lease on {name!r} could not be renewed; it is proved for another"
                    f" {say_seconds(self.remaining)}",
                    name=name,
                )
        return self.remaining


class LeaseHandle(AnyLease):
    """A lease on one name."""

    __slots__ = ()

    def __init__(
        self, link: Link, held: Claim, on_lost: OnLost | None = None, if_lost: IfLost = "raise"
    ) -> None:
        super().__init__(link, (held,), on_lost, if_lost)

    @property
    def _held(self) -> Claim:
        return self._helds[0]

    @property
    def name(self) -> str:
        """The leased name."""
        return self._held.wanted.key.name

    @property
    def holder(self) -> str:
        """The holder's name, as others see it."""
        return self._held.wanted.once.holder

    @property
    def fencing_token(self) -> int:
        """A number that is larger than that of every earlier holder of this name.

        Send it to the resource, and have the resource refuse a smaller number than it has seen
        (Kleppmann, "How to do distributed locking", 2016).
        """
        return self._held.machine.token

    @property
    def belief(self) -> LeaseView:
        """The view for other parts of this package only: it changes without notice."""
        return LeaseView(self._link, self._held)

    def __repr__(self) -> str:
        state = "valid" if self.valid else self._held.machine.reason or "released"
        return f"<{type(self).__name__} {self.name!r} token={self.fencing_token} {state}>"

    def _exit_inner(self) -> bool:
        """Release only this lease of a reentrant lock, if its holding has other leases left."""
        held = self._held
        if held.inner is None or not held.exit_inner():
            return False
        self._helds = (held.released_copy(),)
        return True


class LeaseView:
    """The view of a lease for the rest of this package. `link`: the drivers of its store."""

    __slots__ = ("_held", "link")

    def __init__(self, link: Link, held: Claim) -> None:
        self.link: Final = link
        self._held = held

    @property
    def key(self) -> Key:
        """The name and its namespace."""
        return self._held.wanted.key

    @property
    def claim(self) -> str:
        """The identifier of this holding in the store."""
        return self._held.id

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._held.machine.token

    @property
    def slot(self) -> str | None:
        """The slot that was claimed with the lease."""
        return self._held.wanted.slot

    @property
    def policy(self) -> Policy:
        """The times that the lease was taken with."""
        return self._held.wanted.policy

    @property
    def bound(self) -> float:
        """The instant at which at_most_for ends the holding; inf without it."""
        return self._held.machine.bound

    @property
    def notice(self) -> Notice | None:
        """The notice in the store that ended the lease; None if none did."""
        return self._held.notice

    @property
    def answered(self) -> bool:
        """Whether the store answered the last renewal."""
        return self._held.failures == 0

    @property
    def proof(self) -> Proof:
        """The proof at this instant."""
        return self._held.machine.proof(clock.now())

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended`, from any thread, when the lease ends; it must not block."""
        self.link.keeper.watch(self._held, ended)

    def follow(self, proved: Callable[[], None]) -> None:
        """Call `proved` in the keeper's thread after each proved renewal; it must not block."""
        self.link.keeper.follow(self._held, proved)

    def proclaim(self, meta: bytes, *, after: float = 0.0) -> None:
        """Change the record's metadata, by an extra renewal at most `after` seconds from now."""
        self._held.proclaim(meta)
        if self._held.machine.valid(clock.now()):
            self.link.keeper.renew_now(self._held, ignore, after=after)

    def abandon(self) -> None:
        """Neither renew nor release: some work goes on, so only the ttl may end the lease."""
        if self._held.machine.valid(clock.now()):
            self._held.machine.left()
        self.link.keeper.disarm(self._held)


def give_up_all(link: Link, helds: Sequence[Claim], *, undo_slot: bool) -> None:
    """Give up leases whose taking or release was interrupted: nobody else would release them."""
    for held in helds:
        give_up(link.port, held, undo_slot=undo_slot)
        link.keeper.disarm(held)
        forget_bodies(held)


def ignore() -> None:
    """Do nothing: the callback of a renewal that nobody waits for."""


class LockEntry(NamedTuple, Generic[A]):
    """A lease on a lock: whose it is, and whether a `with` of the lock will release it.

    `home`: the thread or task that keeps the entry alive (its end removes it), None: the `with`. A
    thread may be the home of its tasks' leases.
    """

    caller: weakref.ref[Any] | None
    lease: A
    entered: bool
    home: weakref.ref[Any] | None = None


class AnyLock(Generic[A]):
    """A lock on one name, or on several: its store, its timeout, and the callers inside it."""

    __slots__ = ("__weakref__", "_entries", "_if_lost", "_link", "_on_lost", "_timeout")

    def __init__(
        self, store: StoreLike | None, timeout: Duration | None, settings: LockSettings
    ) -> None:
        self._link = link_for(store)
        self._timeout = parse_timeout(timeout)
        self._on_lost = settings.get("on_lost")
        self._if_lost: IfLost = settings.get("if_lost", "raise")
        self._entries: list[LockEntry[A]] = []

    _bodies = staticmethod(bodies_of_thread)

    def _caller(self) -> Any:
        """The thread or task object, because numbers of threads are used again.

        On the blocking side too: several tasks of one thread may share a lock.
        """
        return present_caller()

    def _all_wanted(self) -> Sequence[LeaseRequest]:
        raise NotImplementedError

    def _names(self) -> str:
        return ", ".join(repr(wanted.key.name) for wanted in self._all_wanted())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._names()} of {self._link.engine.url}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def _seconds(self, timeout: Duration | EllipsisType | None) -> float | None:
        if self._link.closed:
            # A lease granted now would never be renewed.
            raise Misuse(f"{self._names()}: the client that this came from was closed")
        wait = self._timeout if timeout is ... else parse_timeout(timeout)
        if wait != 0 and (bodies := self._bodies()):
            for wanted in self._all_wanted():
                refuse_waiting_for_oneself(wanted, self._link.same, bodies)
        return wait

    def _me(self) -> weakref.ref[Any] | None:
        caller = self._caller()
        return None if caller is None else weakref.ref(caller)

    def _entered(self, lease: A) -> A:
        lease._enter_body()
        self._has_entered(lease)
        return lease

    def _has_entered(self, lease: A) -> None:
        self._entries.append(LockEntry(self._me(), lease, entered=True))

    def _leave(self) -> A:
        """Remove the last lease that the caller entered, or else that of the only other caller."""
        entry = None
        try:
            entry = self._last_inside()
            self._entries.remove(entry)
        except NotHeld:
            raise
        except BaseException:
            # A signal handler's. The lock would keep its lease, which would be renewed for ever.
            entry = entry or self._last_inside()
            give_up_all(self._link, entry.lease._helds, undo_slot=False)
            raise
        return entry.lease

    def _last_inside(self) -> LockEntry[A]:
        # From a copy: while other threads remove entries, an iteration of the list skips some.
        me, entries = self._me(), self._entries.copy()
        inside = [entry for entry in entries if entry.entered]
        own = [entry for entry in inside if entry.caller == me] or inside
        if not own or any(entry.caller != own[0].caller for entry in own):
            raise NotHeld(f"the lock on {self._names()} was not entered here")
        return own[-1]


class LockHandle(AnyLock[L], Generic[L]):
    """A lock on one name: the settings that were checked when it was built."""

    __slots__ = ("_reentrant", "_wanted")

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
        self._wanted = wanted_from(namespace, name, can, self._permits, **settings)
        self._reentrant = settings.get("reentrant", False)
        if self._reentrant and not (self._may_be_reentrant and self._wanted.once.permits is None):
            raise ConfigError("reentrant: only a Lock can be entered again", name="reentrant")

    _permits: int | None = None
    """`Ask.permits`: the number of holders at once; None: exclusive."""
    _may_be_reentrant = False

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

    def _armed(self, held: Claim) -> tuple[Link, Claim, OnLost | None, IfLost]:
        """Make the keeper renew `held`; return the arguments of its lease object."""
        self._link.keeper.arm(held)
        if self._reentrant:
            remember(held, self._link)
        return self._link, held, self._on_lost, self._if_lost

    def _read_until(self) -> float:
        return clock.now() + self._wanted.policy.request_timeout


class _TrimmedTraceback:
    """Trims our frames from errors that pass through.

    The inner frames, and a driver's exception that the message quotes, only go to the log, at
    DEBUG.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, LockError):
            shorten(error)


trimmed_traceback: Final = _TrimmedTraceback()


def shorten(error: LockError) -> None:
    """Do to an error as `trimmed_traceback` does; a hot path calls this, which costs less."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", error, exc_info=error)
    cause = error.__cause__
    driver = isinstance(cause, OSError) or type(cause).__module__.partition(".")[0] in _DRIVERS
    if driver and isinstance(error, StoreError):
        error.__cause__ = None
        error.__suppress_context__ = True
    error.__traceback__ = None


def refuse_copy(of: object) -> NoReturn:
    raise TypeError(
        f"a {type(of).__name__} is of this process and cannot be copied or pickled: hand on the"
        " name and the URL of the store, and make another there"
    )


def loss_of(held: Claim, late: float = 0.0) -> LeaseLost:
    """The loss of `held`; `late`: seconds for which this process was not scheduled."""
    reason = held.machine.reason or "expired"
    starved = late and reason == "expired"
    detail = _starved_for(late) if starved else asked_by(held.notice)
    return lease_lost(held.wanted.key.name, reason, detail)


def _starved_for(late: float) -> str:
    return (
        f": this process did not schedule its renewal thread for {say_seconds(late)} (code that"
        " keeps the interpreter, a frozen process, or uWSGI without --enable-threads)"
    )


def _first_lost(helds: Sequence[Claim], now: float) -> Claim | None:
    lost = [
        held
        for held in helds
        if not held.machine.valid(now) and held.machine.state is LeaseState.LOST
    ]
    return min(lost, key=lambda held: held.machine.deadline, default=None)


def _call_if_lost(helds: Sequence[Claim], on_lost: list[OnLost]) -> None:
    held = _first_lost(helds, clock.now())
    if held is not None:
        notifier.call(partial(_call_once, on_lost, loss_of(held)))


def _call_once(on_lost: list[OnLost], lost: LeaseLost) -> None:
    """Call `on_lost` at the first loss only."""
    if on_lost:
        on_lost.pop()(lost)


def _exit_if_lost(helds: Sequence[Claim]) -> None:
    held = _first_lost(helds, clock.now())
    if held is not None:
        try:
            _say_at_once(f"incumbent: {loss_of(held)}; the process ends\n".encode())
        finally:
            # Not sys.exit: this is not the main thread, and no finally block may run any more.
            os._exit(_EXIT_LOST)


def _say_at_once(words: bytes) -> None:
    """Write to standard error, unless that would block: its reader may have stopped."""
    reader = original("select", "poll")()
    reader.register(_STDERR, select.POLLOUT)
    if any(event & select.POLLOUT for _, event in reader.poll(0)):
        os.write(_STDERR, words[: select.PIPE_BUF])
