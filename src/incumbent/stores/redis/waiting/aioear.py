"""The subscriber connection and the bells of the asynchronous side."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from incumbent import clock
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.errors import Broken

__all__ = ["AsyncEar", "LoopBell"]

_now = clock.now


class LoopBell:
    """See hub.Bell. Rung in its own loop only."""

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """See hub.Bell."""
        self._rung = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def wait(self, until: float) -> None:
        """See hub.Bell."""
        if not self._rung:
            loop = asyncio.get_running_loop()
            sleeper = self._sleeper = loop.create_future()
            timer = loop.call_later(max(0.0, until - _now()), self.ring)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        self._rung = False


class AsyncEar:
    """See hub.Ear."""

    interruptible = True

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire
        self.epoch = wire.epoch
        self._inbox: deque[Any] = deque()
        self._bell = LoopBell()
        wire.hears = self._heard

    def say(self, request: bytes, until: float) -> None:
        """See hub.Ear."""
        self._wire.send(request, until)

    async def next(self, until: float) -> Any:
        """See hub.Ear."""
        if not self._inbox:
            if self._wire.closed:
                raise Broken("the subscription was closed", sent=True)
            if until > _now():
                await self._bell.wait(until)
        return self._inbox.popleft() if self._inbox else None

    def poke(self) -> None:
        """See hub.Ear."""
        self._bell.ring()

    def close(self) -> None:
        """See hub.Ear."""
        self._wire.hears = None
        self._wire.close()

    def _heard(self, message: Any) -> None:
        if message is not None:
            self._inbox.append(message)
        self._bell.ring()
