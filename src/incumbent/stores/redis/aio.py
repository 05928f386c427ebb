"""The asynchronous side: `sync` for coroutines, with connections of each event loop's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import hiredis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    Ask,
    GiveOutcome,
    Guard,
    Key,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.redis.aiodial import dial
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.dialect import Dialect, is_repeatable
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import (
    Broken,
    Mismatch,
    exchange_error,
    restart_error,
    still_in_doubt,
)
from incumbent.stores.redis.resp import Program
from incumbent.stores.redis.server import greeting

__all__ = ["AsyncRedisStore", "Loops"]

T = TypeVar("T")

_IDLE_MAX: Final = 64
_LEAVE_WITHIN: Final = 0.05
_UNUSABLE: Final = (Broken, Mismatch, hiredis.ProtocolError)

_now = clock.now


class AsyncRedisStore:
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self._site = site
        self._dialect = dialect
        self._idle: list[AsyncWire] = []
        self._listeners: list[AsyncWire] = []
        self._all: WeakSet[AsyncWire] = WeakSet()
        self._watch: AsyncGenerator[None, None] | None = None

    # -- operations ---------------------------------------------------------------------------

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        dialect, wait = self._dialect, self._site.restart_wait
        request = dialect.take(key, claim, ask)

        async def operate(wire: AsyncWire) -> TakeOutcome:
            answer = await wire.ask(request, until)
            return dialect.taken(answer, key, claim, ask, wire.epoch)

        # A take in doubt is the caller's to repeat, who remembers that there were two.
        wait = ask.ttl if wait is None else wait
        return await self._do(operate, until, wait, repeatable=False)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return await self._run(lambda epoch: self._dialect.renew(renewals, epoch), until)

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
        dialect = self._dialect
        request = dialect.give(key, claim, token, closed_for, slot)

        async def operate(wire: AsyncWire) -> GiveOutcome:
            return dialect.given(await wire.ask(request, until), key, claim, None, wire.epoch)

        return await self._do(operate, until)

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return await self._run(
            lambda _: self._dialect.put(key, field, value, guard),
            until,
            repeatable=is_repeatable(guard),
        )

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return await self._run(lambda _: self._dialect.read(key), until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return await self._run(lambda _: self._dialect.scan(namespace, prefix), until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreUnavailable if nobody can listen."""
        listeners = self._listeners
        wire = await self._listen(key, until)
        try:
            if await self._run(lambda _: self._dialect.unchanged(key, seen), until):
                await wire.next(until)
            wire.send(self._dialect.unsubscribe(key), _now() + _LEAVE_WITHIN)
        except Broken:
            # The time is over, or nothing will be heard any more: both are hints enough.
            wire.close()
        except BaseException:
            wire.close()
            raise
        else:
            _put_back(wire, listeners, self._listeners)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        watch, self._watch = self._watch, None
        self._drop()
        if watch is not None:
            await watch.aclose()

    # -- exchanges ----------------------------------------------------------------------------

    async def _run(
        self, start: Callable[[str], Program[T]], until: float, *, repeatable: bool = True
    ) -> T:
        async def operate(wire: AsyncWire) -> T:
            return await wire.run(start(wire.epoch), until)

        return await self._do(operate, until, repeatable=repeatable)

    async def _do(
        self,
        operate: Callable[[AsyncWire], Awaitable[T]],
        until: float,
        wait: float = 0.0,
        *,
        repeatable: bool = True,
    ) -> T:
        """`operate` on one connection, and once more on a fresh one if that was dead already."""
        wire = self._trusted()
        if wire is None:
            return await self._afresh(operate, until, wait)
        try:
            return await self._use(wire, operate, wait)
        except _UNUSABLE as error:
            return await self._again(error, operate, until, wait, repeatable=repeatable)

    def _trusted(self) -> AsyncWire | None:
        """A connection at hand. The event loop notices itself when a server closes one."""
        while self._idle:
            wire = self._idle.pop()
            if not wire.closed:
                return wire
        return None

    async def _use(
        self, wire: AsyncWire, operate: Callable[[AsyncWire], Awaitable[T]], wait: float
    ) -> T:
        idle, now = self._idle, _now()
        early = wire.born + wait - now
        if early > 0:
            _put_back(wire, idle, self._idle)
            raise restart_error(self._site.where, now - wire.born, early)
        try:
            outcome = await operate(wire)
        except BaseException:
            wire.close()
            raise
        _put_back(wire, idle, self._idle)
        return outcome

    async def _afresh(
        self, operate: Callable[[AsyncWire], Awaitable[T]], until: float, wait: float
    ) -> T:
        wire = await self._connect(until)
        try:
            return await self._use(wire, operate, wait)
        except _UNUSABLE as error:
            raise exchange_error(error, self._site.where) from error.__cause__ or error

    async def _again(
        self,
        error: Exception,
        operate: Callable[[AsyncWire], Awaitable[T]],
        until: float,
        wait: float,
        *,
        repeatable: bool,
    ) -> T:
        doubt = not isinstance(error, Broken) or error.sent
        if not isinstance(error, Broken) or error.late or (doubt and not repeatable):
            raise exchange_error(error, self._site.where) from error.__cause__ or error
        # What killed one (a restart, a cut network) killed its neighbours.
        _close_all(self._idle)
        try:
            return await self._afresh(operate, until, wait)
        except StoreUnavailable as second:
            if doubt:
                raise still_in_doubt(second, self._site.where) from second
            raise

    async def _connect(self, until: float) -> AsyncWire:
        site = self._site
        if self._watch is None:
            self._watch = self._until_loop_ends()
            await anext(self._watch)
        wire = await dial(site, until)
        self._all.add(wire)
        program = greeting(site.where, allow_eviction=site.allow_eviction, proved=site.proved)
        try:
            facts = await wire.run(program, until)
        except _UNUSABLE as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.epoch, wire.born = facts.epoch, facts.born(_now())
        site.proved = True
        return wire

    async def _listen(self, key: Key, until: float) -> AsyncWire:
        """A connection that listens for `key`: one that listened before, or a fresh one."""
        if self._listeners:
            try:
                return await self._subscribed(self._listeners.pop(), key, until)
            except _UNUSABLE:
                pass
        try:
            return await self._subscribed(await self._connect(until), key, until)
        except _UNUSABLE as error:
            raise StoreUnavailable(f"{self._site.where} cannot be reached: {error}") from error

    async def _subscribed(self, wire: AsyncWire, key: Key, until: float) -> AsyncWire:
        try:
            wire.send(self._dialect.subscribe(key), until)
            while not self._dialect.listens(await wire.next(until), key):
                pass
        except BaseException:
            wire.close()
            raise
        return wire

    async def _until_loop_ends(self) -> AsyncGenerator[None, None]:
        """Ends with the loop: asyncio.run closes asynchronous generators before it closes."""
        try:
            yield
        finally:
            self._drop()

    def _drop(self) -> None:
        idle, self._idle = self._idle, []
        listeners, self._listeners = self._listeners, []
        _close_all(idle)
        _close_all(listeners)

    def detach(self) -> None:
        """See AsyncWire.detach."""
        for wire in list(self._all):
            wire.detach()


def _put_back(wire: AsyncWire, whence: list[AsyncWire], where: list[AsyncWire]) -> None:
    # Another list by now: the store was closed.
    if whence is where and len(where) < _IDLE_MAX and not wire.closed:
        where.append(wire)
    else:
        wire.close()


def _close_all(wires: list[AsyncWire]) -> None:
    while wires:
        wires.pop().close()


class Loops:
    """The stores of all event loops of this process."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self._site = site
        self._dialect = dialect
        self._stores: _Stores = WeakKeyDictionary()
        _all.add(self)

    def store(self) -> AsyncRedisStore:
        """The store of the running loop."""
        loop = asyncio.get_running_loop()
        store = self._stores.get(loop)
        return self._make(loop) if store is None else store

    def _make(self, loop: asyncio.AbstractEventLoop) -> AsyncRedisStore:
        # A store's connections know their loop, so a loop that was closed does not go by itself.
        # By a copy of the references: other threads have loops as well.
        for reference in list(self._stores.keyrefs()):
            other = reference()
            if other is not None and other.is_closed():
                self._stores.pop(other, None)
        store = self._stores[loop] = AsyncRedisStore(self._site, self._dialect)
        return store

    def detach(self) -> None:
        """In a fork's child: these loops are the parent's."""
        _graveyard.append(self._stores)
        for store in self._stores.values():
            store.detach()
        self._stores = WeakKeyDictionary()


_Stores = WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncRedisStore]
_all: WeakSet[Loops] = WeakSet()
_graveyard: list[_Stores] = []
"""What must never be collected: closing the parent's transports would disturb the parent."""


def _after_fork() -> None:
    for loops in list(_all):
        loops.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
