"""Carries out plans over connections, blocking or asynchronously: see `net.pool`."""

from __future__ import annotations

import logging
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import GiveOutcome, Key
from incumbent.net.bounded import BoundedRunner
from incumbent.net.pool import Broken, Mismatch
from incumbent.net.readers import Wakeup
from incumbent.stores.base import Answers, Give
from incumbent.stores.names import flat
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.polling import IN_LINE
from incumbent.stores.postgresql.dialect import PostgresDialect
from incumbent.stores.postgresql.errors import (
    PostgresErrorReply,
    answered_error,
    check_schema,
    check_server,
    connect_error,
)
from incumbent.stores.postgresql.exchange import HELLO, read_object
from incumbent.stores.postgresql.site import PostgresSite
from incumbent.stores.postgresql.subscriber import NotificationListener, pause
from incumbent.stores.postgresql.wire import PostgresSide, PostgresWire, connect
from incumbent.stores.turns import TURN, TakesTurns

T = TypeVar("T")

_READ_ONLY: Final = "25006"
_WAIT_MAX: Final = 60.0
"""The longest wait in seconds; then the waiter reads the record itself."""
_FIRST_PAUSE: Final = 0.05
_LAST_PAUSE: Final = 1.0

_log = logging.getLogger("incumbent")
_now = clock.now


class Runner(TakesTurns[float], PlannedTogether[float], BoundedRunner[PostgresWire, float]):
    """Carries out plans over the connections that it keeps."""

    dialect: PostgresDialect

    def __init__(self, site: PostgresSite, dialect: PostgresDialect, side: PostgresSide) -> None:
        super().__init__(site.where, side.wakeup, side.sleep)
        self.site = site
        self.dialect = dialect
        self.side = side
        self.turns = dialect.turns
        self._forget()

    def _forget(self) -> None:
        self._subscriber = NotificationListener(self.connect, self.side.wakeup)

    def detach(self) -> None:
        self._forget()
        self.turns.forget()
        super().detach()

    def wakeup(self) -> Wakeup:
        return self.side.wakeup()

    async def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        try:
            return await super().give_all(gives, until)
        finally:
            # A waiter of this process asks at once.
            for give in gives:
                self.turns.note_given(give.key, give.claim)

    async def wait_as_first(self, key: Key, seen: str, until: float) -> None:
        if self.turns.end_turn(key) >= TURN:
            # Give other processes the same chance as this one.
            await self.side.sleep(min(pause(), max(0.0, until - _now())))
        await self.wait_at_store(key, seen, until)

    async def wait_at_store(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if no connection can listen."""
        try:
            await self._wait_change(key, seen, min(until, _now() + _WAIT_MAX))
        except StoreError:
            # After `until` the caller asks the store itself, so an error no longer matters.
            if _now() < until:
                raise

    async def _wait_change(self, key: Key, seen: str, until: float) -> None:
        # Known once there is a connection, which this request makes.
        if self.site.direct is None and not await self._is_same(key, seen, until):
            return
        if self.site.direct:
            wait = max(0.0, until - _now())
            waiter = flat(key), seen.partition(IN_LINE)[2]
            await self._subscriber.wait(
                *waiter, until, lambda: self._is_same(key, seen, until, wait)
            )
        else:
            await self._poll(key, seen, until)

    async def _poll(self, key: Key, seen: str, until: float) -> None:
        pause, idle = _FIRST_PAUSE, self.idle
        # Another list: the store was closed.
        while await self._is_same(key, seen, until) and idle is self.idle:
            left = until - _now()
            if left <= 0:
                return
            # Not in step: the waiters of many processes would ask at the same instants.
            await self.side.sleep(min(left, pause * random.uniform(0.8, 1.2)))
            pause = min(_LAST_PAUSE, pause * 1.5)

    async def _is_same(self, key: Key, seen: str, until: float, wait: float = 0.0) -> bool:
        return await self.run(self.dialect.unchanged(key, seen, wait), until)

    def let_go(self) -> None:
        super().let_go()
        self._subscriber.close()
        self.turns.notify_all()

    # -- exchanges ----------------------------------------------------------------------------

    def carry_out(
        self, wire: PostgresWire, plan: Plan[float, T], until: float
    ) -> Coroutine[Any, Any, T]:
        return wire.run_program(self.dialect.translated(plan, wire.ahead, until), until)

    def keep_or_close(
        self, wire: PostgresWire, idle: list[PostgresWire], error: BaseException
    ) -> None:
        """See PlanRunner.keep_or_close. Raises the server's error as a StoreError."""
        if isinstance(error, PostgresErrorReply):
            if error.code == _READ_ONLY:
                wire.close()  # the primary is another host now
            self.put_back(wire, idle)
            raise answered_error(error, self.where, served=self.site.served) from error
        if isinstance(error, StoreError):
            self.put_back(wire, idle)  # the reply itself was sound
        else:
            wire.close()

    async def dialled(self, until: float, lasts: float = -inf) -> PostgresWire:
        """A new connection; see Side.dialled."""
        keep = partial(self.put_back, idle=self.idle)

        async def dial(end: float) -> PostgresWire:
            # The hosts share the caller's time, so that there is time for the second one.
            return await self.connect(min(until, end), end)

        try:
            return await self.side.dialled(dial, until, keep, lasts)
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise connect_error("", self.where, served=self.site.served) from error

    async def dial(self, until: float, lasts: float = -inf) -> PostgresWire:
        """A connection that is logged in; see wire.connect. Raises StoreUnavailable."""
        return PostgresWire(await connect(self.site, self.side, until, lasts), self.side)

    async def connect(self, until: float, lasts: float = -inf) -> PostgresWire:
        """A connection to a database with a schema of our format; see wire.connect."""
        site, last = self.site, max(until, lasts)
        wire = await self.opened(self.dial(until, lasts))
        try:
            check_server(wire.version, site.where, served=site.served)
            # Before the request, so that `ahead` is the most that the server's clock may be ahead.
            before = _now()
            hello = read_object(await wire.query(HELLO, last))
            check_schema(hello, site.where, served=site.served)
            wire.ahead = hello["now"] - before
        except PostgresErrorReply as error:
            wire.close()
            raise answered_error(error, site.where, served=site.served) from error
        except (Broken, Mismatch) as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.direct = hello["pid"] == wire.backend
        if not wire.direct and site.direct is not False:
            _log.info("%s: a pooler stands between, so waiting polls", site.where)
        site.direct, site.served = wire.direct, True
        return wire
