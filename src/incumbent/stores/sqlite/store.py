"""The blocking side of `sqlite:`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from incumbent._core.onestep import run
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

__all__ = ["SqliteStore"]

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore:
    """See stores.base.Store. Any number of threads and processes of one host may share the file."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        return self._try(until, self._core.take, key, claim, ask)

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew; the whole batch is one transaction."""
        return self._try(until, self._core.renew, renewals)

    def give(
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
        return self._try(until, self._core.give, key, claim, token, closed_for, slot, reserve_for)

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return self._try(until, self._core.put, key, field, value, guard)

    def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return self._try(until, self._core.read, key)

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return self._try(until, self._core.scan, namespace, prefix)

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""
        run(watch(_nap, self._core, key, seen, until))

    def close(self) -> None:
        """See Store.close."""
        self._core.pool.close()

    def _try(self, until: float, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return operation(*args, **kwargs)
        except FileBusy:
            pass
        return run(insist(_nap, self._core, until, operation, *args, **kwargs))


async def _nap(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this side is for
