"""Runs a blocking store's operations within the event loop, for stores that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, Unpack

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
from incumbent.stores.base import Parting, Store

T = TypeVar("T")


class InlineAsyncStore:
    """An AsyncStore without `wait_change`. Each call takes microseconds: a thread costs more."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def _run(self, until: float, operation: Callable[[], T]) -> T:
        # The one place for what an engine adds to an operation, such as another try.
        return operation()

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return await self._run(until, lambda: self._store.take(key, claim, ask, until))

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return await self._run(until, lambda: self._store.renew(renewals, until))

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, **parting: Unpack[Parting]
    ) -> GiveOutcome:
        return await self._run(until, lambda: self._store.give(key, claim, token, until, **parting))

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return await self._run(until, lambda: self._store.put(key, field, value, guard, until))

    async def read(self, key: Key, until: float) -> Record:
        return await self._run(until, lambda: self._store.read(key, until))

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return await self._run(until, lambda: self._store.scan(namespace, prefix, until))

    async def aclose(self) -> None:
        """The blocking side owns whatever there is to close."""
