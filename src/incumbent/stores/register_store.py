"""The stores over registers that answer by plain calls (`registers.Registers`): both sides.

Waiting polls. A waiter that stands in line comes back when it may be its turn, and everybody else
when the record has changed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from incumbent.errors import StoreError
from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, TakeOutcome
from incumbent.net.readers import SharedWakeup, ThreadWakeup, Wakeup
from incumbent.stores.deciding import Deciding
from incumbent.stores.plan import (
    BlockingTogether,
    Plan,
    PlannedTogether,
    Program,
    drive,
    run_blocking,
)
from incumbent.stores.polling import LOCAL, NETWORK, Looks, Poll, in_line
from incumbent.stores.probing import probe
from incumbent.stores.registers import (
    Join,
    Load,
    QuickRegisters,
    Registers,
    Request,
    Scan,
    Seen,
    Swaps,
    TryGive,
    TryRenew,
    TryTake,
    Wanted,
)

__all__ = [
    "LOCAL",
    "NETWORK",
    "InlineRegisterStore",
    "Poll",
    "PollingOperations",
    "RegisterStore",
    "prove",
    "replies",
]

T = TypeVar("T")


def replies(registers: Registers, until: float) -> Callable[[Request], Awaitable[Any]]:
    """What plain-call registers reply to the requests of an operation; for plan.drive."""

    async def reply(request: Request) -> Any:
        return _reply(registers, request, until)

    return reply


def prove(registers: Registers, where: str, until: float) -> None:
    """Find out whether conditional writes hold. Raises StoreUnavailable if not; for `diagnose`."""
    run_blocking(drive(probe(where), replies(registers, until)))


def _reply(registers: Registers, request: Request, until: float) -> Any:
    match request:
        case Load(wanted):
            return registers.load(wanted, until)
        case Swaps(swaps):
            return registers.swap(swaps, until)
        case Scan(namespace, prefix):
            return registers.scan(namespace, prefix, until)
    # Only what `Quick` names is asked for.
    return _quick_reply(cast("QuickRegisters", registers), request, until)


def _quick_reply(registers: QuickRegisters, request: Request, until: float) -> Any:
    match request:
        case TryTake(key):
            return registers.take(request, until) or registers.load([Wanted(key)], until)[0]
        case TryGive(key):
            return registers.give(request, until) or registers.load([Wanted(key)], until)[0]
        case TryRenew(renewals):
            return registers.renew(renewals, until)
        case Join():
            return registers.join(request, until)
    raise TypeError(f"a request for other registers: {request}")


class PollingOperations(PlannedTogether[Any]):
    """The operations of a store over registers whose waiters poll."""

    dialect: Deciding
    looks: Looks

    @abstractmethod
    def wakeup(self) -> Wakeup:
        """Make a Wakeup for a waiter of this side; any thread can wake it."""

    async def look(self, key: Key, until: float) -> Seen | StoreError:
        """What the store has of a name. Raises StoreError."""
        return await self.run(Plan("look", lambda _facts, _until: _loaded(key), (key,)), until)

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return in_line(await super().take(key, claim, ask, until), claim, ask)

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        try:
            return await super().give(key, claim, token, until, parting=parting)
        finally:
            # Also after an error: the lease may have been given back.
            self.looks.hurry(key)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self.looks.wait(key, seen, until, self.wakeup(), self.look)


def _loaded(key: Key) -> Program[Seen | StoreError]:
    (seen,) = yield Load((Wanted(key),))
    return cast("Seen | StoreError", seen)


class RegisterOperations(PollingOperations):
    """The operations; they suspend for nothing but waits."""

    def __init__(
        self,
        registers: Registers,
        dialect: Deciding,
        wakeup: Callable[[], Wakeup],
        poll: Poll = NETWORK,
    ) -> None:
        self.registers = registers
        self.dialect = dialect
        self.looks = Looks(poll)
        self._wakeup = wakeup
        self._proved = False

    async def run(self, plan: Plan[None, T], until: float) -> T:
        answer = replies(self.registers, until)
        if plan.kind == "take" and not self._proved:
            # Nobody relies on a lease before it is known that conditional writes hold.
            await drive(probe(self.dialect.where), answer)
            self._proved = True
        return await drive(plan.start(None, until), answer)

    def wakeup(self) -> Wakeup:
        """See PollingOperations.wakeup."""
        return self._wakeup()

    def let_go(self) -> None:
        """End the waits; the engine that made the registers closes them."""
        self.looks.end_waits()


class RegisterStore(BlockingTogether[RegisterOperations]):
    """The blocking Store over registers."""

    def __init__(self, registers: Registers, dialect: Deciding, poll: Poll = NETWORK) -> None:
        super().__init__(RegisterOperations(registers, dialect, ThreadWakeup, poll))


class InlineRegisterStore(RegisterOperations):
    """The AsyncStore over registers that answer at once: a thread would cost more."""

    def __init__(self, registers: Registers, dialect: Deciding, poll: Poll = LOCAL) -> None:
        super().__init__(registers, dialect, SharedWakeup, poll)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        self.let_go()
