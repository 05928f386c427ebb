"""One of the waiters reads for all of them: it has the role, and passes it on when it leaves.

So the one that waits alone is woken by its own system call, and no thread is needed. One that waits
itself, in the thread that has the role (a signal handler), gets another role and other connections.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from incumbent import clock

if TYPE_CHECKING:
    from asyncio import Future

SLICE: Final = 5.0
"""Seconds of one wait; then our clock is asked again, which also counts suspend."""

_now = clock.now
_counts: Counter[str] = Counter()


def count_loss() -> None:
    """A subscription was lost, or could not be had."""
    # Two threads may count as one: rare, and nothing is decided by it.
    _counts["lost"] += 1


def subscription_losses() -> int:
    """How often that has happened in this process, over all its stores."""
    return _counts["lost"]


class Wakeup(Protocol):
    """What wakes one that waits."""

    def wake(self) -> None:
        """Wake it, now or at its next wait; from any thread."""

    async def wait(self, until: float) -> None:
        """Return when woken, or at `until`, or earlier."""


class LockWakeup:
    """For a thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            return  # it is woken already

    async def wait(self, until: float) -> None:
        self._gate.acquire(timeout=max(0.0, min(until - _now(), SLICE)))


class LoopWakeup:
    """For a task. Woken in its own loop only."""

    def __init__(self) -> None:
        self._woken = False
        self._sleeper: Future[None] | None = None

    def wake(self) -> None:
        self._woken = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def wait(self, until: float) -> None:
        if not self._woken:
            from asyncio import get_running_loop

            loop = get_running_loop()
            sleeper = self._sleeper = loop.create_future()
            timer = loop.call_later(max(0.0, until - _now()), self.wake)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        self._woken = False


class SharedWakeup(LoopWakeup):
    """For a task, woken from any thread."""

    def __init__(self) -> None:
        super().__init__()
        from asyncio import get_running_loop

        self._loop, self._thread = get_running_loop(), threading.get_ident()

    def wake(self) -> None:
        if threading.get_ident() == self._thread:
            super().wake()
            return
        # Its loop may have ended, and nobody waits there.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(super().wake)


class _Role(Protocol):
    reader: Hashable

    def drop(self) -> None: ...


class _Waiter(Protocol):
    wakeup: Wakeup
    listens: bool
    over: bool


S = TypeVar("S", bound=_Role)
W = TypeVar("W", bound=_Waiter)


class ReaderRole(Generic[S, W]):
    """The waiters here, and which of them reads."""

    def __init__(self, make_role: Callable[[], S]) -> None:
        self._make_role = make_role
        self._waiters: dict[W, None] = {}
        self._renew_role()

    def _renew_role(self) -> None:
        self._role = self._make_role()
        self._free = [self._role]

    def _take_role(self, me: Hashable) -> S | None:
        try:
            role = self._free.pop()
        except IndexError:
            if self._role.reader != me:
                return None
            # We interrupt the very one that reads.
            role = self._role = self._make_role()
            self._free = []
            self._end_waits()
        role.reader = me
        return role

    def _leave_role(self, role: S, *, leaves: bool = False) -> None:
        role.reader = None
        if role is not self._role:
            role.drop()
            return
        self._free.append(role)
        if not leaves:
            self._wake_one()

    def _wake_one(self) -> None:
        if self._free:
            for other in list(self._waiters):
                other.wakeup.wake()
                return

    def _end_waits(self) -> None:
        """What was said may be lost: whoever relied on hearing it has to look."""
        for waiter in list(self._waiters):
            waiter.over = waiter.over or waiter.listens
            waiter.wakeup.wake()
