"""What the layers need of the world, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.stores.plan import PlannedTogether
from incumbent.stores.redis.aio import AsyncRedisStore
from incumbent.stores.redis.aiodial import dial
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import Server
from incumbent.stores.redis.exchange import AnyWire, Exchange
from incumbent.stores.redis.sides import Enough, Layer, Side, View, Work
from incumbent.stores.redis.site import Site

T = TypeVar("T")


class AsyncSide(Side):
    """See Side. Belongs to the loop in which it was made."""

    def __init__(self) -> None:
        self.stores: list[AsyncRedisStore] = []
        self._turn = asyncio.Lock()

    def exchange(self, site: Site, commands: Commands) -> Exchange[Any]:
        store = AsyncRedisStore(site, commands)
        self.stores.append(store)
        return store

    async def dial(self, site: Site, until: float) -> AnyWire:
        return await dial(site, until)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def update(self, view: View, until: float) -> None:
        """See Side.update. One task asks for all."""
        if not view.stale:
            return
        try:
            async with asyncio.timeout(max(0.0, until - clock.now())):
                await self._turn.acquire()
        except TimeoutError as error:
            raise StoreUnavailable("no time was left to ask where the servers are") from error
        try:
            await super().update(view, until)
        finally:
            self._turn.release()

    async def together(
        self, works: Sequence[Work[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        tasks = [asyncio.create_task(_outcome(work, until)) for work in works]
        # Where all are wanted, each knows itself when to end.
        patience = max(0.0, until - clock.now()) if enough else None
        found: list[T] = []
        try:
            for ended in asyncio.as_completed(tasks, timeout=patience):
                outcome = await ended
                if not isinstance(outcome, StoreError):
                    found.append(outcome)
                    if enough and enough(found):
                        break
        except TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
        late = OutcomeUnknown("no answer in time")
        return [task.result() if task.done() else late for task in tasks]


class AsyncFace(Layer):
    """See stores.base.AsyncStore: the operations of a layer, for one event loop."""

    def __init__(self, side: AsyncSide, layer: PlannedTogether[Server]) -> None:
        super().__init__(layer)
        self._side = side

    async def aclose(self) -> None:
        self.let_go()
        for store in self._side.stores:
            await store.aclose()

    def detach(self) -> None:
        """In a fork's child: give the descriptors back without touching the parent's loop."""
        for store in self._side.stores:
            store.detach()


async def _outcome(work: Work[T], until: float) -> T | StoreError:
    try:
        return await work(until)
    except StoreError as error:
        return error
