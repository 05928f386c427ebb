"""The asynchronous side: `exchange` awaited, with connections of each event loop's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary, WeakSet

from incumbent.stores.postgresql.aiowire import AsyncDial, AsyncListening, AsyncWire
from incumbent.stores.postgresql.dialect import Dialect
from incumbent.stores.postgresql.driver import Site
from incumbent.stores.postgresql.exchange import Exchange
from incumbent.stores.postgresql.listening import Listening

__all__ = ["AsyncPostgresStore", "Loops"]


class AsyncPostgresStore(Exchange[AsyncWire]):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(site, dialect)
        self._watch: AsyncGenerator[None, None] | None = None

    def make_listening(self) -> Listening[AsyncWire]:
        """See Exchange.make_listening."""
        return AsyncListening(self.connect)

    async def dial(self, until: float) -> AsyncWire:
        """See Exchange.dial."""
        if self._watch is None:
            self._watch = self._until_loop_ends()
            await anext(self._watch)
        return AsyncWire(await AsyncDial().connect(self.site, until))

    async def nap(self, seconds: float) -> None:
        """See Exchange.nap."""
        await asyncio.sleep(seconds)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        watch, self._watch = self._watch, None
        self.let_go()
        if watch is not None:
            await watch.aclose()

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        """Ends with the loop: asyncio.run closes asynchronous generators before it closes."""
        try:
            yield
        finally:
            self.let_go()

    def detach(self) -> None:
        """See AnyWire.detach."""
        for wire in list(self.all):
            wire.detach()


class Loops:
    """The stores of all event loops of this process."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self._site = site
        self._dialect = dialect
        self._stores: _Stores = WeakKeyDictionary()
        _all.add(self)

    def store(self) -> AsyncPostgresStore:
        """The store of the running loop."""
        loop = asyncio.get_running_loop()
        store = self._stores.get(loop)
        return self._make(loop) if store is None else store

    def _make(self, loop: asyncio.AbstractEventLoop) -> AsyncPostgresStore:
        # A store's connections know their loop, so a loop that was closed does not go by itself.
        # By a copy of the references: other threads have loops as well.
        for reference in list(self._stores.keyrefs()):
            other = reference()
            if other is not None and other.is_closed():
                self._stores.pop(other, None)
        store = self._stores[loop] = AsyncPostgresStore(self._site, self._dialect)
        return store

    def detach(self) -> None:
        """In a fork's child: these loops are the parent's."""
        _graveyard.append(self._stores)
        for store in self._stores.values():
            store.detach()
        self._stores = WeakKeyDictionary()


_Stores = WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncPostgresStore]
_all: WeakSet[Loops] = WeakSet()
_graveyard: list[_Stores] = []
"""What must never be collected: it would disturb the parent's event loop."""


def _after_fork() -> None:
    for loops in list(_all):
        loops.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
