"""The subscriber connection and the bells of the blocking side."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

from incumbent import clock
from incumbent.stores.collected import close_with
from incumbent.stores.redis.wire import Wire

__all__ = ["LockBell", "WireEar"]

_SLICE: Final = 5.0
"""Seconds of one wait; then our clock is asked again, which also counts suspend."""

_now = clock.now


class LockBell:
    """See hub.Bell."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def ring(self) -> None:
        """See hub.Bell."""
        try:
            self._gate.release()
        except RuntimeError:
            return  # it rings already

    async def wait(self, until: float) -> None:
        """See hub.Bell."""
        self._gate.acquire(timeout=max(0.0, min(until - _now(), _SLICE)))


class WireEar:
    """See hub.Ear. A pair of sockets wakes who reads: pipes can't be polled everywhere."""

    interruptible = False

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.epoch = wire.epoch
        self._mine, self._others = socket.socketpair()
        for end in (self._mine, self._others):
            end.setblocking(False)
        close_with(self, partial(_close_all, (self._mine, self._others)))
        self._ready = _watch(wire.fileno(), self._mine.fileno())

    def say(self, request: bytes, until: float) -> None:
        """See hub.Ear."""
        self._wire.used = _now()
        self._wire.send(request, until)

    async def next(self, until: float) -> Any:
        """See hub.Ear."""
        while (message := self._wire.buffered()) is False:
            left = until - _now()
            ready = self._ready(max(0.0, min(left, _SLICE)))
            if self._wire.fileno() in ready:
                self._wire.fill()
            elif ready:
                self._mine.recv(1024)
                return None
            elif left <= 0:
                return None
        return message

    def poke(self) -> None:
        """See hub.Ear."""
        try:
            self._others.send(b"!")
        except OSError:
            return  # it has been poked often enough, or is closed

    def close(self) -> None:
        """See hub.Ear."""
        self._wire.close()
        _close_all((self._mine, self._others))

    def __del__(self) -> None:
        _close_all((self._mine, self._others))


def _close_all(ends: tuple[socket.socket, ...]) -> None:
    for end in ends:
        end.close()


def _watch(*fds: int) -> Callable[[float], Sequence[int]]:
    """What waits for so many seconds, and returns which of them can be read."""
    if not hasattr(select, "poll"):
        return lambda seconds: select.select(fds, [], [], seconds)[0]
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    # Up to the next millisecond: down would spin.
    return lambda seconds: [fd for fd, _ in poll.poll(ceil(seconds * 1000))]
