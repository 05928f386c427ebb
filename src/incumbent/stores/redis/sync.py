"""The blocking side: `exchange` in one step, and a shorter way for what has to be fast."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import ceil
from typing import Any
from weakref import WeakSet

from incumbent import clock
from incumbent.model import Ask, GiveOutcome, Key, Queued, TakeOutcome
from incumbent.protocol.port import run
from incumbent.stores.blocking import BlockingStore
from incumbent.stores.collected import close_with
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.dialect import give_plan
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.exchange import UNUSABLE, Exchange
from incumbent.stores.redis.incarnation import LOOK_EVERY
from incumbent.stores.redis.readers import SLICE, LockWakeup, Wakeup
from incumbent.stores.redis.subscription import Subscriber
from incumbent.stores.redis.wire import STALE_AFTER, Wire

__all__ = ["RedisStore"]

_now = clock.now


class _Blocking(Exchange[Wire]):
    async def dial(self, until: float) -> Wire:
        return dial(self.site, until)

    def new_bell(self) -> Wakeup:
        return LockWakeup()

    def me(self) -> Hashable:
        return threading.get_ident()

    def make_subscriber(self, wire: Wire) -> Subscriber:
        return BlockingSubscriber(wire)


class RedisStore(BlockingStore[_Blocking]):
    """See stores.base.Store. Take and give need no coroutine where a connection was just used."""

    def __init__(self, site: Site, commands: Commands) -> None:
        self._commands = commands
        self._exchange = _Blocking(site, commands)
        super().__init__(self._exchange)
        _stores.add(self)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take. What the hub has heard counts as in `Exchange.take`, written out."""
        hub = self._exchange.hub
        if hub.waits_on and (refusal := hub.answer(claim, ask)) is not None:
            return refusal
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
        exchange, commands, now = self._exchange, self._commands, _now()
        request = commands.give(key, claim, token, closed_for, slot, reserve_for)
        idle = exchange.idle
        try:
            wire = idle.pop()
        except IndexError:
            return run(exchange.carry(give_plan(lambda _: request, key), until))
        if now - wire.used > STALE_AFTER and wire.is_stale(trust=False):
            idle.append(wire)
            return run(exchange.carry(give_plan(lambda _: request, key), until))
        wire.used = now
        try:
            outcome = commands.given(wire.ask(request, until), key)
        except UNUSABLE as error:
            wire.close()
            return run(exchange.again(error, give_plan(lambda _: request, key), until))
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
        exchange, commands = self._exchange, self._commands
        idle = exchange.idle
        try:
            wire = idle.pop()
        except IndexError:
            return run(exchange.carry(exchange.dialect.take(key, claim, ask), until))
        if (
            now - wire.looked > LOOK_EVERY
            or ask.ttl > wire.serves
            or (now - wire.used > STALE_AFTER and wire.is_stale(trust=False))
        ):
            idle.append(wire)
            return run(exchange.carry(exchange.dialect.take(key, claim, ask), until))
        wire.used = now
        try:
            answer = wire.ask(commands.take(key, claim, ask, wire.sign, until + wire.ahead), until)
            outcome = commands.taken(answer, key, claim, ask, wire.epoch)
        except UNUSABLE as error:
            wire.close()
            return run(exchange.again(error, exchange.dialect.take(key, claim, ask), until))
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
        self._commands.move()
        self._exchange.hub.abandon()
        self._exchange.detach()


_stores: WeakSet[RedisStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class BlockingSubscriber:
    """See subscription.Subscriber. A pair of sockets wakes it: not every system polls pipes."""

    interruptible = False

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.epoch = wire.epoch
        self._mine, self._others = socket.socketpair()
        for end in (self._mine, self._others):
            end.setblocking(False)
        close_with(self, partial(_close_all, (self._mine, self._others)))
        self._ready = _watch(wire.fileno(), self._mine.fileno())

    def send(self, request: bytes, until: float) -> None:
        self._wire.used = _now()
        self._wire.send(request, until)

    async def next(self, until: float) -> Any:
        while (message := self._wire.buffered()) is False:
            left = until - _now()
            ready = self._ready(max(0.0, min(left, SLICE)))
            if self._wire.fileno() in ready:
                self._wire.fill()
            elif ready:
                self._mine.recv(1024)
                return None
            elif left <= 0:
                return None
        return message

    def wake(self) -> None:
        try:
            self._others.send(b"!")
        except OSError:
            return  # it has been woken often enough, or is closed

    def close(self) -> None:
        self._wire.close()
        _close_all((self._mine, self._others))

    def __del__(self) -> None:
        _close_all((self._mine, self._others))


def _close_all(ends: tuple[socket.socket, ...]) -> None:
    for end in ends:
        end.close()


def _watch(*fds: int) -> Callable[[float], Sequence[int]]:
    """What waits for so many seconds, and returns which of them can be read."""
    if not hasattr(select, "poll"):
        return lambda seconds: select.select(fds, [], [], seconds)[0]
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    # Up to the next millisecond: down would spin.
    return lambda seconds: [fd for fd, _ in poll.poll(ceil(seconds * 1000))]
