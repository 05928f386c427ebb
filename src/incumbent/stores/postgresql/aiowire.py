"""How the asynchronous side waits for a socket, a name, or a bell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from incumbent import clock
from incumbent.net.aiodial import resolve
from incumbent.stores.postgresql.dial import Dial
from incumbent.stores.postgresql.listening import Bell, Listening
from incumbent.stores.postgresql.wire import AnyWire

__all__ = ["AsyncDial", "AsyncListening", "AsyncWire"]

_now = clock.now


class AsyncWire(AnyWire):
    """A connection of one event loop."""

    async def ready(self, until: float, *, writing: bool = False) -> bool:
        """See AnyWire.ready."""
        return await _ready(self._fd, until, writing=writing)


async def _ready(fd: int, until: float, *, writing: bool) -> bool:
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[bool] = loop.create_future()
    if writing:
        loop.add_writer(fd, _done, waiter)
    else:
        loop.add_reader(fd, _done, waiter)
    timer = loop.call_later(max(0.0, until - _now()), _late, waiter)
    try:
        return await waiter
    finally:
        timer.cancel()
        if writing:
            loop.remove_writer(fd)
        else:
            loop.remove_reader(fd)


def _done(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(True)


def _late(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class AsyncDial(Dial):
    """How one event loop waits for the dialling."""

    async def ready(self, fd: int, until: float, *, writing: bool) -> bool:
        """See Dial.ready."""
        return await _ready(fd, until, writing=writing)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        """See Dial.resolve."""
        async with asyncio.timeout(max(0.0, until - _now())):
            return await resolve(host, port)


class _Bell:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.ring = self._event.set
        self.clear = self._event.clear

    async def wait(self, until: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until - _now())):
                await self._event.wait()
        except TimeoutError:
            pass


class AsyncListening(Listening[AsyncWire]):
    """Those of one loop who wait."""

    def bell(self) -> Bell:
        """See Listening.bell."""
        return _Bell()
