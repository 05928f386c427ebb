"""What both sides do with connections, written once, as coroutines.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar
from weakref import WeakSet

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
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
from incumbent.stores.names import flat
from incumbent.stores.postgresql.dialect import HELLO, Dialect, Request, batches, is_repeatable
from incumbent.stores.postgresql.driver import Site
from incumbent.stores.postgresql.errors import (
    Answered,
    Broken,
    Mismatch,
    answered_error,
    exchange_error,
    still_in_doubt,
)
from incumbent.stores.postgresql.listening import Listening
from incumbent.stores.postgresql.server import check_schema, check_server
from incumbent.stores.postgresql.wire import AnyWire
from incumbent.stores.repeats import heard_again

__all__ = ["UNUSABLE", "Exchange", "close_all"]

T = TypeVar("T")
W = TypeVar("W", bound=AnyWire)

UNUSABLE: Final = (Broken, Mismatch)
_READ_ONLY: Final = "25006"
_OPEN_MAX: Final = 10
"""Connections of one store: each is a process of the server, which has a hundred by default."""
_SPARE: Final = 4
"""More of them for renewals, which must not stand behind others."""
_WAIT_MAX: Final = 60.0
"""Seconds of one wait: afterwards who waits looks for itself."""
_FIRST_PAUSE: Final = 0.05
_LAST_PAUSE: Final = 1.0

_log = logging.getLogger("incumbent")
_now = clock.now


class Exchange(ABC, Generic[W]):
    """The operations of a store (see stores.base.AsyncStore), by the connections it keeps."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self.site = site
        self.dialect = dialect
        self.idle: list[W] = []
        self.all: WeakSet[W] = WeakSet()
        self.dialing: list[None] = []
        self.listening = self.make_listening()

    @abstractmethod
    def make_listening(self) -> Listening[W]:
        """For those who wait; it connects by `connect`."""

    @abstractmethod
    async def dial(self, until: float) -> W:
        """A connection that is logged in. Raises StoreUnavailable, at `until` at the latest."""

    @abstractmethod
    async def nap(self, seconds: float) -> None:
        """Let that time pass."""

    # -- operations ---------------------------------------------------------------------------

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        dialect = self.dialect
        request = dialect.take(key, claim, ask)
        # A take in doubt is the caller's to repeat, who remembers that there were two.
        return await self.ask(request, lambda it: dialect.taken(it, claim), until, repeatable=False)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        outcomes: dict[int, RenewOutcome] = {}
        for places in batches(renewals):
            batch = [renewals[place] for place in places]
            answer = await self._renew_batch(batch, until)
            outcomes.update(zip(places, answer, strict=True))
        return [outcomes[place] for place in range(len(renewals))]

    async def _renew_batch(self, batch: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        dialect = self.dialect
        request = dialect.renew(batch)
        return await self.ask(
            request, lambda it: dialect.renewed(it, batch), until, most=_OPEN_MAX + _SPARE
        )

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
        dialect = self.dialect
        request = dialect.give(key, claim, token, closed_for, reserve_for, slot)
        return await self.ask(request, lambda it: dialect.given(it, claim), until)

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        request = self.dialect.put(key, field, value, guard)
        return await self.ask(request, self.dialect.stored, until, repeatable=is_repeatable(guard))

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        dialect = self.dialect
        return await self.ask(dialect.read(key), lambda it: dialect.record(it, key), until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        found: list[Record] = []
        after = ""
        while True:
            request = self.dialect.scan(namespace, prefix, after)
            more = await self.ask(request, self.dialect.records, until)
            if not more:
                return tuple(found)
            found += more
            after = flat(more[-1].key)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if nobody can listen."""
        try:
            await self._wait_change(key, seen, min(until, _now() + _WAIT_MAX))
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    async def _wait_change(self, key: Key, seen: str, until: float) -> None:
        if self.site.listens is None and not await self._is_same(key, seen, until):
            return
        if self.site.listens:
            wait = max(0.0, until - _now())
            await self.listening.wait(
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
            await self.nap(min(left, pause * random.uniform(0.8, 1.2)))
            pause = min(_LAST_PAUSE, pause * 1.5)

    async def _is_same(self, key: Key, seen: str, until: float, wait: float = 0.0) -> bool:
        return await self.ask(self.dialect.changed(key, seen, wait), self.dialect.is_same, until)

    def let_go(self) -> None:
        """Close what is not in use; what is in use is closed when it comes back."""
        idle, self.idle = self.idle, []
        close_all(idle)
        self.listening.close()

    # -- exchanges ----------------------------------------------------------------------------

    async def ask(
        self,
        request: Request,
        read: Callable[[bytes | None], T],
        until: float,
        *,
        repeatable: bool = True,
        most: int = _OPEN_MAX,
    ) -> T:
        """One statement, and once more on a fresh connection if that was dead already."""
        wire = self._trusted()
        if wire is None:
            return await self._afresh(request, read, until, most)
        try:
            return await self._use(wire, request, read, until)
        except UNUSABLE as error:
            return await self.again(error, request, read, until, repeatable=repeatable)

    def _trusted(self) -> W | None:
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

    async def _use(
        self, wire: W, request: Request, read: Callable[[bytes | None], T], until: float
    ) -> T:
        idle = self.idle
        wire.used = _now()
        try:
            outcome = read(await wire.query(request, until))
        except BaseException as error:
            self.settle(wire, idle, error)
            raise
        self.put_back(wire, idle)
        return outcome

    def settle(self, wire: W, idle: list[W], error: BaseException) -> None:
        """After an error on `wire`: keep it if it can serve again; say an answered one."""
        if isinstance(error, Answered):
            if error.code == _READ_ONLY:
                wire.close()  # the primary is another host now
            self.put_back(wire, idle)
            raise answered_error(error, self.site.where, proved=self.site.proved) from error
        if isinstance(error, StoreError):
            self.put_back(wire, idle)  # the answer itself was sound
        else:
            wire.close()

    def put_back(self, wire: W, idle: list[W]) -> None:
        # Another list by now: the store was closed, or this is a fork's child.
        if idle is self.idle and len(idle) < _OPEN_MAX and not wire.closed:
            idle.append(wire)
        else:
            wire.close()

    async def _afresh(
        self,
        request: Request,
        read: Callable[[bytes | None], T],
        until: float,
        most: int = _OPEN_MAX,
    ) -> T:
        wire = await self._in_turn(until, most) or await self.connect(until)
        try:
            return await self._use(wire, request, read, until)
        except UNUSABLE as error:
            raise exchange_error(error, self.site.where) from error.__cause__ or error

    async def again(
        self,
        error: Exception,
        request: Request,
        read: Callable[[bytes | None], T],
        until: float,
        *,
        repeatable: bool,
    ) -> T:
        """The same on a fresh connection, if it may be repeated after `error`."""
        doubt = not isinstance(error, Broken) or error.sent
        if not isinstance(error, Broken) or error.late or (doubt and not repeatable):
            raise exchange_error(error, self.site.where) from error.__cause__ or error
        # What killed one (a restart, a cut network) killed its neighbours.
        close_all(self.idle)
        try:
            outcome = await self._afresh(request, read, until)
        except StoreUnavailable as second:
            if doubt:
                raise still_in_doubt(second, self.site.where) from second
            raise
        return heard_again(outcome, self.site.where) if doubt else outcome

    async def _in_turn(self, until: float, most: int) -> W | None:
        """One that was put back, where there are as many as there may be."""
        pause = 0.001
        while sum(not wire.closed for wire in list(self.all)) + len(self.dialing) >= most:
            wire = self._trusted()
            if wire is not None:
                return wire
            left = until - _now()
            if left <= 0:
                raise StoreUnavailable(
                    f"{self.site.where}: all {most} connections of this process are in use, and"
                    " none became free in time"
                )
            await self.nap(min(pause, left))
            pause = min(0.02, 2 * pause)
        return None

    async def connect(self, until: float) -> W:
        """A connection to a database with a schema that we can use."""
        site = self.site
        self.dialing.append(None)
        try:
            wire = await self.dial(until)
            self.all.add(wire)
        finally:
            self.dialing.pop()
        try:
            check_server(wire.server_version, site.where, proved=site.proved)
            before = _now()
            said = json.loads(await wire.query(HELLO, until) or b"{}")
            check_schema(said, site.where, proved=site.proved)
            wire.ahead = said["now"] - before
        except Answered as error:
            wire.close()
            raise answered_error(error, site.where, proved=site.proved) from error
        except (*UNUSABLE, ValueError) as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.direct = said["pid"] == wire.backend
        self._learn(wire)
        return wire

    def _learn(self, wire: W) -> None:
        site = self.site
        if not wire.direct and site.direct is not False and site.waits == "auto":
            _log.info(
                "%s: a pooler stands between, so waiting polls; with one in session mode say"
                " wait=listen",
                site.where,
            )
        site.direct = wire.direct
        site.proved = True


def close_all(wires: list[W]) -> None:
    """Take all of them off the list and close them."""
    while wires:
        try:
            wire = wires.pop()
        except IndexError:
            break
        wire.close()
