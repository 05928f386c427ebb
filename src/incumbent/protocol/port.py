"""The protocols' interface to the world: of blocking code, of asyncio and of the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeVar

from incumbent.durations import backoff_delay
from incumbent.errors import StoreError
from incumbent.model import Key, Parting
from incumbent.stores.base import AsyncLeases, AsyncTogether, Limits, Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Debt:
    """The owed release of a claim that may still stand in the store.

    `until`: the instant at which the ttl has ended the claim, unless a take of it is in doubt.
    `takes_in_doubt`: the number of takes that may still arrive. With one, the answer "no such
    claim" is not final, for the store may grant the late take afterwards; with more, "released" is
    not final either. So it is repeated until `until`, and after that until the store answers once.
    `closed_until`: the instant until which at_least_for keeps the name closed, by our clock.
    `reserve_for`: the successor for which the name is reserved until `reserved_until`, likewise.
    `only_leaves_line`: the claim certainly holds nothing.
    `shared`: the claim was made with permits. `collected`: as garbage, still held.
    """

    key: Key
    claim: str
    slot: str | None
    until: float
    takes_in_doubt: int
    closed_until: float
    reserve_for: str | None = None
    reserved_until: float = -inf
    only_leaves_line: bool = False
    shared: bool = False
    collected: bool = False

    def parting(self, now: float) -> Parting:
        """The further effects of a give at `now`; a closing has precedence over a reservation."""
        closed, reserved = self.closed_until - now, self.reserved_until - now
        if closed > 0:
            return Parting(closed, None, self.slot, self.shared)
        if self.reserve_for is not None and reserved > 0:
            return Parting(reserved, self.reserve_for, self.slot, self.shared)
        return Parting(slot=self.slot, shared=self.shared)


class Port(AsyncLeases, Protocol):
    """A store with a clock, random numbers and waits. Instants are seconds on `now`'s clock."""

    limits: Limits
    """The bounds of the requests at the store."""

    def now(self) -> float:
        """The present instant, on a clock that keeps running during a suspend."""
        ...

    def draw_claim(self) -> str:
        """128 random bits as 32 hexadecimal digits."""
        ...

    def jitter(self) -> float:
        """A uniform random number in [0, 1)."""
        ...

    def owe(self, debt: Debt) -> None:
        """Have the keeper pay `debt`, however long that takes. Never blocks or raises."""
        ...

    def log_outage(
        self, key: Key, error: StoreError, waited: float = 0.0, timeout: float | None = None
    ) -> None:
        """Log that a caller has to wait for the store; the longer the outage, the rarer the log.

        `waited`: seconds so far; `timeout`: seconds in all, inf for no end.
        """
        ...

    async def sleep_until(self, instant: float) -> None:
        """Wait until `instant`."""
        ...


class ManyPort(Port, AsyncTogether, Protocol):
    """A Port that asks for several leases in one request, or else one after another."""


async def pace(port: Port, unchanged: int, wake: float) -> None:
    """Pause before a wait for a hint: many spurious hints must not become a busy loop.

    `unchanged`: answers in a row without news; `wake`: the instant to ask again without a hint.
    """
    # Not after a single one: a hint often comes for the change that was answered already.
    if unchanged > 1:
        pause = backoff_delay(unchanged, port.jitter(), base=0.001, cap=0.05)
        await port.sleep_until(min(wake, port.now() + pause))


def retry_delay(port: Port, error: StoreError, failures: int) -> float:
    """Seconds until the next try, after `failures` in a row."""
    return max(backoff_delay(failures, port.jitter()), error.retry_after or 0.0)


class BlockingPort(Port, Protocol):
    """A Port whose waits block, so that its store can also be called directly."""

    @property
    def store(self) -> Store:
        """The store that this port calls."""
        ...
