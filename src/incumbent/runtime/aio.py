"""The asyncio driver, and the scope that cancels a body before its lease's proof runs out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TypeAlias, TypeVar

from incumbent import clock
from incumbent.chance import draw_claim, draw_jitter
from incumbent.errors import Misuse
from incumbent.interrupts import raise_if_from_signal
from incumbent.lease import LeaseState
from incumbent.model import GiveOutcome, Guard, Key, PutOutcome, Record, TakeOutcome
from incumbent.protocol.claim import Claim
from incumbent.runtime.sync import Upkeep
from incumbent.stores.base import NO_LIMITS, Answers, AsyncStore, AsyncTogether, Give, Limits, Take
from incumbent.stores.plan import one_by_one

T = TypeVar("T")
Callback: TypeAlias = "Callable[[], None]"


class AsyncPort:
    """A Port whose waits suspend the calling task."""

    now = staticmethod(clock.now)
    jitter = staticmethod(draw_jitter)
    draw_claim = staticmethod(draw_claim)

    def __init__(self, store: AsyncStore, keeper: Upkeep) -> None:
        self._store = store
        self._client_end = keeper.end
        self.limits: Limits = getattr(store, "limits", NO_LIMITS)
        self.owe = keeper.owe
        self.log_outage = keeper.log_outage
        self.take = store.take
        self.renew = store.renew
        self.give = store.give

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See AsyncStore.put. The time until then begins when its turn has come."""
        return await self._in_turn(partial(self._store.put, key, field, value, guard), until)

    async def read(self, key: Key, until: float) -> Record:
        """See AsyncStore.read. The time until then begins when its turn has come."""
        return await self._in_turn(partial(self._store.read, key), until)

    async def _in_turn(self, ask: Callable[[float], Awaitable[T]], until: float) -> T:
        # Taken as a length, because waiting for a place must not use up the time for the answer.
        gate, timeout, answered = self.limits.takes, until - clock.now(), False
        admission = gate.enter_now() or await gate.enter(inf, timeout)
        try:
            outcome = await ask(clock.now() + timeout)
            answered = True
        finally:
            admission.leave(answered=answered)
        return outcome

    async def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]:
        if isinstance(self._store, AsyncTogether):
            return await self._store.take_all(takes, until)
        return await one_by_one(lambda it: self.take(*it, until), takes, to_the_end=False)

    async def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        if isinstance(self._store, AsyncTogether):
            return await self._store.give_all(gives, until)
        return await one_by_one(lambda it: self.give(*it, until), gives)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self._wait(partial(self._store.wait_change, key, seen, until))

    async def sleep_until(self, instant: float) -> None:
        await self._wait(partial(asyncio.sleep, max(0.0, instant - clock.now())))

    async def _wait(self, ask: Callable[[], Awaitable[None]]) -> None:
        loop, scope = asyncio.get_running_loop(), asyncio.timeout(None)

        def end() -> None:
            with suppress(RuntimeError):  # the wait has just ended by itself
                scope.reschedule(loop.time())

        try:
            async with scope:
                with self._client_end.wait(partial(loop.call_soon_threadsafe, end)):
                    await ask()
        except TimeoutError as error:
            raise_if_from_signal(error)
            self._client_end.refuse()
            raise


class LeaseScope:
    """Cancels the task that entered it at the first `stop_at` of its leases, or when one is lost.

    It counts cancellations as `asyncio.timeout` does (docs.python.org, Task.uncancel), so that a
    cancellation from elsewhere is never mistaken for its own.
    """

    def __init__(self, *claims: Claim) -> None:
        task = asyncio.current_task()
        if task is None:
            raise Misuse("a lease can only be entered inside a task")
        self._claims = claims
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.watcher: Callback | None = None
        """The callback that the keeper was given, if it has to be taken back."""
        self.fired = False
        self._mark = f"the lease of the body in {task.get_name()} ended"
        """What the cancellation says: by this very object it is known again."""
        self._before = -1
        """The task's count when this fired; -1 if another cancellation was about to begin."""
        self._in_grace = False
        self._asked = False
        self._closed = False
        # A clean-up that enters a reentrant lock again in its grace: the outer scope has fired, and
        # the lease is proved until its deadline.
        self._in_grace = self._left() <= 0 and any(claim.reentries for claim in claims)
        if self._left() > 0:
            self._recheck()
        else:
            # Not at once: a body that awaits nothing is over before, and its task must not get a
            # cancellation that no scope takes back.
            self._loop.call_soon(self._recheck)

    @property
    def encloses_this(self) -> bool:
        """Whether the calling task is the task that this scope cancels."""
        return asyncio.current_task() is self._task

    def recheck_soon(self) -> None:
        """Look at the leases soon, because the state of one has changed. From any thread."""
        # The keeper may outlive the loop; then no task is left to cancel.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._recheck)

    def stop(self) -> None:
        """Cancel the body although its lease is proved. From any thread."""
        # Noted before the recheck is queued: it may run in the loop's thread at once.
        self._asked = True
        self.recheck_soon()

    def let_run(self) -> None:
        """Cancel the body no more: its own task ends the lease, and knows it."""
        self._closed = True

    def close(self, error: BaseException | None = None) -> bool:
        """Leave the scope with `error`; True if a CancelledError in it is the scope's own."""
        # First: a recheck that another thread has queued must not cancel the task any more.
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.fired:
            return False
        count = self._task.uncancel()
        # A TaskGroup that failed in the body leaves the count raised.
        old = sys.version_info < (3, 13)
        if old and self._cancelling < count <= self._before and self._is_all_of(error):
            while count > self._cancelling:
                count = self._task.uncancel()
        return count <= self._cancelling

    def _is_all_of(self, error: BaseException | None) -> bool:
        """Whether this scope made the only cancellation in `error` and what is behind it."""
        marks = []
        while error is not None:
            if isinstance(error, asyncio.CancelledError):
                marks.append(error.args[0] if error.args else None)
            error = error.__context__
        return bool(marks) and all(mark is self._mark for mark in marks)

    def _left(self) -> float:
        """The seconds for which the body may run on."""
        ends = (
            (it.deadline if self._in_grace else it.stop_at) if it.state is LeaseState.HELD else 0.0
            for it in (claim.machine for claim in self._claims)
        )
        return min(ends) - clock.now()

    def _recheck(self) -> None:
        if self._closed or self.fired:
            return
        left = self._left()
        if left > 0 and not self._asked:
            if self._timer is not None:
                self._timer.cancel()
            # The loop's clock stands still in a suspend. After one the keeper finds the loss, and
            # calls `recheck_soon`.
            self._timer = self._loop.call_later(left, self._recheck)
            return
        # Before the cancellation: `close`, which that may reach at once, asks whose it was.
        self.fired = True
        if not getattr(self._task, "_must_cancel", True):
            self._before = self._task.cancelling()
        self._task.cancel(self._mark)


async def wait_until_called(
    ask: Callable[[Callback], None],
    timeout: float | None,
    forget: Callable[[Callback], None] | None = None,
) -> None:
    """Wait until the callback that `ask` gets is called, by any thread, or `timeout` seconds."""
    loop = asyncio.get_running_loop()
    called = asyncio.Event()

    def notify() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(called.set)

    # After the event exists: `ask` may call back at once, from this thread or another.
    ask(notify)
    try:
        async with asyncio.timeout(timeout):
            await called.wait()
    except TimeoutError as error:
        raise_if_from_signal(error)
    finally:
        if forget is not None:
            forget(notify)
