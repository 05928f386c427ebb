"""Asynchronous connections: protocols of asyncio's, each with one timer for all who wait."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from math import inf

from incumbent import clock
from incumbent.net.dial import leave_to_parent
from incumbent.net.pool import Broken, Ended

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

    def hang_up(self) -> None:
        """As `close`: all who wait are told."""
        self.close()

    def detach(self) -> None:
        """In a fork's child: give the descriptor back without touching the parent's event loop.

        The loop's epoll object is shared with the parent, so the transport must not be closed.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            leave_to_parent(sock.fileno())

    def _admit(self, until: float) -> None:
        """Whether a request may be sent, and its sender wait until then. Raises Broken."""
        if self._failure is not None:
            raise Broken(str(self._failure), sent=False) from self._failure
        if _now() >= until:
            raise Broken("no time is left", sent=False, late=True)
        self._wake_at(until)

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
        broken = Ended() if exc is None else Broken(str(exc), sent=True)
        broken.__cause__ = exc
        self._fail(broken)


class AsyncStream(AsyncConnection):
    """One whose bytes are read by one task at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._inbox = bytearray()
        self._waiter: asyncio.Future[None] | None = None

    def is_stale(self, *, trust: bool) -> bool:
        """As `closed`: the event loop notices itself when a server closes one.

        Also if the server said what nobody had asked for: it would be the next request's answer.
        """
        return self.closed or bool(self._inbox)

    def send(self, request: bytes, until: float) -> None:
        """All of a request. Raises Broken."""
        self._admit(until)
        self._transport.write(request)

    async def more(self, until: float) -> bytes:
        """Some bytes. Raises Broken, also at the end of the connection."""
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            if _now() >= until:
                raise Broken("no answer in time", sent=True, late=True)
            # It may be woken too early: the loop's clock is not ours.
            self._wake_at(until)
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        data = bytes(self._inbox)
        self._inbox.clear()
        return data

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._tick()

    def _tick(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- called by the event loop -------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._inbox += data
        self._tick()

    def eof_received(self) -> None:
        """See asyncio.Protocol. The transport closes itself after this."""
        self._fail(Ended())
