"""The blocking side: `exchange` in one step, and a shorter way for what has to be fast."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from weakref import WeakSet

from incumbent import clock
from incumbent.model import Ask, GiveOutcome, Key, Queued, TakeOutcome
from incumbent.protocol.port import run
from incumbent.stores.blocking import BlockingStore
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.exchange import UNUSABLE, Exchange, Operate, close_all, one_give
from incumbent.stores.redis.incarnation import LOOK_EVERY
from incumbent.stores.redis.waiting.ear import LockBell, WireEar
from incumbent.stores.redis.waiting.hub import Bell, Ear
from incumbent.stores.redis.wire import STALE_AFTER, Wire

__all__ = ["RedisStore"]

_now = clock.now


class _Blocking(Exchange[Wire]):
    async def dial(self, until: float) -> Wire:
        """See Exchange.dial."""
        return dial(self.site, until)

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
        """See Store.take. What the hub has heard counts as in `Exchange.take`, written out."""
        hub = self._exchange.hub
        if hub.waits_on and (said := hub.answer(claim, ask)) is not None:
            return said
        sent = _now()
        outcome = self._take(key, claim, ask, sent, until)
        if hub.asked or type(outcome) is Queued:
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
        exchange, dialect, now = self._exchange, self._dialect, _now()
        request = dialect.give(key, claim, token, closed_for, slot, reserve_for)
        idle = exchange.idle
        try:
            wire = idle.pop()
        except IndexError:
            return run(exchange.do(one_give(dialect, request, key, until), until))
        if now - wire.used > STALE_AFTER and wire.is_stale(trust=False):
            idle.append(wire)
            return run(exchange.do(one_give(dialect, request, key, until), until))
        wire.used = now
        try:
            outcome = dialect.given(wire.ask(request, until), key)
        except UNUSABLE as error:
            wire.close()
            again: Operate[Wire, GiveOutcome] = one_give(dialect, request, key, until)
            return run(exchange.again(error, again, until, 0.0, repeatable=True))
        except BaseException:
            wire.close()
            raise
        if idle is exchange.idle:
            idle.append(wire)
        else:
            wire.close()
        return outcome

    def _take(self, key: Key, claim: str, ask: Ask, now: float, until: float) -> TakeOutcome:
        """By a connection that was just looked at, without a coroutine; else as `Exchange` does."""
        exchange, dialect = self._exchange, self._dialect
        idle = exchange.idle
        try:
            wire = idle.pop()
        except IndexError:
            return run(exchange.ask_server(key, claim, ask, until))
        if (
            now - wire.looked > LOOK_EVERY
            or ask.ttl > wire.serves
            or (now - wire.used > STALE_AFTER and wire.is_stale(trust=False))
        ):
            idle.append(wire)
            return run(exchange.ask_server(key, claim, ask, until))
        wire.used = now
        try:
            answer = wire.ask(dialect.take(key, claim, ask, wire.sign, until + wire.ahead), until)
            outcome = dialect.taken(answer, key, claim, ask, wire.epoch)
        except UNUSABLE as error:
            wire.close()
            taking = exchange.taking(key, claim, ask, until)
            # A take in doubt is the caller's to repeat, who remembers that there were two.
            return run(exchange.again(error, taking, until, ask.ttl, repeatable=False))
        except BaseException:
            wire.close()
            raise
        if type(answer) is list and len(answer) == 1 and not self._is_known(wire, until):
            return run(exchange.take_looking(key, outcome, ask, until))
        if idle is exchange.idle:
            idle.append(wire)
        else:
            wire.close()
        return outcome

    def _is_known(self, wire: Wire, until: float) -> bool:
        """Whether the data are still those that the connection knows; it is closed if not."""
        try:
            if wire.is_marked(wire.ask(wire.reread, until)):
                return True
        except UNUSABLE:
            pass
        except BaseException:
            wire.close()
            raise
        wire.close()
        return False

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
