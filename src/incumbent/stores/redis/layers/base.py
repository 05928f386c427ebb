"""What stands between a caller and the connections, where there is more than one server to find.

A layer is written once, as coroutines over the operations of an `Exchange` (or of another layer).
The asynchronous side awaits them; the blocking side runs each in one step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from incumbent.errors import StoreError
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
from incumbent.stores.blocking import Operations
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.exchange import Exchange
from incumbent.stores.redis.resp import Program

__all__ = ["Layer", "Side"]

T = TypeVar("T")


class Side(ABC):
    """How one side, blocking or asynchronous, does what the layers need of the world."""

    @abstractmethod
    def exchange(self, site: Site, dialect: Dialect) -> Exchange[Any]:
        """The connections to one server."""

    @abstractmethod
    async def survey(
        self,
        sites: Sequence[Site],
        program: Callable[[Site], Program[T]],
        enough: int,
        until: float,
    ) -> list[T | StoreError]:
        """Ask all of them the same at once, each by a connection of its own.

        Returns as soon as `enough` have answered, or nobody else can by `until`.
        """

    @abstractmethod
    async def alone(self, work: Callable[[], Awaitable[None]], until: float) -> None:
        """Do this while no other task of the loop does. Threads do not wait for one another."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, and let others work meanwhile."""

    @abstractmethod
    async def each(
        self, works: Sequence[Callable[[float], Awaitable[T]]], until: float
    ) -> list[T | StoreError]:
        """What becomes of each work, which is told by when it must be done.

        One that takes all its time leaves the others theirs.
        """


class Layer:
    """Passes every operation on. Subclasses do what has to be done before and after."""

    def __init__(self, inner: Operations) -> None:
        self.inner = inner

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        return await self.inner.take(key, claim, ask, until)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return await self.inner.renew(renewals, until)

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
        return await self.inner.give(
            key, claim, token, until, closed_for=closed_for, reserve_for=reserve_for, slot=slot
        )

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return await self.inner.put(key, field, value, guard, until)

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return await self.inner.read(key, until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return await self.inner.scan(namespace, prefix, until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""
        await self.inner.wait_change(key, seen, until)

    def let_go(self) -> None:
        """See Operations.let_go."""
        self.inner.let_go()
