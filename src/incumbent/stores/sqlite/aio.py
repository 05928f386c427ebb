"""The asynchronous side of `sqlite:`.

An operation takes microseconds, so it runs in the loop: a thread would cost more. Those that are
on the disk before they are answered (a take with a slot, a put, a closing) keep the loop for one
fsync.
While somebody else writes the coroutine sleeps; the loop is never held up by a peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

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
from incumbent.stores.sqlite.core import Core
from incumbent.stores.sqlite.insist import insist, watch
from incumbent.stores.sqlite.trouble import FileBusy

__all__ = ["AsyncSqliteStore"]

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSqliteStore:
    """See stores.base.AsyncStore. Nothing in it belongs to one loop."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        return await self._try(until, self._core.take, key, claim, ask)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew; the whole batch is one transaction."""
        return await self._try(until, self._core.renew, renewals)

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
        return await self._try(
            until, self._core.give, key, claim, token, closed_for, slot, reserve_for
        )

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return await self._try(until, self._core.put, key, field, value, guard)

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return await self._try(until, self._core.read, key)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return await self._try(until, self._core.scan, namespace, prefix)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""
        await watch(asyncio.sleep, self._core, key, seen, until)

    async def aclose(self) -> None:
        """See AsyncStore.aclose; all loops share the connections, and open them again."""
        self._core.pool.close()

    async def _try(
        self, until: float, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return operation(*args, **kwargs)
        except FileBusy:
            pass
        return await insist(asyncio.sleep, self._core, until, operation, *args, **kwargs)
