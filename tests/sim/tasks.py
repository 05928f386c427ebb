"""Coroutines in virtual time: what they may wish for, and what resumes them."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from math import inf
from types import coroutine
from typing import Any, Protocol

__all__ = ["SIGNALS", "Clock", "Exchange", "Host", "Nap", "Schedule", "Task", "wish"]

SIGNALS = (CancelledError, KeyboardInterrupt)
"""What interrupts a task from outside, under asyncio and in blocking code."""


class Schedule:
    """True time, and what happens next in it. Nobody inside a world can read it."""

    __slots__ = ("_events", "_serial", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._serial = 0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, instant: float, call: Callable[..., object], *args: Any) -> None:
        """Have `call(*args)` happen at an instant of true time, or now if that has passed."""
        self._serial += 1
        heappush(self._events, (max(instant, self.now), self._serial, call, args))

    def run(self, most: int) -> bool:
        """Let everything happen until nothing is left; False if `most` events were not enough."""
        events = self._events
        for _ in range(most):
            if not events:
                return True
            self.now, _, call, args = heappop(events)
            call(*args)
        return not events


class Clock:
    """A clock that runs at a constant rate of true time."""

    __slots__ = ("offset", "rate")

    def __init__(self, rate: float, offset: float) -> None:
        self.rate = rate
        self.offset = offset

    def at(self, true: float) -> float:
        """What it shows at an instant of true time."""
        return self.offset + self.rate * true

    def when(self, shown: float) -> float:
        """The instant of true time at which it shows that."""
        return (shown - self.offset) / self.rate


class Exchange:
    """A wish: have the server apply an operation, and bring the answer by `until`."""

    __slots__ = ("apply", "args", "until")

    def __init__(self, apply: Callable[..., Any], args: tuple[Any, ...], until: float) -> None:
        self.apply = apply
        self.args = args
        self.until = until


class Nap:
    """A wish: go on at an instant of the host's clock, or when woken."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


@coroutine
def wish(what: Exchange | Nap) -> Generator[Exchange | Nap, Any, Any]:
    """Suspend until the world has granted a wish."""
    return (yield what)


class Host(Protocol):
    """What a task needs of the process that it belongs to."""

    frozen: bool
    backlog: list[tuple[Task, int, Any, BaseException | None]]

    def grant(self, task: Task, wished: Exchange | Nap) -> None:
        """See to it that the task is resumed."""
        ...


class Task:
    """A thread of a process. An event for an earlier wish than the present one means nothing."""

    __slots__ = ("coro", "done", "host", "napping", "serial")

    def __init__(self, host: Host, coro: Coroutine[Any, Any, None]) -> None:
        self.host = host
        self.coro = coro
        self.serial = 0
        self.done = False
        self.napping = inf
        """When a nap that may be ended early is over; inf when there is none."""

    def resume(self, serial: int, value: Any = None, error: BaseException | None = None) -> None:
        """Go on, unless it has gone on already; a frozen process does so when it thaws."""
        if serial != self.serial or self.done:
            return
        host = self.host
        if host.frozen:
            host.backlog.append((self, serial, value, error))
            return
        self.serial = serial + 1
        try:
            wished = self.coro.send(value) if error is None else self.coro.throw(error)
        except StopIteration:
            self.done = True
            return
        host.grant(self, wished)

    def kill(self) -> None:
        """End it where it stands, as SIGKILL does."""
        self.done = True
        self.coro.close()
