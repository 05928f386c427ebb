"""The asynchronous side: a protocol of asyncio's, and operations that are awaited."""

from __future__ import annotations

import asyncio

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.aiodial import connect
from incumbent.net.dial import leave_to_parent
from incumbent.net.pool import Broken
from incumbent.stores.etcd.client import Client
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.errors import is_refusal_of_certificate
from incumbent.stores.loops import LoopEnd
from incumbent.stores.url import Endpoint

_LONGEST = 3600.0

_now = clock.now


class AsyncWire(asyncio.Protocol):
    """One connection (see client.AnyWire)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._ended = False
        self._transport: asyncio.Transport
        self.used = 0.0

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._failure is not None or self._ended

    def is_stale(self, *, trust: bool) -> bool:
        """As `closed`: the event loop notices itself when a server closes one."""
        return self.closed

    def close(self) -> None:
        """Let go at once; nothing is written."""
        self._fail(Broken("closed", sent=True))
        self._transport.abort()

    def detach(self) -> None:
        """In a fork's child: give the descriptor back without touching the parent's event loop.

        The loop's epoll object is shared with the parent, so the transport must not be closed.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            leave_to_parent(sock.fileno())

    def send(self, request: bytes, until: float) -> None:
        """All of a request. Raises Broken."""
        if self.closed:
            raise Broken(str(self._failure or "closed"), sent=False)
        if _now() >= until:
            raise Broken("no time is left", sent=False, late=True)
        self._transport.write(request)

    async def receive(self, until: float) -> bytes:
        """Some bytes; none at the end of the connection. Raises Broken."""
        while not self._inbox and not self.closed:
            left = until - _now()
            if left <= 0:
                raise Broken("no answer in time", sent=True, late=True)
            # It may wake too early: the loop's clock is not ours.
            timer = self._loop.call_later(min(_LONGEST, left), self._wake)
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        if self._inbox:
            data = bytes(self._inbox)
            self._inbox.clear()
            return data
        if self._failure is not None:
            raise self._failure
        return b""

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the types
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            broken = Broken(str(exc), sent=not is_refusal_of_certificate(str(exc)))
            broken.__cause__ = exc
            self._fail(broken)
        self._ended = True
        self._wake()


class AsyncEtcdStore(Client[AsyncWire]):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._end = LoopEnd(self.let_go)

    async def dial(self, endpoint: Endpoint, until: float) -> AsyncWire:
        await self._end.watch()
        try:
            async with asyncio.timeout(min(_LONGEST, until - _now())):
                return await connect(AsyncWire, endpoint.host, endpoint.port, tls=self.site.tls)
        except TimeoutError as error:
            text = f"{endpoint} cannot be reached: no connection in time"
            raise StoreUnavailable(text) from error
        except OSError as error:
            raise self.site.cannot_connect(error, str(endpoint)) from error

    async def aclose(self) -> None:
        self.let_go()
        await self._end.aclose()
