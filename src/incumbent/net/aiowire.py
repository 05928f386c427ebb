"""An asynchronous connection: a protocol of asyncio's, with one timer for all who wait."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from math import inf

from incumbent import clock
from incumbent.net.dial import leave_to_parent
from incumbent.net.pool import Broken

_now = clock.now
_LONGEST = 3600.0


class AsyncConnection(asyncio.Protocol):
    """See net.pool.Connection. `used`: when the present (or last) exchange began."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure: Exception | None = None
        self._timer_at = inf
        self._timer: asyncio.TimerHandle | None = None
        self.used = 0.0

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._failure is not None

    def close(self) -> None:
        """Let go at once; nothing is written."""
        self._fail(Broken("closed", sent=True))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.abort()

    def detach(self) -> None:
        """In a fork's child: give the descriptor back without touching the parent's event loop.

        The loop's epoll object is shared with the parent, so the transport must not be closed.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            leave_to_parent(sock.fileno())

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """Note the first failure, and tell all who wait."""

    @abstractmethod
    def _tick(self) -> None:
        """Tell those who have no more time; set the timer for the others."""

    def _wake_at(self, until: float) -> None:
        """Have `_tick` called by then. The timer is moved, not remade for each."""
        if until >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = self._loop.call_later(
            max(0.0, min(_LONGEST, until - _now())), self._timer_ended
        )

    def _timer_ended(self) -> None:
        self._timer, self._timer_at = None, inf
        self._tick()

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol. Comes before anything else."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the types
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        broken = Broken(str(exc or "the server closed the connection"), sent=True)
        broken.__cause__ = exc
        self._fail(broken)
