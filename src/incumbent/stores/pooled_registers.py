"""Stores over registers that lie behind connections, of a driver that only blocks: both sides.

    PooledStore            the blocking Store; its operations keep a few connections
    PooledEngine           gives each event loop its AsyncStore: a thread for each request

A store of this kind subclasses PooledOperations, and says how to connect, whether a server is fit,
what answers the requests of an operation over one connection, and what the server's errors mean.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.bounded import BoundedRunner
from incumbent.net.dial import is_unknown
from incumbent.net.limiter import DIAL_WITHIN
from incumbent.net.pool import Broken, Connection
from incumbent.net.readers import ThreadWakeup
from incumbent.policy import TTL_DEFAULT
from incumbent.rules.record import micros
from incumbent.stores.deciding import Deciding
from incumbent.stores.findings import Finding, cannot_tell, grants_nothing
from incumbent.stores.loops import ServerEngine, detach_in_child
from incumbent.stores.names import flat
from incumbent.stores.plan import BlockingTogether, Plan, drive, run_blocking
from incumbent.stores.polling import Looks
from incumbent.stores.probing import about_registers, probe
from incumbent.stores.register_store import PollingOperations, replies
from incumbent.stores.registers import QuickRegisters

if TYPE_CHECKING:
    from incumbent.stores.threaded import ThreadedRegisterStore

__all__ = ["Exchange", "PooledConnection", "PooledEngine", "PooledOperations", "PooledStore"]

T = TypeVar("T")

LOOK_EVERY: Final = 10.0
"""Seconds for which a server that became unfit, or was restored, may be missed."""
_SWEEPS: Final = 0.01
"""The share of looks at a server after which names are forgotten."""


class PooledConnection(Connection, Protocol):
    """`unfinished`: an exchange on it was not completed, so it cannot be used again.

    `looked`: when its server was last examined; `longest`: the longest ttl, in microseconds, that
    the store knows of; `encrypted`: whether by TLS.
    """

    unfinished: bool
    looked: float
    longest: int
    encrypted: bool


class Exchange(QuickRegisters, Protocol):
    """Registers over one connection, for one operation.

    `wrote`: it has changed something, so that a later error does not mean that nothing was changed.
    """

    wrote: bool


W = TypeVar("W", bound=PooledConnection)


class PooledOperations(PollingOperations, BoundedRunner[W, None]):
    """The operations; they block. `error_class`: what a server's errors are raised as.

    `places`: where servers are; the one that served last is asked first. `served`: one has served
    this process, so that even what looks final may be temporary.
    """

    error_class: type[Exception]
    wakeup = staticmethod(ThreadWakeup)

    def __init__(self, where: str, places: Sequence[Any], dialect: Deciding) -> None:
        super().__init__(where, ThreadWakeup, _sleep)
        self.places, self.dialect, self.looks = list(places), dialect, Looks()
        self.served = False

    # -- what a store says --------------------------------------------------------------------

    @abstractmethod
    def open(self, place: Any, until: float) -> W:
        """A connection that is logged in. Raises OSError, Broken, and what the server answers."""

    @abstractmethod
    def examine(self, wire: W, until: float) -> None:
        """Find out what the server is like. Raises StoreUnavailable if it is not fit, and as above.

        What a server answers is raised, as in the methods that follow.
        """

    @abstractmethod
    def note(self, wire: W, longest: int, until: float) -> None:
        """Let the store know of this ttl, in microseconds, before it is granted."""

    @abstractmethod
    def sweep(self, wire: W, until: float) -> None:
        """Forget some names of which nothing matters any more."""

    @abstractmethod
    def exchange(self, wire: W) -> Exchange:
        """The registers over this connection."""

    @abstractmethod
    def failure(self, error: Any, about: str) -> StoreError:
        """The exception for an error that the server answered; `about`: the names asked for."""

    # -- connections --------------------------------------------------------------------------

    async def dialled(self, until: float, lasts: float = -inf) -> W:
        """See BoundedRunner. The first server that is fit; each has its share of the time left."""
        until = max(lasts, min(until, clock.now() + DIAL_WITHIN))
        failures = list[StoreUnavailable]()
        for at, place in enumerate(self.places):
            share = clock.now() + (until - clock.now()) / (len(self.places) - at)
            try:
                wire = await self.opened(self.dial(place, share))
                self._check(wire, share)
            except StoreUnavailable as error:
                failures.append(error)
            else:
                # Another list, in one assignment: other threads go through the old one.
                self.places = [place, *(other for other in self.places if other != place)]
                self.served = True
                return wire
        # If one of the servers may serve later, the caller may wait for it.
        raise min(failures, key=lambda it: it.permanent)

    async def dial(self, place: Any, until: float) -> W:
        """A connection to a server as it is. Raises StoreUnavailable."""
        try:
            return self.open(place, until)
        except (OSError, Broken) as error:
            raise_if_from_signal(error)
            final = is_unknown(error) or "certificate verify failed" in str(error)
            raise self._out_of_reach(error, permanent=final and not self.served) from error
        except self.error_class as error:
            raise self.failure(error, "") from error

    def _out_of_reach(self, error: Exception, *, permanent: bool = False) -> StoreUnavailable:
        return StoreUnavailable(f"{self.where} cannot be reached: {error}", permanent=permanent)

    def _check(self, wire: W, until: float) -> None:
        """Raise StoreUnavailable, and close the connection, if the server is not fit."""
        try:
            self.examine(wire, until)
            if not self.served:
                run_blocking(drive(probe(self.where), replies(self.exchange(wire), until)))
        except BaseException as error:
            wire.close()
            if isinstance(error, self.error_class):
                raise self.failure(error, "") from error
            if isinstance(error, Broken):
                raise self._out_of_reach(error) from error
            raise

    def keep_or_close(self, wire: W, idle: list[W], error: BaseException) -> None:
        if isinstance(error, StoreError) and not wire.unfinished:
            self.put_back(wire, idle)
        else:
            wire.close()

    def detach(self) -> None:
        self.looks.forget()
        super().detach()

    # -- requests -----------------------------------------------------------------------------

    async def carry_out(self, wire: W, plan: Plan[None, T], until: float) -> T:
        exchange = self.exchange(wire)
        try:
            self._prepare(wire, plan, until)
            return await drive(plan.start(None, until), replies(exchange, until))
        except Broken as error:
            # Not sent, but after a write: then it cannot be said that nothing was changed.
            raise Broken(str(error), sent=error.sent or exchange.wrote, late=error.late) from error
        except self.error_class as error:
            failure = self.failure(error, " ".join(flat(key) for key in plan.keys[:3]))
            raise OutcomeUnknown(str(failure)) if exchange.wrote else failure from error

    def _prepare(self, wire: W, plan: Plan[None, Any], until: float) -> None:
        """Look at the server again if that is long ago; let it know the longest ttl."""
        if clock.now() > wire.looked + LOOK_EVERY:
            self.examine(wire, until)
            # By chance, so that instances need not agree on who does it; and no
            # renewal waits for it.
            if plan.kind != "renew" and random.random() < _SWEEPS:
                self.sweep(wire, until)
        ttl = max(plan.ttl, *(it.ttl for it in plan.renewals), 0.0)
        if ttl > TTL_DEFAULT and micros(ttl) > wire.longest:
            self.note(wire, micros(ttl), until)
            # After the note: one that failed has to be tried again.
            wire.longest = micros(ttl)


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - its caller awaits nothing else


Operations = TypeVar("Operations", bound=PooledOperations[Any])


class PooledStore(BlockingTogether[Operations]):
    """The blocking Store."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        detach_in_child(operations)


class PooledEngine(
    ServerEngine[PooledStore[Operations], "ThreadedRegisterStore[Operations]"], Generic[Operations]
):
    """The engine. `advice`: what a server that is not fit needs."""

    advice: str

    def __init__(self, operations: Operations, restart_wait: float | None) -> None:
        store = PooledStore(operations)
        super().__init__(operations.where, store, partial(_threaded, store))
        self._restart_wait = restart_wait

    @abstractmethod
    def diagnosed(self, wire: Any, until: float) -> list[Finding]:
        """What this kind of server has to be asked about. Raises Broken, and what it answers."""

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose."""
        operations = self._store.operations

        def work(wire: Any) -> list[Finding]:
            exchange = operations.exchange(wire)
            try:
                operations.examine(wire, until)
                run_blocking(drive(probe(operations.where), replies(exchange, until)))
                about = about_registers(exchange, self._restart_wait, ttl, until)
            except StoreError as error:
                return [grants_nothing(str(error), self.advice, level="error")]
            tls = ("ok", "TLS is used" if wire.encrypted else "TLS is not used", "")
            return [*self.diagnosed(wire, until), *about, tls]

        return self.findings(work, until)

    def findings(self, work: Callable[[Any], list[Finding]], until: float) -> list[Finding]:
        """The findings of `work`, over a connection of its own."""
        operations, wire = self._store.operations, None
        try:
            wire = run_blocking(operations.dial(operations.places[0], until))
            return work(wire)
        except (StoreError, Broken, operations.error_class) as error:
            if isinstance(error, operations.error_class):
                error = operations.failure(error, "")
            return [cannot_tell(str(error), "check the address, the login and the network")]
        finally:
            if wire is not None:
                wire.close()


def _threaded(store: PooledStore[Operations]) -> ThreadedRegisterStore[Operations]:
    # Blocking programs do not import asyncio.
    from incumbent.stores.threaded import ThreadedRegisterStore

    return ThreadedRegisterStore(store)
