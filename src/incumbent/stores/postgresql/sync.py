"""The blocking side: `exchange` in one step."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any, Final, TypeVar
from weakref import WeakSet

from incumbent import clock
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
from incumbent.net.names import resolve
from incumbent.protocol.port import run
from incumbent.stores.postgresql.dial import Dial
from incumbent.stores.postgresql.dialect import Dialect, Request
from incumbent.stores.postgresql.driver import DriverError, Site
from incumbent.stores.postgresql.errors import Answered
from incumbent.stores.postgresql.exchange import UNUSABLE, Exchange
from incumbent.stores.postgresql.listening import Bell, Listening
from incumbent.stores.postgresql.wire import STALE_AFTER, AnyWire, value_of, wait_for

__all__ = ["BlockingExchange", "PostgresStore", "Wire"]

_SLICE: Final = 1.0
"""Seconds of one wait; then our clock is asked again, which also counts suspend."""

T = TypeVar("T")

_now = clock.now


class Wire(AnyWire):
    """A connection that blocks."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    async def ready(self, until: float, *, writing: bool = False) -> bool:
        """See AnyWire.ready."""
        return wait_for(self._fd, until, writing=writing)

    def at_once(self, request: Request, until: float) -> bytes | None:
        """As `query`, without a coroutine where all goes well: a fifth of an exchange."""
        name = self._known.get(request.sql)
        left = until - self.used
        if name is None or left <= 0 or self._coming is not None:
            return run(self.query(request, until))
        connection = self._connection
        try:
            connection.send_query_prepared(name, self.parameters(request, until))
            if not connection.flush() and self._poll.poll(ceil(1000 * min(left, _SLICE))):
                connection.consume_input()
                if not connection.is_busy():
                    result = connection.get_result()
                    if not connection.is_busy() and connection.get_result() is None:
                        return value_of(result)
                    return run(self.rest(until, [result]))
        except Answered as error:
            return run(self.without_prepared(error, request, until))
        except DriverError as error:
            raise self.lost(error, []) from error
        return run(self.rest(until, []))


class _Dial(Dial):
    async def ready(self, fd: int, until: float, *, writing: bool) -> bool:
        return wait_for(fd, until, writing=writing)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        return resolve(host, port, until)


class _Bell:
    def __init__(self) -> None:
        self._event = threading.Event()
        self.ring = self._event.set
        self.clear = self._event.clear

    async def wait(self, until: float) -> None:
        while not self._event.wait(min(_SLICE, max(0.0, until - _now()))) and _now() < until:
            pass


class _Listening(Listening[Wire]):
    def bell(self) -> Bell:
        return _Bell()


class BlockingExchange(Exchange[Wire]):
    """Its coroutines never suspend."""

    def make_listening(self) -> Listening[Wire]:
        """See Exchange.make_listening."""
        return _Listening(self.connect)

    async def dial(self, until: float) -> Wire:
        """See Exchange.dial."""
        return Wire(await _Dial().connect(self.site, until))

    async def nap(self, seconds: float) -> None:
        """See Exchange.nap."""
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this side is for


class PostgresStore:
    """See stores.base.Store."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self._dialect = dialect
        self.exchange = BlockingExchange(site, dialect)
        _stores.add(self)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        request = self._dialect.take(key, claim, ask)
        # A take in doubt is the caller's to repeat, who remembers that there were two.
        return self._ask(request, until, self._dialect.taken, claim, repeatable=False)

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return run(self.exchange.renew(renewals, until))

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
        request = self._dialect.give(key, claim, token, closed_for, reserve_for, slot)
        return self._ask(request, until, self._dialect.given, claim, repeatable=True)

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return run(self.exchange.put(key, field, value, guard, until))

    def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return run(self.exchange.read(key, until))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return run(self.exchange.scan(namespace, prefix, until))

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreUnavailable if nobody can listen."""
        run(self.exchange.wait_change(key, seen, until))

    def close(self) -> None:
        """See Store.close."""
        self.exchange.let_go()

    def _ask(
        self,
        request: Request,
        until: float,
        read: Callable[..., T],
        claim: str,
        *,
        repeatable: bool,
    ) -> T:
        """One request by a connection just used, without a coroutine; all else is `Exchange`'s."""
        exchange, now = self.exchange, _now()
        reading = partial(read, claim=claim)
        idle = exchange.idle
        try:
            wire = idle.pop()
        except IndexError:
            wire = None
        if wire is None or now - wire.used > STALE_AFTER:
            if wire is not None:
                idle.append(wire)
            return run(exchange.ask(request, reading, until, repeatable=repeatable))
        wire.used = now
        try:
            outcome = reading(wire.at_once(request, until))
        except UNUSABLE as error:
            wire.close()
            return run(exchange.again(error, request, reading, until, repeatable=repeatable))
        except BaseException as error:
            exchange.settle(wire, idle, error)
            raise
        exchange.put_back(wire, idle)
        return outcome

    def drop(self) -> None:
        """In a fork's child: let go of all connections. What is in use was other threads'."""
        exchange = self.exchange
        exchange.idle, exchange.dialing = [], []
        exchange.listening = exchange.make_listening()
        for wire in list(exchange.all):
            wire.detach()


_stores: WeakSet[PostgresStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
