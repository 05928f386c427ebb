"""One asynchronous connection: hiredis in a protocol of ours, on a transport that redis-py made."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from math import inf
from typing import Any

import hiredis

from incumbent import clock
from incumbent.stores.redis.errors import Broken

__all__ = ["AsyncWire"]

_now = clock.now


class AsyncWire(asyncio.Protocol):
    """See exchange.AnyWire. One timer serves all its exchanges: it is moved, not remade."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Any] = deque()
        self._waiter: asyncio.Future[Any] | None = None
        self._failure: Exception | None = None
        self._until = self._timer_at = inf
        self._timer: asyncio.TimerHandle | None = None
        # A StreamWriter that is collected closes its transport.
        self._writer = writer
        self._transport = writer.transport
        self._transport.set_protocol(self)
        if self._transport.is_closing():
            self._failure = Broken("the server closed the connection", sent=False)
        self.epoch = ""
        self.born = 0.0
        self.used = 0.0

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._failure is not None

    def is_stale(self, *, trust: bool) -> bool:
        """As `closed`: the event loop notices itself when a server closes one."""
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
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, sock.fileno())
            os.close(nothing)

    def send(self, request: bytes, until: float) -> None:
        """A request whose answer is read by `next`. Raises Broken."""
        if self._failure is not None:
            raise Broken(str(self._failure), sent=False) from self._failure
        if _now() >= until:
            raise Broken("no time is left", sent=False, late=True)
        self._transport.write(request)

    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""
        if self._inbox:
            return self._inbox.popleft()
        if self._failure is not None:
            raise self._failure
        self._until = until
        if until < self._timer_at:
            self._set_timer(until)
        waiter = self._waiter = self._loop.create_future()
        try:
            return await waiter
        finally:
            self._waiter = None

    def _set_timer(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = self._loop.call_later(max(0.0, until - _now()), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, inf
        if self._waiter is None or self._waiter.done():
            return
        if self._until > _now():
            # It was set for an exchange that is over; or the loop's clock is ahead of ours.
            if self._until < inf:
                self._set_timer(self._until)
        else:
            self._fail(Broken("no answer in time", sent=True, late=True))

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # -- called by the event loop -------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            self._feed(data)
            while (answer := self._gets()) is not False:
                if self._waiter is not None and not self._waiter.done():
                    self._waiter.set_result(answer)
                else:
                    self._inbox.append(answer)
        except hiredis.ProtocolError as error:
            self._fail(error)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._fail(Broken(str(exc or "the server closed the connection"), sent=True))
