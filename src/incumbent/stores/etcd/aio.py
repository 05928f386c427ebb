"""The asynchronous side: `operations` awaited, with connections of each event loop's own."""

from __future__ import annotations

from incumbent.stores.etcd.aiowire import AsyncWire, dial
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.operations import Operations
from incumbent.stores.etcd.site import Site
from incumbent.stores.etcd.url import Endpoint
from incumbent.stores.loops import LoopEnd

__all__ = ["AsyncEtcdStore"]


class AsyncEtcdStore(Operations[AsyncWire]):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(site, dialect, self._dialled)
        self._end = LoopEnd(self.let_go)

    async def _dialled(self, site: Site, endpoint: Endpoint, until: float) -> AsyncWire:
        await self._end.watch()
        return await dial(site, endpoint, until)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        self.let_go()
        await self._end.aclose()

    def detach(self) -> None:
        """See AsyncWire.detach."""
        for wire in list(self.client.all):
            wire.detach()
