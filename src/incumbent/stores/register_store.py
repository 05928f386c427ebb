"""The stores over registers that answer by plain calls (`registers.Registers`): both sides.

Waiting polls: the record is read again and again, at growing intervals. A waiter that stands in
line comes back when it may be its turn, and everybody else when the record has changed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, Key, Queued, TakeOutcome
from incumbent.rules.line import may_ask
from incumbent.rules.record import seen_of
from incumbent.stores.deciding import Deciding, present
from incumbent.stores.plan import BlockingTogether, Plan, PlannedTogether, drive
from incumbent.stores.registers import Load, Registers, Request, Scan, Swaps, Wanted

T = TypeVar("T")

_IN_LINE: Final = "|"
"""Stands between the state that a waiter has seen, and the claim with which it stands in line."""


class Poll(NamedTuple):
    """Seconds until a waiter looks first, at most between two looks, and how they grow."""

    first: float = 0.02
    longest: float = 0.5
    growth: float = 1.25


NETWORK: Final = Poll()
LOCAL: Final = Poll(0.002, 0.025)


class RegisterOperations(PlannedTogether[None]):
    """The operations; they suspend for nothing but the `sleep` of a wait."""

    def __init__(
        self,
        registers: Registers,
        dialect: Deciding,
        sleep: Callable[[float], Awaitable[None]],
        poll: Poll = NETWORK,
    ) -> None:
        self.registers = registers
        self.dialect = dialect
        self._sleep = sleep
        self._poll = poll

    async def run(self, plan: Plan[None, T], until: float) -> T:
        async def answer(request: Request) -> Any:
            return self._answer(request, until)

        return await drive(plan.start(None, until), answer)

    def _answer(self, request: Request, until: float) -> Any:
        match request:
            case Load(wanted):
                return self.registers.load(wanted, until)
            case Swaps(swaps):
                return self.registers.swap(swaps, until)
            case Scan(namespace, prefix):
                return self.registers.scan(namespace, prefix, until)
        raise TypeError(f"a request for other registers: {request}")

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        outcome = await super().take(key, claim, ask, until)
        # A pause or a closing concerns all, and candidates want to know who leads.
        behind = isinstance(outcome, Queued) and outcome.place > 0 and not ask.candidacy
        if isinstance(outcome, Queued) and behind and outcome.reason in ("held", "reserved"):
            return replace(outcome, seen=f"{outcome.seen}{_IN_LINE}{claim}")
        return outcome

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        pause = self._poll.first
        while (left := until - clock.now()) > 0 and not self._may_have_changed(key, seen, until):
            await self._sleep(min(pause, left))
            pause = min(pause * self._poll.growth, self._poll.longest)

    def _may_have_changed(self, key: Key, seen: str, until: float) -> bool:
        try:
            (now,) = self.registers.load([Wanted(key)], until)
        except StoreError:
            return True
        if isinstance(now, StoreError):
            return True
        before, in_line, claim = seen.partition(_IN_LINE)
        if in_line and before.startswith(f"{now.incarnation.id}:"):
            return may_ask(present(now), claim, now.now)
        return seen_of(now.record, now.incarnation.id) != before

    def let_go(self) -> None:
        """See Store.close: whoever made the registers closes them."""


class RegisterStore(BlockingTogether[RegisterOperations]):
    """The blocking Store over registers."""

    def __init__(self, registers: Registers, dialect: Deciding, poll: Poll = NETWORK) -> None:
        super().__init__(RegisterOperations(registers, dialect, _block, poll))


class InlineRegisterStore(RegisterOperations):
    """The AsyncStore over registers that answer at once: a thread would cost more."""

    def __init__(self, registers: Registers, dialect: Deciding, poll: Poll = LOCAL) -> None:
        super().__init__(registers, dialect, _suspend, poll)

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        self.let_go()


async def _block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the blocking side awaits nothing else


async def _suspend(seconds: float) -> None:
    from asyncio import sleep  # blocking programs do not import asyncio

    await sleep(seconds)
