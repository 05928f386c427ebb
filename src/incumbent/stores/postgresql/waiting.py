"""How a side waits: for a socket, for a name, for a while, or to be woken.

Instants are those of `clock.now`. The coroutines here block and never suspend; those of `aio`
override them and suspend.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from incumbent import clock
from incumbent.net.dial import wait_ready
from incumbent.net.names import resolve

__all__ = ["Side", "Wakeup"]

_SLICE: Final = 1.0
"""Seconds of one wait; then our clock is asked again, which also counts suspend."""

_now = clock.now


class Wakeup:
    """Wakes one that waits; it stays set until it is cleared."""

    def __init__(self) -> None:
        event = threading.Event()
        self.set, self.clear, self._wait = event.set, event.clear, event.wait

    async def wait(self, until: float) -> None:
        """Return when it is set, or at `until`."""
        while not self._wait(min(_SLICE, max(0.0, until - _now()))) and _now() < until:
            pass


class Side:
    """The blocking side."""

    wakeup: type[Wakeup] = Wakeup

    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        """Wait for a descriptor; whether it became ready before `until`."""
        return wait_ready(fd, until, writing=writing)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        """The host's addresses. Raises OSError, and TimeoutError at `until`."""
        return resolve(host, port, until)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this side is for
