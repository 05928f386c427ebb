"""The blocking side: `exchange` in one step, and a shorter way for what has to be fast."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import TypeVar
from weakref import WeakSet

from incumbent import clock
from incumbent._core.onestep import run
from incumbent.model import Ask, GiveOutcome, Key, Queued, TakeOutcome
from incumbent.stores.blocking import BlockingStore
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.exchange import UNUSABLE, Exchange, Operate, Read, close_all, one
from incumbent.stores.redis.waiting.ear import LockBell, WireEar
from incumbent.stores.redis.waiting.hub import Bell, Ear
from incumbent.stores.redis.wire import STALE_AFTER, Wire

__all__ = ["RedisStore"]

T = TypeVar("T")

_now = clock.now


class _Blocking(Exchange[Wire]):
    async def dial(self, until: float) -> Wire:
        """See Exchange.dial."""
        return Wire(dial(self.site, until))

    def new_bell(self) -> Bell:
        """See hub.Host."""
        return LockBell()

    def me(self) -> Hashable:
        """See hub.Host."""
        return threading.get_ident()

    def make_ear(self, wire: Wire) -> Ear:
        """See Exchange.make_ear."""
        return WireEar(wire)


class RedisStore(BlockingStore[_Blocking]):
    """See stores.base.Store. Take and give need no coroutine where a connection was just used."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self._site = site
        self._dialect = dialect
        self._exchange = _Blocking(site, dialect)
        super().__init__(self._exchange)
        _stores.add(self)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        dialect, wait, hub = self._dialect, self._site.restart_wait, self._exchange.hub
        if wait is None:
            wait = ask.ttl
        if hub.handed and (said := hub.answer(claim, ask, wait)) is not None:
            return said
        request = dialect.take(key, claim, ask)
        sent = _now()
        outcome = self._ask(request, sent, until, wait, dialect.taken, key, claim, ask)
        if hub.sent or type(outcome) is Queued:
            hub.learn(claim, sent, outcome)
        return outcome

    def give(
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
        request = dialect.give(key, claim, token, closed_for, slot, reserve_for)
        return self._ask(request, _now(), until, 0.0, dialect.given, key, claim, None)

    def _ask(
        self,
        request: bytes,
        now: float,
        until: float,
        wait: float,
        read: Read[T],
        key: Key,
        claim: str,
        ask: Ask | None,
    ) -> T:
        """One request by a connection just used, without a coroutine; all else is `Exchange`'s."""
        exchange = self._exchange
        idle = exchange.idle
        try:
            wire = idle.pop()
        except IndexError:
            again: Operate[Wire, T] = one(request, until, read, key, claim, ask)
            return run(exchange.do(again, until, wait, repeatable=ask is None))
        if now - wire.used > STALE_AFTER or now < wire.born + wait:
            idle.append(wire)
            again = one(request, until, read, key, claim, ask)
            return run(exchange.do(again, until, wait, repeatable=ask is None))
        wire.used = now
        try:
            outcome = read(wire.ask(request, until), key, claim, ask, wire.epoch)
        except UNUSABLE as error:
            wire.close()
            again = one(request, until, read, key, claim, ask)
            # A take in doubt is the caller's to repeat, who remembers that there were two.
            return run(exchange.again(error, again, until, wait, repeatable=ask is None))
        except BaseException:
            wire.close()
            raise
        if idle is exchange.idle:
            idle.append(wire)
        else:
            wire.close()
        return outcome

    def drop(self) -> None:
        """In a fork's child: give the descriptors back. What is in use was other threads'."""
        exchange = self._exchange
        exchange.idle = []
        self._dialect.move()
        exchange.hub.abandon()
        close_all(list(exchange.all))


_stores: WeakSet[RedisStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
