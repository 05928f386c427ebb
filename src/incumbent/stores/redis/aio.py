"""The asynchronous side: `exchange` awaited, with one connection of each event loop's own.

All tasks of a loop share it (see aiowire). It is made once for all who want it at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TypeVar

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, GiveOutcome, Key, TakeOutcome
from incumbent.stores.loops import LoopEnd
from incumbent.stores.redis.aiodial import dial
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import Broken, Demoted, Outdated
from incumbent.stores.redis.exchange import (
    UNUSABLE,
    Exchange,
    Operate,
    is_forgotten,
    one_give,
)
from incumbent.stores.redis.incarnation import LOOK_EVERY
from incumbent.stores.redis.resp import as_eval
from incumbent.stores.redis.taking import too_early
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
        dialect, wire = self.dialect, self._shared
        request = dialect.give(key, claim, token, closed_for, slot, reserve_for)
        if wire is None or wire.is_stale(trust=True):
            return await self.do(one_give(dialect, request, key, until), until)
        try:
            answer = await wire.ask(request, until)
            if is_forgotten(answer):
                answer = await wire.ask(as_eval(request), until)
            return dialect.given(answer, key)
        except UNUSABLE as error:
            self._end_if_unusable(wire, error)
            again: Operate[AsyncWire, GiveOutcome] = one_give(dialect, request, key, until)
            return await self.again(error, again, until, 0.0, repeatable=True)
        except Demoted:
            self._forget(wire)
            raise

    async def ask_server(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """By the connection that is there, if it was just looked at; else as `Exchange` does."""
        dialect, wire, now = self.dialect, self._shared, _now()
        if (
            wire is None
            or wire.is_stale(trust=True)
            or now - wire.asked > LOOK_EVERY
            or ask.ttl > wire.serves
        ):
            return await super().ask_server(key, claim, ask, until)
        try:
            request = dialect.take(key, claim, ask, wire.sign, until + wire.ahead)
            answer = await wire.ask(request, until)
            if is_forgotten(answer):
                answer = await wire.ask(as_eval(request), until)
            outcome = dialect.taken(answer, key, claim, ask, wire.epoch)
        except UNUSABLE as error:
            self._end_if_unusable(wire, error)
            taking = self.taking(key, claim, ask, until)
            # A take in doubt is the caller's to repeat, who remembers that there were two.
            return await self.again(error, taking, until, ask.ttl, repeatable=False)
        except Demoted:
            self._forget(wire)
            raise
        # The answer to the look came before this one.
        if now - wire.looked > LOOK_EVERY:
            return await self.take_looking(key, outcome, ask, until)
        if type(answer) is list and len(answer) == 1 and not await self._is_known(wire, until):
            return await self.take_looking(key, outcome, ask, until)
        return outcome

    async def _is_known(self, wire: AsyncWire, until: float) -> bool:
        """Whether the data are still those that the connection knows."""
        try:
            return wire.is_marked(await wire.ask(wire.reread, until))
        except UNUSABLE:
            return False

    # -- the connection -----------------------------------------------------------------------

    def _trusted(self, *, trust: bool) -> AsyncWire | None:
        wire = self._shared
        return None if wire is None or wire.is_stale(trust=trust) else wire

    async def _use(self, wire: AsyncWire, operate: Operate[AsyncWire, T], ttl: float) -> T:
        if ttl and (early := too_early(self.site, wire, ttl, _now())) is not None:
            if wire.problem is not None:
                self._forget(wire)
            raise early
        try:
            return await operate(wire)
        except UNUSABLE as error:
            self._end_if_unusable(wire, error)
            raise
        except Demoted:
            self._forget(wire)
            raise

    def leave_behind(self, epoch: str) -> None:
        """See Exchange.leave_behind."""
        wire = self._shared
        if wire is not None and wire.epoch != epoch:
            self._forget(wire)

    def _end_if_unusable(self, wire: AsyncWire, error: Exception) -> None:
        if isinstance(error, Outdated):
            self._forget(wire)
        elif not isinstance(error, Broken):
            # An answer that is another's: those that follow would be too.
            wire.close()

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
