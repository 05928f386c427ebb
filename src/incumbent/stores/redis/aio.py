"""The asynchronous side: `exchange` awaited, with one connection for each event loop.

All tasks of a loop share it (see aiowire). While one task makes it, the others wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_handlers
from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, Queued, TakeOutcome
from incumbent.net.limiter import DIAL_WITHIN, IN_FLIGHT, limits
from incumbent.net.pool import Broken
from incumbent.net.readers import SUSPENDING, SharedWakeup
from incumbent.stores.loops import LoopEnd
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.aiowire import AsyncRedisWire, dial
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import DIALECT, Server, settle_take
from incumbent.stores.redis.errors import Demoted, Outdated
from incumbent.stores.redis.exchange import UNUSABLE, AnyWire, RedisExchange, carry_out
from incumbent.stores.redis.incarnation import LOOK_EVERY
from incumbent.stores.redis.layers import Call, Discovery, Enough, Layer, Runtime
from incumbent.stores.redis.resp import as_eval, is_forgotten
from incumbent.stores.redis.server import RedisSite

T = TypeVar("T")

_now = clock.now


class AsyncRedisStore(RedisExchange[AsyncRedisWire]):
    """An AsyncStore (see stores.base). It belongs to the loop in which it was made."""

    def __init__(self, site: RedisSite, commands: Commands) -> None:
        super().__init__(site, commands, SUSPENDING)
        self._end = LoopEnd(self._close_all)
        self._shared: AsyncRedisWire | None = None
        self._dialing: asyncio.Task[StoreUnavailable | None] | None = None
        self.limits = limits(site.where, IN_FLIGHT, SharedWakeup, self.trusted, self._join)

    async def dial(self, until: float) -> AsyncRedisWire:
        await self._end.watch()
        wire = await dial(self.site, until)
        # Again: the store may have been closed meanwhile.
        await self._end.watch()
        return wire

    async def aclose(self) -> None:
        self.let_go()
        await self._end.aclose()

    def let_go(self) -> None:
        super().let_go()
        wire, self._shared = self._shared, None
        if wire is not None:
            wire.retire()

    def _close_all(self) -> None:
        self._shared = None
        for wire in list(self.all):
            wire.close()

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See stores.base.AsyncStore. No plan is needed if the server was checked just now."""
        wire, commands, now = self._shared, self.commands, _now()
        if (
            wire is None
            or wire.is_stale(trust=True)
            or now - wire.asked > LOOK_EVERY
            or ask.ttl > wire.serves
            or self.hub.waits_on
        ):
            return await super().take(key, claim, ask, until)
        try:
            request = commands.take(key, claim, ask, wire.sign, until + wire.ahead)
            outcome: TakeOutcome
            reply = await self._ask(wire, request, until)
            if type(reply) is bytes and now - wire.looked <= LOOK_EVERY:
                outcome = commands.taken(reply, key, claim, ask, wire.epoch)
            else:
                server = Server(self.site, commands, wire)
                program = settle_take(server, key, claim, ask, until, now, reply)
                outcome = await carry_out(wire, program, until, begun=True)
        except UNUSABLE as error:
            self.settle(wire, self.idle, error)
            outcome = await self.again(error, DIALECT.take(key, claim, ask), until)
        except StoreError as error:
            self.settle(wire, self.idle, error)
            raise
        if self.hub.asked or type(outcome) is Queued:
            self.hub.learn(claim, now, outcome)
        return outcome

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        wire, commands = self._shared, self.commands
        if wire is None or wire.is_stale(trust=True):
            return await super().give(key, claim, token, until, parting=parting)
        try:
            request = commands.give(key, claim, token, parting)
            return commands.given(await self._ask(wire, request, until), key)
        except UNUSABLE as error:
            self.settle(wire, self.idle, error)
            return await self.again(error, DIALECT.give(key, claim, token, parting), until)
        except StoreError as error:
            self.settle(wire, self.idle, error)
            raise

    @staticmethod
    async def _ask(wire: AsyncRedisWire, request: bytes, until: float) -> Any:
        reply = await wire.ask(request, until)
        return await wire.ask(as_eval(request), until) if is_forgotten(reply) else reply

    # -- the connection -----------------------------------------------------------------------

    def trusted(self, *, trust: bool = True) -> AsyncRedisWire | None:
        wire = self._shared
        return None if wire is None or wire.is_stale(trust=trust) else wire

    def put_back(self, wire: AsyncRedisWire, idle: list[AsyncRedisWire]) -> None:
        """Do nothing: the connection stays shared with other tasks."""

    def settle(
        self, wire: AsyncRedisWire, idle: list[AsyncRedisWire], error: BaseException
    ) -> None:
        if isinstance(error, Outdated | Demoted) or wire.problem is not None:
            self._forget(wire)
        elif isinstance(error, UNUSABLE) and not isinstance(error, Broken):
            # The answer was another request's: those that follow would be too.
            wire.close()

    def leave_behind(self, epoch: str) -> None:
        wire = self._shared
        if wire is not None and wire.epoch != epoch:
            self._forget(wire)

    def _forget(self, wire: AsyncRedisWire) -> None:
        """The connection's facts about the server are outdated: the next request connects anew."""
        if self._shared is wire:
            self._shared = None
        wire.retire()

    async def fresh(self, plan: Plan[Server, T], until: float) -> AsyncRedisWire:
        return await self._join(until, until)

    async def _join(self, until: float, lasts: float = -inf) -> AsyncRedisWire:
        """The connection of all tasks. Making it goes on if this caller has no more time.

        It lasts until `lasts`, or for as long as a dial may take, whichever is longer.
        """
        while (wire := self.trusted()) is None:
            dialing = self._dialing
            if dialing is None:
                dialing = self._dialing = asyncio.create_task(self._dial_for_all(lasts))
            await asyncio.wait((dialing,), timeout=max(0.0, until - _now()))
            where = self.site.where
            if not dialing.done():
                raise StoreUnavailable(f"{where} cannot be reached: no connection in time")
            failure = dialing.result()
            if failure is not None:
                raise StoreUnavailable(
                    str(failure), permanent=failure.permanent, retry_after=failure.retry_after
                ) from failure
        return wire

    async def _dial_for_all(self, lasts: float) -> StoreUnavailable | None:
        """Make the connection; returns why not. After `let_go` neither: another server is meant."""
        idle = self.idle
        try:
            # The loop may have much to do before: the dial's time begins here.
            wire = await self._connect(max(lasts, _now() + DIAL_WITHIN))
        except StoreUnavailable as error:
            return error
        finally:
            self._dialing = None
        if idle is self.idle:
            self._replace(wire)
        else:
            wire.close()
        return None

    def _replace(self, wire: AsyncRedisWire) -> None:
        before, self._shared = self._shared, wire
        if before is not None:
            before.retire()


# -- for layers ------------------------------------------------------------------------------------


class AsyncRuntime(Runtime):
    """The Runtime of asyncio callers. It belongs to the loop in which it was made."""

    def __init__(self) -> None:
        self.stores: list[AsyncRedisStore] = []
        self._turn = asyncio.Lock()

    def exchange(self, site: RedisSite, commands: Commands) -> RedisExchange[Any]:
        store = AsyncRedisStore(site, commands)
        self.stores.append(store)
        return store

    async def dial(self, site: RedisSite, until: float) -> AnyWire:
        return await dial(site, until)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def update(self, discovery: Discovery, until: float) -> None:
        """See Runtime.update. One task asks for all tasks."""
        if not discovery.stale:
            return
        try:
            async with asyncio.timeout(max(0.0, until - clock.now())):
                await self._turn.acquire()
        except TimeoutError as error:
            raise_handlers(error)
            raise StoreUnavailable("no time was left to ask where the servers are") from error
        try:
            await super().update(discovery, until)
        finally:
            self._turn.release()

    async def gather(
        self, calls: Sequence[Call[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        tasks = [asyncio.create_task(_outcome(call, until)) for call in calls]
        # If all results are wanted, each call keeps to the deadline itself.
        patience = max(0.0, until - clock.now()) if enough else None
        found: list[T] = []
        try:
            for ended in asyncio.as_completed(tasks, timeout=patience):
                outcome = await ended
                if not isinstance(outcome, StoreError):
                    found.append(outcome)
                    if enough and enough(found):
                        break
        except TimeoutError as error:
            raise_handlers(error)
        finally:
            for task in tasks:
                task.cancel()
        late = OutcomeUnknown("no answer in time")
        return [task.result() if task.done() else late for task in tasks]


class AsyncFace(Layer):
    """The operations of a layer as an AsyncStore (see stores.base) of one event loop."""

    def __init__(self, where: str, runtime: AsyncRuntime, layer: PlannedTogether[Server]) -> None:
        super().__init__(layer)
        self._runtime = runtime
        self.limits = limits(where, IN_FLIGHT, SharedWakeup)

    async def aclose(self) -> None:
        self.let_go()
        for store in self._runtime.stores:
            await store.aclose()

    def detach(self) -> None:
        """In a fork's child: release the descriptors without touching the parent's loop."""
        for store in self._runtime.stores:
            store.detach()


async def _outcome(call: Call[T], until: float) -> T | StoreError:
    try:
        return await call(until)
    except StoreError as error:
        return error
