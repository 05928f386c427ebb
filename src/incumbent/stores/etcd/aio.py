"""The asynchronous side: operations that are awaited."""

from __future__ import annotations

import asyncio

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.aiodial import connect
from incumbent.net.aiowire import AsyncStream
from incumbent.net.readers import SharedWakeup, Wakeup
from incumbent.stores.etcd.client import Client
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.loops import LoopEnd
from incumbent.stores.url import Endpoint

_LONGEST = 3600.0

_now = clock.now


class AsyncEtcdStore(Client[AsyncStream]):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._end = LoopEnd(self.let_go)

    def wakeup(self) -> Wakeup:
        return SharedWakeup()

    async def dial(self, endpoint: Endpoint, until: float) -> AsyncStream:
        await self._end.watch()
        try:
            async with asyncio.timeout(min(_LONGEST, until - _now())):
                return await connect(AsyncStream, endpoint.host, endpoint.port, tls=self.site.tls)
        except TimeoutError as error:
            text = f"{endpoint} cannot be reached: no connection in time"
            raise StoreUnavailable(text) from error
        except OSError as error:
            raise self.site.cannot_connect(error, str(endpoint)) from error

    async def aclose(self) -> None:
        self.let_go()
        await self._end.aclose()
