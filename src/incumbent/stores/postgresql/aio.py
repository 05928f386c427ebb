"""The asynchronous side: `runner` awaited, with connections of each event loop's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from incumbent import clock
from incumbent.net.aiodial import resolve
from incumbent.net.readers import SharedWakeup
from incumbent.stores.loops import LoopEnd
from incumbent.stores.postgresql.dialect import Dialect
from incumbent.stores.postgresql.libpq import Side, Site
from incumbent.stores.postgresql.runner import Runner
from incumbent.stores.postgresql.wire import Wire

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
    wakeup = SharedWakeup

    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        loop = asyncio.get_running_loop()
        add, remove = (
            (loop.add_writer, loop.remove_writer)
            if writing
            else (loop.add_reader, loop.remove_reader)
        )
        outcome: asyncio.Future[bool] = loop.create_future()

        def settle(ready: bool) -> None:
            if not outcome.done():
                outcome.set_result(ready)

        timer = loop.call_later(max(0.0, until - _now()), settle, False)
        add(fd, settle, True)
        try:
            return await outcome
        finally:
            remove(fd)
            timer.cancel()

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        async with asyncio.timeout(max(0.0, until - _now())):
            return await resolve(host, port)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
