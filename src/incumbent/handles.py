"""What blocking and asynchronous leases and locks have in common: all that needs no waiting."""

from __future__ import annotations

import logging
import os
import select
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, Unpack

from incumbent import clock
from incumbent.belief import Belief
from incumbent.durations import Duration, parse_duration, say_seconds
from incumbent.errors import (
    AlreadyReleased,
    ConfigError,
    LeaseLost,
    LockError,
    Misuse,
    NotHeld,
    StoreError,
    StoreUnavailable,
)
from incumbent.inner import Leaving, bodies_of_thread, enter, refuse_waiting_for_oneself
from incumbent.lease import State
from incumbent.options import IfLost, LockSettings, OnLost, parse_timeout, wanted_from
from incumbent.protocol.held import Held
from incumbent.protocol.link import Link, link_for
from incumbent.protocol.notifier import notifier
from incumbent.protocol.words import asked_by, lease_lost, waits_for_itself
from incumbent.reentrant import Entries, enter_again, remember
from incumbent.unpatched import original

if TYPE_CHECKING:
    from incumbent.model import Holding
    from incumbent.protocol.given import StoreLike

L = TypeVar("L", bound="LeaseHandle")

_log = logging.getLogger("incumbent")

_DRIVERS: Final = frozenset({"hiredis", "incumbent", "psycopg", "sqlite3"})
_EXIT_LOST = 123
_EXIT_AHEAD = 0.1
"""Seconds, at most half of the grace, that a busy interpreter may take to let the exit come."""
_STDERR = 2
_LET_GO = (State.LEAVING, State.RELEASED)


class LeaseHandle:
    """A lease. Validity is computed at every question: nothing has to notify anybody."""

    __slots__ = ("__weakref__", "_exits", "_held", "_leave_body", "_link")

    def __init__(
        self, link: Link, held: Held, on_lost: OnLost | None = None, if_lost: IfLost = "raise"
    ) -> None:
        self._link = link
        self._held = held
        self._exits: Callable[[], None] | None = None
        self._leave_body: Leaving | None = None
        if if_lost == "exit":
            self._exits = partial(_exit_if_lost, held)
            ahead = min(_EXIT_AHEAD, held.wanted.policy.grace / 2)
            link.keeper.watch(held, self._exits, ahead=ahead)
        if on_lost is not None:
            link.keeper.watch(held, partial(_call_if_lost, held, on_lost))

    @property
    def name(self) -> str:
        """The name that is leased."""
        return self._held.wanted.key.name

    @property
    def holder(self) -> str:
        """Who holds it, as others see it."""
        return self._held.wanted.ask.holder

    @property
    def fencing_token(self) -> int:
        """A number that is larger than that of every earlier holder of this name.

        Hand it to the resource, and have the resource refuse a smaller one than it has seen
        (Kleppmann, "How to do distributed locking", 2016).
        """
        return self._held.machine.token

    @property
    def valid(self) -> bool:
        """Whether the lease is proved at this instant."""
        return self._held.machine.valid(clock.now())

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is proved without another renewal; 0.0 when it is not."""
        return self._held.machine.remaining(clock.now())

    @property
    def lost(self) -> bool:
        """Whether the lease ended without our letting go of it."""
        machine = self._held.machine
        return not machine.valid(clock.now()) and machine.state is State.LOST

    @property
    def belief(self) -> Belief:
        """For other parts of this project only: it changes without notice."""
        return Belief(self._link, self._held)

    def check(self, need: Duration = 0.0) -> None:
        """Return only if the lease is proved for at least `need` more.

        Raises LeaseLost otherwise, AlreadyReleased after a release, and ConfigError.
        """
        seconds = need if type(need) is float else parse_duration(need, "need")
        machine = self._held.machine
        left = machine.remaining(clock.now())
        if left > 0 and left >= seconds:
            return
        if machine.state in _LET_GO:
            raise AlreadyReleased(f"the lease on {self.name!r} was released")
        if left > 0:
            raise lease_lost(
                self.name, "need", f": {say_seconds(left)} left, {say_seconds(seconds)} needed"
            )
        raise self._loss()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def __repr__(self) -> str:
        state = "valid" if self.valid else self._held.machine.reason or "released"
        return f"<{type(self).__name__} {self.name!r} token={self.fencing_token} {state}>"

    def _loss(self) -> LeaseLost:
        return loss_of(self._held, self._link.keeper.missed(self._held.machine.deadline))

    def _let_go(self) -> bool:
        return self._held.machine.state in _LET_GO

    def _enter_body(self) -> None:
        if self._leave_body is None:
            self._leave_body = enter(self._held, self._link.same)

    def _body_is_over(self) -> None:
        if self._leave_body is not None:
            self._leave_body()

    def _take_leave(self) -> LeaseLost | None:
        """Before a release: the loss to report, or None. A lost claim is cleaned up later."""
        held = self._held
        now = clock.now()
        if held.machine.valid(now):
            return None
        if not held.let_go_of_one() and held.machine.reason != "forked":
            self._link.keeper.hand_over(held.debt(now, undo_slot=False))
        return self._loss()

    def _goes_on(self) -> bool:
        """Let go of this lease of a reentrant lock, if others on its holding are left."""
        held = self._held
        if held.inner is None or not held.let_go_of_one():
            return False
        self._held = held.parted()
        return True

    def _work_is_over(self) -> None:
        """At the start of a release: a loss that it finds is raised, and ends no process."""
        if self._exits is not None:
            self._link.keeper.unwatch(self._held, self._exits)

    def _found_lost(self) -> LeaseLost | None:
        """After a release: the loss that only the store's answer to it has shown."""
        return self._loss() if self._held.machine.state is State.LOST else None

    def _refuse_release(self) -> NoReturn:
        if self._let_go():
            raise AlreadyReleased(f"the lease on {self.name!r} was released before")
        raise self._take_leave() or self._loss()

    def _renewal_verdict(self) -> float:
        """What an asked-for renewal brought: the seconds that are proved now."""
        self.check()
        if self._held.failures:
            raise StoreUnavailable(
                f"the lease on {self.name!r} could not be renewed; it is proved for another"
                f" {say_seconds(self.remaining)}",
                name=self.name,
            )
        return self.remaining


class LockHandle(Generic[L]):
    """What is decided when a lock is built: its store, what it asks for, how long it waits."""

    __slots__ = (
        "__weakref__",
        "_entered",
        "_entries",
        "_if_lost",
        "_link",
        "_on_lost",
        "_taken",
        "_timeout",
        "_wanted",
    )

    def __init__(
        self,
        name: str,
        *,
        store: StoreLike | None = None,
        namespace: str = "default",
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> None:
        self._link = link_for(store)
        can = self._link.engine.capabilities
        self._wanted = wanted_from(namespace, name, can, self._permits, **settings)
        self._timeout = parse_timeout(timeout)
        self._on_lost = settings.get("on_lost")
        self._if_lost: IfLost = settings.get("if_lost", "raise")
        alone = self._may_be_reentrant and self._wanted.ask.permits is None
        if settings.get("reentrant") and not alone:
            raise ConfigError("reentrant: only a Lock can be entered again", name="reentrant")
        self._entries: Entries[L] | None = Entries() if settings.get("reentrant") else None
        """Of a reentrant lock; it has nothing in `_entered` and `_taken`."""
        self._entered: dict[Hashable, L] = {}
        self._taken: dict[weakref.ref[Any], L] = {}
        """See `incumbent.taken`."""

    _permits: int | None = None
    """With how many it is shared; None: with nobody. See Ask."""
    _bodies = staticmethod(bodies_of_thread)
    _may_be_reentrant = False

    def _is_full(self, holdings: Sequence[Holding]) -> bool:
        """Whether the next one cannot be let in beside these holders."""
        permits = self._permits
        if permits is None or any(holding.permits != permits for holding in holdings):
            return bool(holdings)
        return 0 < permits <= len(holdings)

    @staticmethod
    def _me() -> Hashable:
        """The thread or the task that calls: by this one caller is told from another."""
        raise NotImplementedError

    def _refuse_reentry(self) -> None:
        """Raise Misuse where waiting would be waiting for oneself."""
        if self._entered and (inside := self._entered.get(self._me())) is not None:
            raise Misuse(waits_for_itself(inside._held.wanted, self._wanted))

    def _leave(self) -> L:
        """The caller's lease; one that another thread or task entered, if it is the only one."""
        if self._entries is not None:
            lease = self._entries.leave()
        else:
            lease = self._entered.pop(self._me(), None)
            if lease is None and len(self._entered) == 1:
                _, lease = self._entered.popitem()
        if lease is None:
            raise NotHeld(f"the lock on {self.name!r} was not entered here")
        return lease

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._link.engine.url}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @property
    def name(self) -> str:
        """The name that it leases."""
        return self._wanted.key.name

    def _seconds(self, timeout: Duration | EllipsisType | None) -> float | None:
        if self._link.closed:
            # What it was granted would never be renewed.
            raise Misuse(f"{self.name!r}: the client that this came from was closed")
        wait = self._timeout if timeout is ... else parse_timeout(timeout)
        if wait != 0:
            refuse_waiting_for_oneself(self._wanted, self._link.same, self._bodies())
        return wait

    def _enter_again(self, timeout: Duration | EllipsisType | None) -> tuple[Link, Held] | None:
        """What the caller holds through a reentrant lock. Raises LeaseLost if it was lost."""
        if timeout is not ...:
            parse_timeout(timeout)
        found = enter_again(self._wanted.key, self._link.same)
        if found is None:
            return None
        link, held, proved = found
        if not proved:
            raise loss_of(held, link.keeper.missed(held.machine.deadline))
        return link, held

    def _armed(self, held: Held) -> tuple[Link, Held, OnLost | None, IfLost]:
        """Have the keeper renew it; returns what the lease is made of."""
        self._link.keeper.arm(held)
        if self._entries is not None:
            remember(held, self._link)
        return self._link, held, self._on_lost, self._if_lost

    def _read_until(self) -> float:
        return clock.now() + self._wanted.policy.request_timeout


class _Brief:
    """Errors that are ours leave here as if the caller had raised them.

    The frames within, and what a driver said where our message has its words, go to the log at
    DEBUG alone.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, LockError):
            shorten(error)


brief: Final = _Brief()


def shorten(error: LockError) -> None:
    """See `brief`, which costs more where all is well."""
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


def loss_of(held: Held, late: float = 0.0) -> LeaseLost:
    """The loss of what this process held; `late`: seconds for which it was not scheduled."""
    reason = held.machine.reason or "expired"
    starved = late and reason == "expired"
    detail = _starved_for(late) if starved else asked_by(held.notice)
    return lease_lost(held.wanted.key.name, reason, detail)


def _starved_for(late: float) -> str:
    return (
        f": this process did not schedule its renewal thread for {say_seconds(late)} (code that"
        " keeps the interpreter, a frozen process, or uWSGI without --enable-threads)"
    )


def _call_if_lost(held: Held, on_lost: OnLost) -> None:
    if held.machine.state is State.LOST:
        notifier.call(partial(on_lost, loss_of(held)))


def _exit_if_lost(held: Held) -> None:
    if held.machine.state is State.LOST:
        try:
            _say_at_once(f"incumbent: {loss_of(held)}; the process ends\n".encode())
        finally:
            # Not sys.exit: this is another thread, and no finally block may act any more.
            os._exit(_EXIT_LOST)


def _say_at_once(words: bytes) -> None:
    """On standard error, if it takes them: the end waits for nobody who reads no more."""
    reader = original("select", "poll")()
    reader.register(_STDERR, select.POLLOUT)
    if any(event & select.POLLOUT for _, event in reader.poll(0)):
        os.write(_STDERR, words[: select.PIPE_BUF])
