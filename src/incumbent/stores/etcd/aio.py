"""The asynchronous side: `operations` awaited, with connections of each event loop's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary, WeakSet

from incumbent.stores.etcd.aiowire import AsyncWire, dial
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.exchange import Site
from incumbent.stores.etcd.memory import Memory
from incumbent.stores.etcd.operations import Operations
from incumbent.stores.etcd.options import Endpoint

__all__ = ["AsyncEtcdStore", "Loops"]


class AsyncEtcdStore(Operations[AsyncWire]):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, site: Site, dialect: Dialect, memory: Memory) -> None:
        super().__init__(site, dialect, memory)
        self._ending: AsyncGenerator[None, None] | None = None

    async def dial(self, endpoint: Endpoint, until: float) -> AsyncWire:
        """See Exchange.dial."""
        if self._ending is None:
            self._ending = self._until_loop_ends()
            await anext(self._ending)
        return await dial(self.site, endpoint, until)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        ending, self._ending = self._ending, None
        self.let_go()
        if ending is not None:
            await ending.aclose()

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        """Ends with the loop: asyncio.run closes asynchronous generators before it closes."""
        try:
            yield
        finally:
            self.let_go()

    def detach(self) -> None:
        """See AsyncWire.detach."""
        for wire in list(self.all):
            wire.detach()


class Loops:
    """The stores of all event loops of this process."""

    def __init__(self, site: Site, dialect: Dialect, memory: Memory) -> None:
        self._parts = (site, dialect, memory)
        self._stores: _Stores = WeakKeyDictionary()
        _all.add(self)

    def store(self) -> AsyncEtcdStore:
        """The store of the running loop."""
        loop = asyncio.get_running_loop()
        store = self._stores.get(loop)
        return self._make(loop) if store is None else store

    def _make(self, loop: asyncio.AbstractEventLoop) -> AsyncEtcdStore:
        # A store's connections know their loop, so a loop that was closed does not go by itself.
        # By a copy of the references: other threads have loops as well.
        for reference in list(self._stores.keyrefs()):
            other = reference()
            if other is not None and other.is_closed():
                self._stores.pop(other, None)
        store = self._stores[loop] = AsyncEtcdStore(*self._parts)
        return store

    def detach(self) -> None:
        """In a fork's child: these loops are the parent's."""
        _graveyard.append(self._stores)
        for store in self._stores.values():
            store.detach()
        self._stores = WeakKeyDictionary()


_Stores = WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEtcdStore]
_all: WeakSet[Loops] = WeakSet()
_graveyard: list[_Stores] = []
"""What must never be collected: closing the parent's transports would disturb the parent."""


def _after_fork() -> None:
    for loops in list(_all):
        loops.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
