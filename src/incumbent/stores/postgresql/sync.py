"""The blocking side: `exchange` in one step."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Sequence
from math import ceil
from typing import Any, Final, TypeVar
from weakref import WeakSet

from incumbent import clock
from incumbent.net.names import resolve
from incumbent.protocol.port import run
from incumbent.stores.blocking import BlockingPlanned
from incumbent.stores.plan import Plan
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

_now = clock.now

T = TypeVar("T")


class Wire(AnyWire):
    """A connection that blocks."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    async def ready(self, until: float, *, writing: bool = False) -> bool:
        """See AnyWire.ready."""
        return wait_for(self._fd, until, writing=writing)

    def query_at_once(self, request: Request, until: float) -> bytes | None:
        """As `query`, without a coroutine where all goes well."""
        name = self._known.get(request.sql)
        left = until - self.used
        if name is None or left <= 0 or self._coming is not None:
            return run(self.query(request, until))
        connection = self._connection
        try:
            connection.send_query_prepared(name, request.parameters)
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

    def carry_out_at_once(self, plan: Plan[float, T], until: float) -> T:
        """As `carry_out`, likewise."""
        program = plan.start(self.ahead, until)
        try:
            request = next(program)
            while True:
                request = program.send(self.query_at_once(request, until))
                self.used = _now()
        except StopIteration as done:
            outcome: T = done.value
            return outcome


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


class PostgresStore(BlockingPlanned[BlockingExchange]):
    """See stores.base.Store."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(BlockingExchange(site, dialect))
        _stores.add(self)

    def run(self, plan: Plan[float, T], until: float) -> T:
        """See BlockingPlanned.run. A connection that was just used needs no coroutine."""
        operations, now = self.operations, _now()
        idle = operations.idle
        try:
            wire = idle.pop()
        except IndexError:
            return super().run(plan, until)
        if now - wire.used > STALE_AFTER:
            idle.append(wire)
            return super().run(plan, until)
        wire.used = now
        try:
            outcome = wire.carry_out_at_once(plan, until)
        except UNUSABLE as error:
            wire.close()
            return run(operations.again(error, plan, until))
        except BaseException as error:
            operations.settle(wire, idle, error)
            raise
        operations.put_back(wire, idle)
        return outcome

    def drop(self) -> None:
        """In a fork's child: let go of all connections. What is in use was other threads'."""
        operations = self.operations
        operations.idle, operations.dialing = [], []
        operations.listening = operations.make_listening()
        for wire in list(operations.all):
            wire.detach()


_stores: WeakSet[PostgresStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
