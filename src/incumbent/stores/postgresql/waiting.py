"""How a side waits: for a socket, for a name, for a while, or to be woken."""

from __future__ import annotations

import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil
from typing import Final, Protocol

from incumbent import clock
from incumbent.net.names import resolve

__all__ = ["SLICE", "Blocking", "Side", "Wakeup", "wait_for"]

SLICE: Final = 1.0
"""Seconds of one system call; then our clock is asked again, which also counts suspend."""

_now = clock.now


class Wakeup(Protocol):
    """Wakes one that waits; it stays set until it is cleared."""

    def set(self) -> None:
        """End the wait, or the next one."""

    def clear(self) -> None:
        """Have the next wait last again."""

    async def wait(self, until: float) -> None:
        """Return when it is set, or at `until`."""


class Side(ABC):
    """Blocking, or asyncio. Instants are those of clock.now."""

    @abstractmethod
    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        """Wait for a descriptor; whether it became ready before `until`."""

    @abstractmethod
    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        """The host's addresses. Raises OSError, and TimeoutError at `until`."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let that time pass."""

    @abstractmethod
    def wakeup(self) -> Wakeup:
        """A new one."""


class Blocking(Side):
    """Its coroutines never suspend."""

    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        return wait_for(fd, until, writing=writing)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        return resolve(host, port, until)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this side is for

    def wakeup(self) -> Wakeup:
        return _Wakeup()


class _Wakeup:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set
        self.clear = self._event.clear

    async def wait(self, until: float) -> None:
        while not self._event.wait(min(SLICE, max(0.0, until - _now()))) and _now() < until:
            pass


def wait_for(fd: int, until: float, *, writing: bool = False) -> bool:
    """Block until the descriptor is ready; whether it was before `until`."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT if writing else select.POLLIN)
    while True:
        left = min(SLICE, until - _now())
        # Up to the next millisecond: down would spin.
        if poll.poll(max(0, ceil(left * 1000))):
            return True
        if _now() >= until:
            return False
