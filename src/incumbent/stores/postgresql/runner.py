"""Carrying out plans by connections, written once for both sides, as coroutines.

The asynchronous side awaits them. The blocking side runs each in one step (`protocol.port.run`),
with connections that block instead of suspending.

Connections are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
no lock that a signal handler or `__del__` could meet; re-entry takes or opens another connection.
Whatever interrupts an exchange (any BaseException) closes its connection.
"""

from __future__ import annotations

import json
import logging
import random
from typing import Final, TypeVar
from weakref import WeakSet

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.names import flat
from incumbent.stores.plan import Plan, Planned
from incumbent.stores.postgresql.dialect import HELLO, Dialect
from incumbent.stores.postgresql.errors import (
    Answered,
    Broken,
    Mismatch,
    answered_error,
    check_schema,
    check_server,
    exchange_error,
    still_in_doubt,
)
from incumbent.stores.postgresql.libpq import Site, connect
from incumbent.stores.postgresql.subscriber import Subscriber
from incumbent.stores.postgresql.waiting import Side
from incumbent.stores.postgresql.wire import Wire
from incumbent.stores.repeats import heard_again

__all__ = ["UNUSABLE", "Runner"]

T = TypeVar("T")

UNUSABLE: Final = (Broken, Mismatch)
_READ_ONLY: Final = "25006"
_OPEN_MAX: Final = 10
"""Connections of one store: each is a process of the server, which has a hundred by default."""
_SPARE: Final = 4
"""More of them for renewals, which must not stand behind others."""
_WAIT_MAX: Final = 60.0
"""Seconds of one wait: then the waiter looks for itself."""
_FIRST_PAUSE: Final = 0.05
_LAST_PAUSE: Final = 1.0

_log = logging.getLogger("incumbent")
_now = clock.now


class Runner(Planned[float]):
    """Carries out plans, by the connections that it keeps."""

    dialect: Dialect

    def __init__(self, site: Site, dialect: Dialect, side: Side) -> None:
        self.site = site
        self.dialect = dialect
        self.side = side
        self._forget()

    def _forget(self) -> None:
        self.idle: list[Wire] = []
        self._all: WeakSet[Wire] = WeakSet()
        self._dialing: list[None] = []
        self._subscriber = Subscriber(self.connect, self.side.wakeup)

    def detach(self) -> None:
        """In a fork's child: let go of all connections. What is in use was other threads'."""
        wires = list(self._all)
        self._forget()
        for wire in wires:
            wire.detach()

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if nobody can listen."""
        try:
            await self._wait_change(key, seen, min(until, _now() + _WAIT_MAX))
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    async def _wait_change(self, key: Key, seen: str, until: float) -> None:
        if self.site.direct is None and not await self._is_same(key, seen, until):
            return
        if self.site.direct:
            wait = max(0.0, until - _now())
            await self._subscriber.wait(
                flat(key), until, lambda: self._is_same(key, seen, until, wait)
            )
        else:
            await self._poll(key, seen, until)

    async def _poll(self, key: Key, seen: str, until: float) -> None:
        pause = _FIRST_PAUSE
        while await self._is_same(key, seen, until):
            left = until - _now()
            if left <= 0:
                return
            await self.side.sleep(min(left, pause * random.uniform(0.8, 1.2)))
            pause = min(_LAST_PAUSE, pause * 1.5)

    async def _is_same(self, key: Key, seen: str, until: float, wait: float = 0.0) -> bool:
        return await self.run(self.dialect.unchanged(key, seen, wait), until)

    def let_go(self) -> None:
        """Close what is not in use; what is in use is closed when it comes back."""
        idle, self.idle = self.idle, []
        _close_all(idle)
        self._subscriber.close()

    # -- exchanges ----------------------------------------------------------------------------

    async def run(self, plan: Plan[float, T], until: float) -> T:
        """See Planned.run. Once more on a fresh connection if that was dead already."""
        wire = self._trusted()
        if wire is None:
            return await self._afresh(plan, until)
        try:
            return await self._use(wire, plan, until)
        except UNUSABLE as error:
            return await self.again(error, plan, until)

    def _trusted(self) -> Wire | None:
        """A connection at hand that the server has not closed."""
        while self.idle:
            try:
                wire = self.idle.pop()
            except IndexError:
                break
            if not wire.is_stale():
                return wire
            wire.close()
        return None

    async def _use(self, wire: Wire, plan: Plan[float, T], until: float) -> T:
        idle = self.idle
        try:
            outcome = await wire.carry_out(plan, until)
        except BaseException as error:
            self.settle(wire, idle, error)
            raise
        self.put_back(wire, idle)
        return outcome

    def settle(self, wire: Wire, idle: list[Wire], error: BaseException) -> None:
        """After `error`: keep `wire` if it can serve again. Raises what the server answered."""
        if isinstance(error, Answered):
            if error.code == _READ_ONLY:
                wire.close()  # the primary is another host now
            self.put_back(wire, idle)
            raise answered_error(error, self.site.where, proved=self.site.proved) from error
        if isinstance(error, StoreError):
            self.put_back(wire, idle)  # the answer itself was sound
        else:
            wire.close()

    def put_back(self, wire: Wire, idle: list[Wire]) -> None:
        # Another list by now: the store was closed, or this is a fork's child.
        if idle is self.idle and len(idle) < _OPEN_MAX and not wire.closed:
            idle.append(wire)
        else:
            wire.close()

    async def _afresh(self, plan: Plan[float, T], until: float) -> T:
        most = _OPEN_MAX + _SPARE if plan.kind == "renew" else _OPEN_MAX
        wire = await self._in_turn(until, most) or await self.connect(until)
        try:
            return await self._use(wire, plan, until)
        except UNUSABLE as error:
            raise exchange_error(error, self.site.where) from error.__cause__ or error

    async def again(self, error: Exception, plan: Plan[float, T], until: float) -> T:
        """The same on a fresh connection, if it may be repeated after `error`."""
        doubt = not isinstance(error, Broken) or error.sent
        if not isinstance(error, Broken) or error.late or (doubt and not plan.repeatable):
            raise exchange_error(error, self.site.where) from error.__cause__ or error
        # What killed one (a restart, a cut network) killed its neighbours.
        _close_all(self.idle)
        try:
            outcome = await self._afresh(plan, until)
        except StoreUnavailable as second:
            if doubt:
                raise still_in_doubt(second, self.site.where) from second
            raise
        return heard_again(outcome, self.site.where) if doubt else outcome

    async def _in_turn(self, until: float, most: int) -> Wire | None:
        """One that was put back, where there are as many as there may be."""
        pause = 0.001
        while sum(not wire.closed for wire in list(self._all)) + len(self._dialing) >= most:
            wire = self._trusted()
            if wire is not None:
                return wire
            left = until - _now()
            if left <= 0:
                raise StoreUnavailable(
                    f"{self.site.where}: all {most} connections of this process are in use, and"
                    " none became free in time"
                )
            await self.side.sleep(min(pause, left))
            pause = min(0.02, 2 * pause)
        return None

    async def dial(self, until: float) -> Wire:
        """A connection that is logged in. Raises StoreUnavailable, at `until` at the latest."""
        return Wire(await connect(self.site, self.side, until), self.side)

    async def connect(self, until: float) -> Wire:
        """A connection to a database with a schema that we can use."""
        site = self.site
        self._dialing.append(None)
        try:
            wire = await self.dial(until)
            self._all.add(wire)
        finally:
            self._dialing.pop()
        try:
            check_server(wire.server_version, site.where, proved=site.proved)
            before = _now()
            hello = json.loads(await wire.query(HELLO, until) or b"{}")
            check_schema(hello, site.where, proved=site.proved)
            wire.ahead = hello["now"] - before
        except Answered as error:
            wire.close()
            raise answered_error(error, site.where, proved=site.proved) from error
        except (*UNUSABLE, ValueError) as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.direct = hello["pid"] == wire.backend
        self._learn(wire)
        return wire

    def _learn(self, wire: Wire) -> None:
        site = self.site
        if not wire.direct and site.direct is not False:
            _log.info("%s: a pooler stands between, so waiting polls", site.where)
        site.direct = wire.direct
        site.proved = True


def _close_all(wires: list[Wire]) -> None:
    """Take all of them off the list and close them."""
    while wires:
        try:
            wire = wires.pop()
        except IndexError:
            break
        wire.close()
