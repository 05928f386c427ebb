"""The blocking side: `operations`, each in one step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from weakref import WeakSet

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
from incumbent.stores.etcd.dial import dial
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.exchange import Site
from incumbent.stores.etcd.memory import Memory
from incumbent.stores.etcd.operations import Operations
from incumbent.stores.etcd.options import Endpoint
from incumbent.stores.etcd.wire import Wire

__all__ = ["EtcdStore"]


class _Blocking(Operations[Wire]):
    async def dial(self, endpoint: Endpoint, until: float) -> Wire:
        """See Exchange.dial."""
        return dial(self.site, endpoint, until)


class EtcdStore:
    """See stores.base.Store."""

    def __init__(self, site: Site, dialect: Dialect, memory: Memory) -> None:
        self.operations = _Blocking(site, dialect, memory)
        _stores.add(self)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        return run(self.operations.take(key, claim, ask, until))

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return run(self.operations.renew(renewals, until))

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
        return run(
            self.operations.give(
                key, claim, token, until, closed_for=closed_for, reserve_for=reserve_for, slot=slot
            )
        )

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return run(self.operations.put(key, field, value, guard, until))

    def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return run(self.operations.read(key, until))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return run(self.operations.scan(namespace, prefix, until))

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreUnavailable if nobody can listen."""
        run(self.operations.wait_change(key, seen, until))

    def close(self) -> None:
        """See Store.close. Threads that wait for a change return."""
        self.operations.let_go()

    def drop(self) -> None:
        """In a fork's child: give the descriptors back. What is in use was other threads'."""
        operations = self.operations
        operations.idle, operations.streams = {}, set()
        operations.memory.forget()
        for wire in list(operations.all):
            wire.drop()


_stores: WeakSet[EtcdStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
