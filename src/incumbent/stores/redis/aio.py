"""The asynchronous side: `exchange` awaited, with one connection of each event loop's own.

All tasks of a loop share it (see aiowire). It is made once for all who want it at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TypeVar

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, GiveOutcome, Key, Queued, TakeOutcome
from incumbent.stores.loops import LoopEnd
from incumbent.stores.redis.aiodial import dial
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import Broken, Demoted
from incumbent.stores.redis.exchange import UNUSABLE, Exchange, Operate, Read, is_forgotten, one
from incumbent.stores.redis.resp import as_eval
from incumbent.stores.redis.waiting.aioear import AsyncEar, LoopBell
from incumbent.stores.redis.waiting.hub import Bell, Ear

__all__ = ["AsyncRedisStore"]

T = TypeVar("T")

_now = clock.now


class AsyncRedisStore(Exchange[AsyncWire]):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(site, dialect)
        self._end = LoopEnd(self._close_all)
        self._shared: AsyncWire | None = None
        self._dialing: asyncio.Future[StoreUnavailable | None] | None = None

    async def dial(self, until: float) -> AsyncWire:
        """See Exchange.dial."""
        await self._end.watch()
        wire = await dial(self.site, until)
        # Once more, for the store may have been closed meanwhile.
        await self._end.watch()
        return wire

    def new_bell(self) -> Bell:
        """See hub.Host."""
        return LoopBell()

    def me(self) -> Hashable:
        """See hub.Host."""
        return object()

    def make_ear(self, wire: AsyncWire) -> Ear:
        """See Exchange.make_ear."""
        return AsyncEar(wire)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        self.let_go()
        await self._end.aclose()

    def let_go(self) -> None:
        """See Exchange.let_go."""
        super().let_go()
        wire, self._shared = self._shared, None
        if wire is not None:
            wire.retire()

    def _close_all(self) -> None:
        self._shared = None
        for wire in list(self.all):
            wire.close()

    def detach(self) -> None:
        """See AsyncWire.detach."""
        for wire in list(self.all):
            wire.detach()

    # -- the hot path -------------------------------------------------------------------------

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        dialect, wait, hub = self.dialect, self.site.restart_wait, self.hub
        if wait is None:
            wait = ask.ttl
        if hub.handed and (said := hub.answer(claim, ask, wait)) is not None:
            return said
        sent = _now()
        request = dialect.take(key, claim, ask)
        outcome = await self._ask(request, until, wait, dialect.taken, key, claim, ask)
        if hub.sent or type(outcome) is Queued:
            hub.learn(claim, sent, outcome)
        return outcome

    async def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        until: float,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
    ) -> GiveOutcome:
        """See Store.give."""
        dialect = self.dialect
        request = dialect.give(key, claim, token, closed_for, slot, reserve_for)
        return await self._ask(request, until, 0.0, dialect.given, key, claim, None)

    async def _ask(
        self,
        request: bytes,
        until: float,
        wait: float,
        read: Read[T],
        key: Key,
        claim: str,
        ask: Ask | None,
    ) -> T:
        """One request by the connection that is there; all else is `Exchange`'s."""
        wire = self._shared
        if wire is not None and not wire.is_stale(trust=True) and _now() >= wire.born + wait:
            try:
                answer = await wire.ask(request, until)
                if is_forgotten(answer):
                    answer = await wire.ask(as_eval(request), until)
                return read(answer, key, claim, ask, wire.epoch)
            except UNUSABLE as error:
                _end_if_out_of_step(wire, error)
                again: Operate[AsyncWire, T] = one(request, until, read, key, claim, ask)
                # A take in doubt is the caller's to repeat, who remembers that there were two.
                return await self.again(error, again, until, wait, repeatable=ask is None)
            except Demoted:
                self._forget(wire)
                raise
        operate: Operate[AsyncWire, T] = one(request, until, read, key, claim, ask)
        return await self.do(operate, until, wait, repeatable=ask is None)

    # -- the connection -----------------------------------------------------------------------

    def _trusted(self, *, trust: bool) -> AsyncWire | None:
        wire = self._shared
        return None if wire is None or wire.is_stale(trust=trust) else wire

    async def _use(self, wire: AsyncWire, operate: Operate[AsyncWire, T], wait: float) -> T:
        now = _now()
        if wait and now < wire.born + wait:
            raise self.too_early(wire, wait, now)
        try:
            return await operate(wire)
        except UNUSABLE as error:
            _end_if_out_of_step(wire, error)
            raise
        except Demoted:
            self._forget(wire)
            raise

    def _forget(self, wire: AsyncWire) -> None:
        """What it was told of the server no longer holds: whoever asks next connects anew."""
        if self._shared is wire:
            self._shared = None
        wire.retire()

    async def _fresh(self, until: float) -> AsyncWire:
        """The connection that others have made meanwhile, or are making, or else a new one."""
        while (wire := self._trusted(trust=True)) is None:
            if self._dialing is None:
                return await self._dial_for_all(until)
            await self._wait_for_dial(self._dialing, until)
        return wire

    async def _dial_for_all(self, until: float) -> AsyncWire:
        dialing = self._dialing = asyncio.get_running_loop().create_future()
        failure = None
        try:
            wire = await self._connect(until)
        except StoreUnavailable as error:
            # One who had no more time says nothing of those who have.
            failure = error if _now() < until else None
            raise
        else:
            self._replace(wire)
            return wire
        finally:
            self._dialing = None
            dialing.set_result(failure)

    def _replace(self, wire: AsyncWire) -> None:
        before, self._shared = self._shared, wire
        if before is not None:
            before.retire()

    async def _wait_for_dial(
        self, dialing: asyncio.Future[StoreUnavailable | None], until: float
    ) -> None:
        try:
            async with asyncio.timeout(max(0.0, until - _now())):
                failure = await asyncio.shield(dialing)
        except TimeoutError as error:
            where = self.site.where
            raise StoreUnavailable(f"{where} cannot be reached: no connection in time") from error
        if failure is not None:
            raise StoreUnavailable(
                str(failure), permanent=failure.permanent, retry_after=failure.retry_after
            ) from failure


def _end_if_out_of_step(wire: AsyncWire, error: Exception) -> None:
    """An answer that is another's: those that follow would be too."""
    if not isinstance(error, Broken):
        wire.close()
