"""The blocking side of a store whose operations are written once, as coroutines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

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
from incumbent.protocol.port import run
from incumbent.stores.plan import Planned

__all__ = ["BlockingStore"]


Ops = TypeVar("Ops", bound=Planned[Any])


class BlockingStore(Generic[Ops]):
    """See stores.base.Store: `operations` whose coroutines never suspend, each in one step."""

    def __init__(self, operations: Ops) -> None:
        self.operations = operations

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return run(self.operations.take(key, claim, ask, until))

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
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
        return run(
            self.operations.give(
                key, claim, token, until, closed_for=closed_for, reserve_for=reserve_for, slot=slot
            )
        )

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return run(self.operations.put(key, field, value, guard, until))

    def read(self, key: Key, until: float) -> Record:
        return run(self.operations.read(key, until))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return run(self.operations.scan(namespace, prefix, until))

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        run(self.operations.wait_change(key, seen, until))

    def close(self) -> None:
        self.operations.let_go()
