"""One of those who wait reads for all of them: who has the seat. Who leaves passes it on.

So the one that waits alone is woken by its own system call, and no thread is needed. One that waits
itself, in the thread that has the seat (a signal handler), gets another seat and other connections.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from incumbent import clock

if TYPE_CHECKING:
    from asyncio import Future

__all__ = [
    "SLICE",
    "LockWakeup",
    "LoopWakeup",
    "ReaderRole",
    "Wakeup",
    "count_loss",
    "subscription_losses",
]

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

    def ring(self) -> None:
        """Wake it, now or at its next wait; from any thread."""

    async def wait(self, until: float) -> None:
        """Return when rung, or at `until`, or earlier."""


class LockWakeup:
    """For a thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def ring(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            return  # it rings already

    async def wait(self, until: float) -> None:
        self._gate.acquire(timeout=max(0.0, min(until - _now(), SLICE)))


class LoopWakeup:
    """For a task. Rung in its own loop only."""

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def wait(self, until: float) -> None:
        if not self._rung:
            from asyncio import get_running_loop

            loop = get_running_loop()
            sleeper = self._sleeper = loop.create_future()
            timer = loop.call_later(max(0.0, until - _now()), self.ring)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        self._rung = False


class _Seat(Protocol):
    taken_by: Hashable

    def drop(self) -> None: ...


class _Waiter(Protocol):
    bell: Wakeup
    listens: bool
    told: bool


S = TypeVar("S", bound=_Seat)
W = TypeVar("W", bound=_Waiter)


class ReaderRole(Generic[S, W]):
    """Who waits here, and which of them reads."""

    def __init__(self, new_seat: Callable[[], S]) -> None:
        self._new_seat = new_seat
        self._waiters: dict[W, None] = {}
        self._seat_anew()

    def _seat_anew(self) -> None:
        self._seat = self._new_seat()
        self._free = [self._seat]

    def _sit_down(self, me: Hashable) -> S | None:
        try:
            seat = self._free.pop()
        except IndexError:
            if self._seat.taken_by != me:
                return None
            # We interrupt the very one that reads.
            seat = self._seat = self._new_seat()
            self._free = []
            self._tell_all()
        seat.taken_by = me
        return seat

    def _stand_up(self, seat: S, *, leaves: bool = False) -> None:
        seat.taken_by = None
        if seat is not self._seat:
            seat.drop()
            return
        self._free.append(seat)
        if not leaves:
            self._wake_one()

    def _wake_one(self) -> None:
        if self._free:
            for other in list(self._waiters):
                other.bell.ring()
                return

    def _tell_all(self) -> None:
        """What was said may be lost: whoever relied on hearing it has to look."""
        for waiter in list(self._waiters):
            waiter.told = waiter.told or waiter.listens
            waiter.bell.ring()
