"""Leases, for blocking code and for asyncio, on one name and on several.

All is decided in AnyLease. An asyncio body is cancelled before its proof runs out; blocking code
has to check. asyncio is imported at its first use, so that blocking code does not pay for it at
each start of a command.

How a lease ends, in four words:

    | word    | what happens                                                    | ends in        |
    |---------|-----------------------------------------------------------------|----------------|
    | stop    | the work has to end, with time left for its clean-up; the lease | still held     |
    |         | is proved: `renew_deadline`, an operator, a better candidate    |                |
    | exit    | control leaves a body; the last one of a reentrant lock to      | a release, or  |
    |         | exit releases                                                   | LeaseLost      |
    | release | we are done: we tell the store, so that others need not wait    | RELEASED       |
    | lose    | the proof ended, or the store says that the lease is not ours   | LOST           |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

from incumbent import clock
from incumbent.durations import DAY, Duration, parse_duration, say_seconds
from incumbent.errors import (
    AlreadyReleased,
    Error,
    LeaseLost,
    LockError,
    Misuse,
    StoreError,
    StoreUnavailable,
)
from incumbent.lease import LeaseState
from incumbent.locks.callers import (
    current_task,
    enclosing_generator,
    enter,
    forget_bodies,
    is_in_body,
)
from incumbent.locks.losses import (
    add_loss_note,
    call_if_lost,
    exit_if_lost,
    first_lost_claim,
    lapse_if_stranded,
    warn_if_forked,
)
from incumbent.locks.options import IfLost, OnLost, parse_timeout
from incumbent.locks.other_words import refuse_copy, refuse_wrong_with
from incumbent.protocol.messages import claim_lost, lease_lost
from incumbent.protocol.release import give_up, release, release_all, release_blocking
from incumbent.runtime.link import LeaseView, Link
from incumbent.stores.plan import run_blocking

if TYPE_CHECKING:
    from incumbent.protocol.claim import Claim
    from incumbent.protocol.port import ManyPort
    from incumbent.runtime.aio import LeaseScope

L = TypeVar("L", bound="SingleLease")

_log = logging.getLogger("incumbent")

_DRIVERS: Final = frozenset({"hiredis", "incumbent", "psycopg", "sqlite3"})
# Seconds, at most half of the grace, by which the exit is early: the interpreter may be busy.
_EXIT_AHEAD = 0.1
_RELEASED = frozenset({LeaseState.LEAVING, LeaseState.RELEASED})


class AnyLease:
    """A lease on one name, or on several: then it is valid as long as all of them are.

    Validity is computed at each read, so it needs no notification.
    """

    __slots__ = (
        "__weakref__",
        "_claims",
        "_exit_on_loss",
        "_leave_bodies",
        "_link",
        "_releaser",
        "_scope",
        "_taken_away",
    )

    @staticmethod
    def _now() -> float:
        return clock.now()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_wrong_with(cls)

    def __init__(
        self,
        link: Link,
        claims: Sequence[Claim],
        on_lost: OnLost | None = None,
        if_lost: IfLost = "raise",
    ) -> None:
        self._link = link
        self._claims = claims
        self._exit_on_loss: Callable[[], None] | None = None
        self._leave_bodies: Sequence[Callable[[], None]] = ()
        self._releaser: dict[None, int] = {}
        """The thread that was the first to release it."""
        self._taken_away = False
        """Whether another thread released it while a blocking body ran."""
        if if_lost == "exit":
            self._exit_on_loss = partial(exit_if_lost, [claim.ref for claim in claims])
            # Watched first: the exit must not wait behind a callback of the user.
            self._watch(self._exit_on_loss, min(_EXIT_AHEAD, claims[0].wanted.policy.grace / 2))
        if on_lost is not None:
            self._watch(partial(call_if_lost, [claim.ref for claim in claims], [on_lost]))

    @property
    def valid(self) -> bool:
        """Whether the lease is proved at this instant."""
        now = self._now()
        if all([claim.machine.valid(now) for claim in self._claims]):  # noqa: C419 - twice as fast
            return True
        warn_if_forked(self._claims)
        return False

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is proved without another renewal; 0.0 if it is not."""
        now = self._now()
        return min([claim.machine.remaining(now) for claim in self._claims])

    @property
    def lost(self) -> bool:
        """Whether the lease ended without being released."""
        return first_lost_claim(self._claims, self._now()) is not None

    def check(self, need: Duration = 0.0) -> None:
        """Return only if the lease is proved for at least `need` more.

        Otherwise raises LeaseLost, which names the lease, or AlreadyReleased after a release; also
        ConfigError.
        """
        # NaN is refused: it would never be more than what is left.
        seconds = need if type(need) is float and 0 <= need <= DAY else parse_duration(need, "need")
        now = clock.now()
        for claim in self._claims:
            left = claim.machine.remaining(now)
            if left <= 0 or left < seconds:
                raise self._why_not(claim, left, seconds)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def _why_not(self, claim: Claim, left: float, seconds: float) -> Error:
        lost, name = self._first_loss(), claim.wanted.key.name
        if lost is not None:
            return lost
        if claim.machine.state in _RELEASED:
            return AlreadyReleased(f"the lease on {name!r} was released")
        why = f": {say_seconds(left)} left, {say_seconds(seconds)} needed"
        return lease_lost(claim.wanted.key, "need", why)

    def _first_loss(self) -> LeaseLost | None:
        """The loss of the lease that was lost first; None if none was lost."""
        claim = first_lost_claim(self._claims, self._now())
        return None if claim is None else self._error_of(claim)

    def _error_of(self, claim: Claim) -> LeaseLost:
        return claim_lost(claim, self._link.keeper.seconds_unscheduled(claim.machine.deadline))

    def _is_released(self) -> bool:
        """Whether we began a release, confirmed or not."""
        return {claim.machine.state for claim in self._claims} <= _RELEASED

    def _enter_body(self) -> None:
        self._leave_bodies = [enter(claim, self._link.identity) for claim in self._claims]
        # Nested bodies of a reentrant lock need no watch: the outermost has it.
        if not self._claims[0].reentries:
            lapse_if_stranded(self._claims, self._link.keeper)

    def _refuse_second_body(self) -> None:
        # The first one to end would release the lease under the other.
        if self._leave_bodies:
            name = self._claims[0].wanted.key.name
            raise Misuse(f"the lease on {name!r} was entered before: it has one body")

    def _exit_body(self) -> None:
        for leave in self._leave_bodies:
            leave()

    def _be_first_to_release(self) -> None:
        """Raise AlreadyReleased if another thread is a step ahead."""
        # `setdefault` is one step for all threads. Kept after an interruption: that thread may try
        # again.
        me = threading.get_ident()
        if self._releaser.setdefault(None, me) != me:
            raise self._released_before()

    def _released_before(self) -> Error:
        name = self._claims[0].wanted.key.name
        return AlreadyReleased(f"the lease on {name!r} was released before")

    def _released_within(self) -> Error:
        name = self._claims[0].wanted.key.name
        return AlreadyReleased(f"the lease on {name!r} was released while its body ran")

    def _loss_before_release(self) -> LeaseLost | None:
        """The loss that a release finds, or None. The keeper owes the release of lost claims."""
        now = self._now()
        # All of them by one instant: else one could run out between two looks, and be forgotten.
        over = [claim for claim in self._claims if not claim.machine.valid(now)]
        for claim in over:
            if not claim.drop_reentry() and claim.machine.reason != "forked":
                self._link.keeper.owe(claim.debt(now, undo_slot=False))
        return self._first_loss() or self._error_of(over[0]) if over else None

    async def _release(
        self, port: ManyPort, *, undo_slot: bool = False
    ) -> tuple[LeaseLost | None, bool]:
        """Release what is held: the loss, if there was one, and whether the store confirmed it.

        Raises AlreadyReleased.
        """
        lost, claims = None, self._claims
        if not self.valid:
            # None lost, though not all are released: another thread is at it.
            if not self.lost:
                raise self._released_before()
            lost = self._loss_before_release()
            claims = [claim for claim in claims if claim.machine.state is LeaseState.HELD]
        else:
            self._be_first_to_release()
            if self._release_reentry():
                return None, True
        if claims:
            # Before the release: a loss that only its answer shows is raised, and must not end the
            # process.
            self._cancel_exit()
        try:
            if len(claims) == 1:
                confirmed = await release(port, claims[0], undo_slot=undo_slot)
            else:
                confirmed = await release_all(port, claims)
        finally:
            for claim in claims:
                # Also after an error or a cancellation: belief has ended, and nothing may be
                # renewed behind it.
                self._link.keeper.disarm(claim)
        return lost or (None if confirmed else self._first_loss()), confirmed

    def _cancel_exit(self) -> None:
        """End the watch for `if_lost="exit"`: from here on a loss is raised by the release."""
        if self._exit_on_loss is not None:
            self._unwatch(self._exit_on_loss)

    def _release_reentry(self) -> bool:
        """Release only this lease of a reentrant lock, if its holding has other leases left."""
        claim = self._claims[0]
        if claim.reentries is None:
            return False
        if not claim.drop_reentry():
            forget_bodies(claim)  # an inner body that was interrupted may have left its note
            return False
        # The holding goes on for the others; this lease must say from now on that it was released.
        self._claims = (claim.released_copy(),)
        return True

    def _watch(self, watcher: Callable[[], None], ahead: float | None = 0.0) -> None:
        for claim in self._claims:
            self._link.keeper.watch(claim, watcher, ahead=ahead)

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        for claim in self._claims:
            self._link.keeper.unwatch(claim, watcher)

    def _renew_now(self, done: Callable[[], None]) -> None:
        """Renew all leases now; `done` is called once a renewal of each was tried."""
        left = list(self._claims)

        def tried() -> None:
            left.pop()
            if not left:
                done()

        for claim in self._claims:
            self._link.keeper.renew_now(claim, tried)

    def _renewal_verdict(self) -> float:
        """The seconds proved after a requested renewal. Raises StoreUnavailable if it failed."""
        self.check()
        self._link.client_end.refuse()
        for claim in self._claims:
            if claim.failures:
                name = claim.wanted.key.name
                raise StoreUnavailable(
                    f"the lease on {name!r} could not be renewed; it is proved for another"
                    f" {say_seconds(self.remaining)}",
                    name=name,
                )
        return self.remaining


class SingleLease(AnyLease):
    """A lease on one name."""

    __slots__ = ()

    @property
    def _claim(self) -> Claim:
        return self._claims[0]

    @property
    def name(self) -> str:
        """The leased name."""
        return self._claim.wanted.key.name

    @property
    def holder(self) -> str:
        """The holder's name, as others see it."""
        return self._claim.wanted.holder

    @property
    def fencing_token(self) -> int:
        """A number that is larger than that of every earlier holder of this name.

        Send it to the resource, and have the resource refuse a smaller number than it has seen
        (Kleppmann, "How to do distributed locking", 2016).
        """
        return self._claim.machine.token

    @property
    def belief(self) -> LeaseView:
        """The LeaseView, for other parts of this package only: it changes without notice."""
        return LeaseView(self._link, self._claim)

    def __repr__(self) -> str:
        state = "valid" if self.valid else self._claim.machine.reason or "released"
        return f"<{type(self).__name__} {self.name!r} token={self.fencing_token} {state}>"


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
        # No longer than the proof: after it the verdict is a loss, whatever the answer would be.
        done.wait(self.remaining)
        return self._renewal_verdict()

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Block until the holding ends, for at most `timeout` seconds; True if it was lost."""
        ended = threading.Event()
        watcher = ended.set
        self._watch(watcher)
        try:
            ended.wait(parse_timeout(timeout))
        finally:
            self._unwatch(watcher)
        return self.lost

    def release(self) -> bool:
        """Release the lease, of several names together; False if the store did not confirm it.

        Then its ttl ends it. Raises LeaseLost if it was lost before, also if only the store's
        answer shows that; AlreadyReleased if it was released before. A body of another thread ends
        in AlreadyReleased; that of the caller goes on.
        """
        if self._leave_bodies and not (self._is_released() or self._claims[0].reentries):
            # Before the request: the body may end while its reply is on the way.
            self._taken_away |= not is_in_body(self._claims[0])
        lost, confirmed = self._release_blocking()
        if lost is not None:
            raise lost
        return confirmed

    def _release_blocking(self) -> tuple[LeaseLost | None, bool]:
        return run_blocking(self._release(self._link.port))

    def __enter__(self) -> Self:
        self.check()
        self._refuse_second_body()
        self._enter_body()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._exit_body()
            if self._is_released():
                # The threads of a web framework take turns in a generator: each may be the body's.
                if error is None and self._taken_away and enclosing_generator() is None:
                    raise self._released_within()
                return
            lost, _ = self._release_blocking()
        except AlreadyReleased:
            if error is None:
                raise self._released_within() from None
            return
        except BaseException:
            give_up_all(self._link, self._claims, undo_slot=False)
            raise
        if lost is None:
            return
        if error is None:
            raise lost
        add_loss_note(error, lost)


class Lease(SingleLease, BlockingLease):
    """A held lease; renewed in the background until it is released. A context manager.

    Blocking code cannot be stopped from outside: it has to check (`check`, `lost`, `wait_lost`,
    `on_lost`), and a body that outlives its lease ends in LeaseLost.
    """

    __slots__ = ()

    def _release_blocking(self) -> tuple[LeaseLost | None, bool]:
        # The usual lease, entered once and proved, needs no coroutine; others take the long way.
        link, claim, now = self._link, self._claims[0], clock.now()
        if (
            claim.reentries is not None
            or self._exit_on_loss is not None
            or not claim.machine.valid(now)
        ):
            return super()._release_blocking()
        self._be_first_to_release()
        try:
            confirmed = release_blocking(link.port, claim, now)
        finally:
            link.keeper.disarm(claim)
        return (None if confirmed else self._first_loss()), confirmed


def release_unless_lost(lease: Lease, *, undo_slot: bool = False) -> bool:
    """Release the lease, and return whether the store confirmed it: False after a loss."""
    if lease._is_released():
        return False
    lost, confirmed = run_blocking(lease._release(lease._link.port, undo_slot=undo_slot))
    return confirmed and lost is None


class SuspendingLease(AnyLease):
    """The asyncio operations of a lease on one name, or on several."""

    __slots__ = ()

    _scope: LeaseScope

    async def renew(self) -> float:
        """Renew now, and return the seconds for which it is proved; see Lease.renew."""
        from incumbent.runtime.aio import wait_until_called

        self.check()
        await wait_until_called(self._renew_now, self.remaining)
        return self._renewal_verdict()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the holding ends, for at most `timeout` seconds; True if it was lost."""
        from incumbent.runtime.aio import wait_until_called

        await wait_until_called(self._watch, parse_timeout(timeout), self._unwatch)
        return self.lost

    def release(self) -> Coroutine[Any, Any, bool]:
        """Release the lease; see Lease.release. A cancelled call ends the belief in it too.

        The body of another task is cancelled, and gets AlreadyReleased; that of the caller goes on.
        """
        # Asked here: `wait_for` of Python 3.11 runs the coroutine in another task.
        scope = getattr(self, "_scope", None)
        own = scope is not None and current_task() is not None and scope.encloses_this
        return self._released_by(scope, own=own)

    async def _released_by(self, scope: LeaseScope | None, *, own: bool) -> bool:
        if scope is not None:
            if own:
                scope.let_run()
            elif not self._claims[0].reentries:
                # Before the request: the next holder may begin while its reply is on the way.
                scope.stop()
        lost, confirmed = await self._release(self._link.async_port())
        if lost is not None:
            raise lost
        return confirmed

    async def __aenter__(self) -> Self:
        self.check()
        self._refuse_second_body()
        # Before the body is noted: a task that is cancelled here has not entered it.
        self._scope = cancel_at_stop(self)
        self._enter_body()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from asyncio import CancelledError

        # First: what follows awaits, and a late cancellation by the scope would cut the release
        # short.
        own_cancel = self._scope.close(error)
        if self._scope.watcher is not None:
            self._unwatch(self._scope.watcher)
        self._exit_body()
        if self._is_released():
            if own_cancel and isinstance(error, CancelledError):
                raise self._released_within() from error
            return
        lost = (await self._release(self._link.async_port()))[0] or self._loss_by_stop()
        if lost is None:
            return
        if error is None or (own_cancel and isinstance(error, CancelledError)):
            raise lost from error
        add_loss_note(error, lost)

    def _loss_by_stop(self) -> LeaseLost | None:
        """The loss to report if the scope stopped the body, even of a proved lease; else None."""
        if not self._scope.fired:
            return None
        one = min(self._claims, key=lambda claim: claim.machine.stop_at)
        reason = "at_most_for" if one.machine.ends_by_at_most_for else "expired"
        return lease_lost(one.wanted.key, reason, "; the body was cancelled within the lease")


class AsyncLease(SingleLease, SuspendingLease):
    """A held lease; renewed in the background until it is released. An async context manager.

    Inside `async with` the task is cancelled at the lease's renew_deadline, so that its clean-up
    still runs within the lease; the caller then gets LeaseLost. Code outside checks as for `Lease`.
    """

    __slots__ = ()


def cancel_at_stop(lease: AnyLease) -> LeaseScope:
    """Have the calling task cancelled at the end of the lease, until the scope is closed."""
    from incumbent.runtime.aio import LeaseScope

    scope = LeaseScope(*lease._claims)
    recheck = scope.recheck_soon
    if lease._claims[0].reentries is not None:
        # Noted for removal: a holding entered a thousand times would keep a thousand watchers.
        scope.watcher = recheck
    # Without a deadline in the keeper: the scope has a timer of its own in the loop.
    lease._watch(recheck, ahead=None)
    return scope


def give_up_all(link: Link, claims: Sequence[Claim], *, undo_slot: bool) -> None:
    """Give up leases whose taking or release was interrupted: nobody else would release them."""
    for claim in claims:
        # An outer body of a reentrant lock may still need its renewals, and those who watch it.
        if give_up(link.port, claim, undo_slot=undo_slot):
            link.keeper.disarm(claim)
            forget_bodies(claim)


# -- errors, as callers see them ------------------------------------------------------------------


class _TrimmedTraceback:
    """Trims our frames from errors that pass through.

    The log has the inner frames, and a driver's exception that the message quotes, at DEBUG.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, LockError):
            shorten(error)


trimmed_traceback: Final = _TrimmedTraceback()


def shorten(error: LockError) -> None:
    """Trim an error as `trimmed_traceback` does; a hot path calls this, which costs less."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", error, exc_info=error)
    cause = error.__cause__
    driver = isinstance(cause, OSError) or type(cause).__module__.partition(".")[0] in _DRIVERS
    if driver and isinstance(error, StoreError):
        error.__cause__ = None
        error.__suppress_context__ = True
    error.__traceback__ = None
