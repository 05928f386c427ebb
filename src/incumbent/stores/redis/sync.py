"""The blocking side: `exchange` in one step, and a shorter way for what has to be fast."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import ceil
from typing import Any, TypeVar, Unpack

from incumbent import clock
from incumbent.model import Ask, GiveOutcome, Key, TakeOutcome
from incumbent.net.dial import close_with
from incumbent.net.readers import SLICE, LockWakeup, Wakeup
from incumbent.net.wire import STALE_AFTER
from incumbent.protocol.port import run
from incumbent.stores.base import Parting
from incumbent.stores.loops import detach_in_child
from incumbent.stores.plan import BlockingStore, Plan
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.dialect import DIALECT, Server
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.exchange import UNUSABLE, Exchange
from incumbent.stores.redis.subscription import Subscriber
from incumbent.stores.redis.wire import Wire

__all__ = ["BlockingExchange", "RedisStore"]

T = TypeVar("T")

_now = clock.now


class BlockingExchange(Exchange[Wire]):
    """The connections of all threads to one server."""

    def __init__(self, site: Site, commands: Commands) -> None:
        super().__init__(site, commands)
        detach_in_child(self)

    async def dial(self, until: float) -> Wire:
        return dial(self.site, until)

    def new_bell(self) -> Wakeup:
        return LockWakeup()

    def me(self) -> Hashable:
        return threading.get_ident()

    def make_subscriber(self, wire: Wire) -> Subscriber:
        return BlockingSubscriber(wire)

    def detach(self) -> None:
        self.commands.move()
        self.hub.abandon()
        super().detach()


class RedisStore(BlockingStore[BlockingExchange]):
    """See stores.base.Store."""

    def __init__(self, site: Site, commands: Commands) -> None:
        super().__init__(BlockingExchange(site, commands))

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return self.run(DIALECT.take(key, claim, ask), until)

    def give(
        self, key: Key, claim: str, token: int | None, until: float, **parting: Unpack[Parting]
    ) -> GiveOutcome:
        return self.run(DIALECT.give(key, claim, token, **parting), until)

    def run(self, plan: Plan[Server, T], until: float) -> T:
        """Carry out a plan. A connection that was just used needs no coroutine."""
        exchange, now = self.operations, _now()
        idle = exchange.idle
        try:
            wire = idle.pop()
        except IndexError:
            return run(exchange.run(plan, until))
        if (
            plan.ttl > wire.serves
            or exchange.hub.waits_on
            or (now - wire.used > STALE_AFTER and wire.is_stale(trust=False))
        ):
            idle.append(wire)
            return run(exchange.run(plan, until))
        wire.used = now
        try:
            program = plan.start(Server(exchange.site, exchange.commands, wire), until)
            outcome = wire.carry_out(program, until)
        except UNUSABLE as error:
            wire.close()
            outcome = run(exchange.again(error, plan, until))
        except BaseException as error:
            exchange.settle(wire, idle, error)
            raise
        else:
            # As `put_back`, written out.
            if idle is exchange.idle:
                idle.append(wire)
            else:
                wire.close()
        return exchange.learnt(plan, now, outcome)


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
