"""The asynchronous side: `runner` awaited, with connections of each event loop's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from incumbent import clock
from incumbent.net.aiodial import resolve
from incumbent.stores.loops import LoopEnd
from incumbent.stores.postgresql.dialect import Dialect
from incumbent.stores.postgresql.libpq import Site
from incumbent.stores.postgresql.runner import Runner
from incumbent.stores.postgresql.waiting import Side, Wakeup
from incumbent.stores.postgresql.wire import Wire

__all__ = ["AsyncPostgresStore"]

_now = clock.now


class AsyncPostgresStore(Runner):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(site, dialect, _Suspending())
        self._end = LoopEnd(self.let_go)

    async def dial(self, until: float) -> Wire:
        await self._end.watch()
        return await super().dial(until)

    async def aclose(self) -> None:
        self.let_go()
        await self._end.aclose()


class _Suspending(Side):
    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        if writing:
            loop.add_writer(fd, _settle, waiter, True)
        else:
            loop.add_reader(fd, _settle, waiter, True)
        timer = loop.call_later(max(0.0, until - _now()), _settle, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            if writing:
                loop.remove_writer(fd)
            else:
                loop.remove_reader(fd)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        async with asyncio.timeout(max(0.0, until - _now())):
            return await resolve(host, port)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def wakeup(self) -> Wakeup:
        return _Wakeup()


def _settle(waiter: asyncio.Future[bool], ready: bool) -> None:
    if not waiter.done():
        waiter.set_result(ready)


class _Wakeup:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set = self._event.set
        self.clear = self._event.clear

    async def wait(self, until: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until - _now())):
                await self._event.wait()
        except TimeoutError:
            pass
