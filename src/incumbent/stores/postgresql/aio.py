"""The asynchronous side: `exchange` awaited, with connections of each event loop's own."""

from __future__ import annotations

import asyncio

from incumbent.stores.loops import LoopEnd
from incumbent.stores.postgresql.aiowire import AsyncDial, AsyncListening, AsyncWire
from incumbent.stores.postgresql.dialect import Dialect
from incumbent.stores.postgresql.driver import Site
from incumbent.stores.postgresql.exchange import Exchange
from incumbent.stores.postgresql.listening import Listening

__all__ = ["AsyncPostgresStore"]


class AsyncPostgresStore(Exchange[AsyncWire]):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(site, dialect)
        self._end = LoopEnd(self.let_go)

    def make_listening(self) -> Listening[AsyncWire]:
        """See Exchange.make_listening."""
        return AsyncListening(self.connect)

    async def dial(self, until: float) -> AsyncWire:
        """See Exchange.dial."""
        await self._end.watch()
        return AsyncWire(await AsyncDial().connect(self.site, until))

    async def nap(self, seconds: float) -> None:
        """See Exchange.nap."""
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        self.let_go()
        await self._end.aclose()

    def detach(self) -> None:
        """See AnyWire.detach."""
        for wire in list(self.all):
            wire.detach()
