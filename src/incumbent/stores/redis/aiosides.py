"""What the layers need of the world, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.stores.plan import Planned
from incumbent.stores.redis.aio import AsyncRedisStore
from incumbent.stores.redis.aiodial import dial
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import Server
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import exchange_error
from incumbent.stores.redis.exchange import UNUSABLE, Exchange, carry_out
from incumbent.stores.redis.resp import Program
from incumbent.stores.redis.sides import Layer, Side

__all__ = ["AsyncFace", "AsyncSide", "make_face"]

T = TypeVar("T")


class AsyncSide(Side):
    """See Side. Belongs to the loop in which it was made."""

    def __init__(self) -> None:
        self._stores: list[AsyncRedisStore] = []
        self._turn = asyncio.Lock()

    def exchange(self, site: Site, commands: Commands) -> Exchange[Any]:
        store = AsyncRedisStore(site, commands)
        self._stores.append(store)
        return store

    async def survey(
        self,
        sites: Sequence[Site],
        program: Callable[[Site], Program[T]],
        enough: int,
        until: float,
    ) -> list[T | StoreError]:
        tasks = [asyncio.create_task(_ask(site, program, until)) for site in sites]
        answers: list[T | StoreError] = []
        try:
            for next_one in asyncio.as_completed(tasks, timeout=max(0.0, until - clock.now())):
                answers.append(await next_one)
                if sum(not isinstance(each, StoreError) for each in answers) >= enough:
                    break
        except TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
        return answers

    async def alone(self, work: Callable[[], Awaitable[None]], until: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until - clock.now())):
                await self._turn.acquire()
        except TimeoutError as error:
            raise StoreUnavailable("no time was left to ask where the servers are") from error
        try:
            await work()
        finally:
            self._turn.release()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def each(
        self, works: Sequence[Callable[[float], Awaitable[T]]], until: float
    ) -> list[T | StoreError]:
        return list(await asyncio.gather(*(_outcome(work, until) for work in works)))

    async def aclose(self) -> None:
        """Let go of all connections, and watch the loop no longer."""
        for store in self._stores:
            await store.aclose()

    def detach(self) -> None:
        for store in self._stores:
            store.detach()


class AsyncFace(Layer):
    """See stores.base.AsyncStore: the operations of a layer, for one event loop."""

    def __init__(self, side: AsyncSide, layer: Planned[Server]) -> None:
        super().__init__(layer)
        self._side = side

    async def aclose(self) -> None:
        self.let_go()
        await self._side.aclose()

    def detach(self) -> None:
        """In a fork's child: give the descriptors back without touching the parent's loop."""
        self._side.detach()


def make_face(build: Callable[[Side], Planned[Server]]) -> AsyncFace:
    """The store of the running loop."""
    side = AsyncSide()
    return AsyncFace(side, build(side))


async def _outcome(work: Callable[[float], Awaitable[T]], until: float) -> T | StoreError:
    try:
        return await work(until)
    except StoreError as error:
        return error


async def _ask(site: Site, program: Callable[[Site], Program[T]], until: float) -> T | StoreError:
    try:
        wire = await dial(site, until)
        try:
            return await carry_out(wire, program(site), until)
        finally:
            wire.close()
    except StoreError as error:
        return error
    except UNUSABLE as error:
        return exchange_error(error, site.where)
    except Exception as error:  # noqa: BLE001 - in a task of its own, nobody else would hear it
        return OutcomeUnknown(f"{site.where} could not be asked: {error!r}")
