"""Stores over registers that lie behind connections, of a driver that only blocks: both sides.

    PooledStore            the blocking Store; its operations keep a few connections
    PooledEngine           gives each event loop its AsyncStore: a thread for each request

A store of this kind subclasses PooledOperations, and says how to connect, what answers the requests
of an operation over one connection, and what the server's errors mean.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.net.bounded import BoundedRunner
from incumbent.net.limiter import DIAL_WITHIN
from incumbent.net.pool import Broken, Connection
from incumbent.net.readers import LockWakeup
from incumbent.protocol.port import run
from incumbent.stores.deciding import Deciding
from incumbent.stores.findings import Finding, cannot_tell
from incumbent.stores.loops import ServerEngine, detach_in_child
from incumbent.stores.names import flat
from incumbent.stores.plan import BlockingTogether, Plan, drive
from incumbent.stores.polling import Looks
from incumbent.stores.register_store import PollingOperations, replies
from incumbent.stores.registers import Registers

if TYPE_CHECKING:
    from incumbent.stores.threaded_registers import ThreadedRegisterStore

T = TypeVar("T")


class PooledConnection(Connection, Protocol):
    """`in_doubt`: an exchange on it was not completed, so it cannot be used again."""

    in_doubt: bool


class Exchange(Registers, Protocol):
    """Registers (or QuickRegisters) over one connection, for one operation.

    `wrote`: it has changed something, so that a later error does not mean that nothing was changed.
    """

    wrote: bool


W = TypeVar("W", bound=PooledConnection)


class PooledOperations(PollingOperations, BoundedRunner[W, None]):
    """The operations; they block. `answers`: the class of the errors that the server answers."""

    answers: type[Exception]
    wakeup = staticmethod(LockWakeup)

    def __init__(self, where: str, dialect: Deciding) -> None:
        super().__init__(where, LockWakeup, _sleep)
        self.dialect, self.looks = dialect, Looks()

    @abstractmethod
    def exchange(self, wire: W) -> Exchange:
        """The registers over this connection."""

    @abstractmethod
    def failure(self, error: Any, about: str) -> StoreError:
        """The exception for an error that the server answered; `about`: the names asked for."""

    @abstractmethod
    async def connect(self, until: float) -> W:
        """A connection to a server that is fit, made by `opened`. Raises StoreUnavailable."""

    @abstractmethod
    async def dial(self, until: float) -> W:
        """A connection to the server as it is. Raises StoreUnavailable."""

    def prepare(self, wire: W, plan: Plan[None, Any], until: float) -> None:
        """What comes before the first request of a plan."""

    async def dialled(self, until: float, lasts: float = -inf) -> W:
        return await self.connect(max(lasts, min(until, clock.now() + DIAL_WITHIN)))

    async def carry_out(self, wire: W, plan: Plan[None, T], until: float) -> T:
        exchange = self.exchange(wire)
        try:
            self.prepare(wire, plan, until)
            return await drive(plan.start(None, until), replies(exchange, until))
        except Broken as error:
            raise Broken(str(error), sent=error.sent or exchange.wrote, late=error.late) from error
        except self.answers as error:
            failure = self.failure(error, " ".join(flat(key) for key in plan.keys[:3]))
            raise OutcomeUnknown(str(failure)) if exchange.wrote else failure from error

    def settle(self, wire: W, idle: list[W], error: BaseException) -> None:
        if isinstance(error, StoreError) and not wire.in_doubt:
            self.put_back(wire, idle)
        else:
            wire.close()

    def detach(self) -> None:
        self.looks.forget()
        super().detach()


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - its caller awaits nothing else


Operations = TypeVar("Operations", bound=PooledOperations[Any])


class PooledStore(BlockingTogether[Operations]):
    """The blocking Store."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        detach_in_child(operations)


class PooledEngine(ServerEngine[PooledStore[Operations], "ThreadedRegisterStore[Operations]"]):
    """The engine. `diagnosed` are the findings of a diagnosis over one connection."""

    def __init__(self, operations: Operations) -> None:
        store = PooledStore(operations)
        super().__init__(operations.where, store, partial(_threaded, store))

    @abstractmethod
    def diagnosed(self, wire: Any, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose. Raises Broken, and what the server answers."""

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        return self.findings(lambda wire: self.diagnosed(wire, ttl, until), until)

    def findings(self, work: Callable[[Any], list[Finding]], until: float) -> list[Finding]:
        """The findings of `work`, over a connection of its own."""
        operations, wire = self._store.operations, None
        try:
            wire = run(operations.dial(until))
            return work(wire)
        except (StoreError, Broken, operations.answers) as error:
            if isinstance(error, operations.answers):
                error = operations.failure(error, "")
            return [cannot_tell(str(error), "check the address, the login and the network")]
        finally:
            if wire is not None:
                wire.close()


def _threaded(store: PooledStore[Operations]) -> ThreadedRegisterStore[Operations]:
    # Blocking programs do not import asyncio.
    from incumbent.stores.threaded_registers import ThreadedRegisterStore

    return ThreadedRegisterStore(store)
