"""What the protocols need of the world; the blocking driver, asyncio and the simulator have it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeVar

from incumbent.durations import backoff_delay
from incumbent.errors import StoreError
from incumbent.model import Granted, Key
from incumbent.stores.base import AsyncLeases, AsyncTogether, Parting, Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Debt:
    """A claim that may still stand in the store and must go.

    `until`: then its ttl has settled it, unless it is in doubt.
    `doubt`: how many takes of it may still be on their way. With one, "no such claim" is not the
    last word of a store that would grant it to a late one; with more, "released" is not either. So
    the store is told again until `until`, and after it until it has answered once.
    `closed_until`: what at_least_for still asks of the name, by this process's clock.
    `reserve_for`: the successor for whom the name is kept free until `reserved_until`, likewise.
    `only_leaves_line`: the claim certainly holds nothing.
    `shared`: it was made with permits.
    """

    key: Key
    claim: str
    slot: str | None
    until: float
    doubt: int
    closed_until: float
    reserve_for: str | None = None
    reserved_until: float = -inf
    only_leaves_line: bool = False
    shared: bool = False

    def parting(self, now: float) -> Parting:
        """The keywords of a give at `now`; closing goes before a reservation."""
        parting: Parting = {"slot": self.slot}
        if self.shared:
            parting["shared"] = True
        closed, reserved = self.closed_until - now, self.reserved_until - now
        if closed > 0:
            parting["closed_for"] = closed
        elif self.reserve_for is not None and reserved > 0:
            parting["closed_for"] = reserved
            parting["reserve_for"] = self.reserve_for
        return parting


class Port(AsyncLeases, Protocol):
    """A store, and beside it clock, chance and waits. Instants are seconds on `now`'s clock."""

    def now(self) -> float:
        """The present instant, on a clock that goes on during suspend."""
        ...

    def draw_claim(self) -> str:
        """128 random bits as 32 hexadecimal digits."""
        ...

    def jitter(self) -> float:
        """A uniform random number in [0, 1)."""
        ...

    def hand_over(self, debt: Debt) -> None:
        """Have the keeper tell the store, for as long as it takes. Never blocks or raises."""
        ...

    def tell_outage(
        self, key: Key, error: StoreError, waited: float = 0.0, timeout: float | None = None
    ) -> None:
        """Report that somebody has to wait for the store, more rarely the longer that takes.

        `waited`: seconds so far; `timeout`: seconds in all, inf without an end.
        """
        ...

    async def sleep_until(self, instant: float) -> None:
        """Wait for an instant."""
        ...


class ManyPort(Port, AsyncTogether, Protocol):
    """A Port that asks for several leases at once, or at least one after another."""


E = TypeVar("E")


async def one_by_one(
    ask: Callable[[E], Awaitable[T]], each: Sequence[E], *, to_the_end: bool = True
) -> list[T | StoreError]:
    """The outcome of each; or those up to the first that is no grant."""
    outcomes: list[T | StoreError] = []
    for one in each:
        try:
            outcomes.append(await ask(one))
        except StoreError as error:
            outcomes.append(error)
        if not to_the_end and not isinstance(outcomes[-1], Granted):
            break
    return outcomes


async def pace(port: Port, again: int, wake: float) -> None:
    """Hints may be spurious: many of them must not become a busy loop.

    `again`: looks in a row without news; `wake`: the instant of the next look without a hint.
    """
    if again > 1:
        pause = backoff_delay(again, port.jitter(), base=0.001, cap=0.05)
        await port.sleep_until(min(wake, port.now() + pause))


def retry_delay(port: Port, error: StoreError, failures: int) -> float:
    """Seconds until the next try, after so many failures in a row."""
    return max(backoff_delay(failures, port.jitter()), error.retry_after or 0.0)


class BlockingPort(Port, Protocol):
    """A Port whose waits block, so that its store can also be asked at once."""

    @property
    def store(self) -> Store:
        """The store that the port asks."""
        ...


def run(protocol: Coroutine[Any, Any, T]) -> T:
    """Drive a protocol to its end in one step; its port blocks instead of suspending."""
    try:
        protocol.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    protocol.close()
    raise RuntimeError("a blocking protocol suspended: its port must not await anything")
