"""Runs a blocking store's operations within the event loop, for stores that answer at once."""

from __future__ import annotations

from collections.abc import Sequence

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
from incumbent.stores.base import Store

__all__ = ["InlineAsyncStore"]


class InlineAsyncStore:
    """An AsyncStore without `wait_change`. Each call takes microseconds: a thread costs more."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        return self._store.take(key, claim, ask, until)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return self._store.renew(renewals, until)

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
        return self._store.give(
            key, claim, token, until, closed_for=closed_for, reserve_for=reserve_for, slot=slot
        )

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return self._store.put(key, field, value, guard, until)

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return self._store.read(key, until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return self._store.scan(namespace, prefix, until)

    async def aclose(self) -> None:
        """The blocking side owns whatever there is to close."""
