"""A memory store whose answers can be lost, refused or delayed, one operation at a time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from enum import Enum, auto
from itertools import count
from typing import TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.memory import AsyncMemoryStore, MemoryEngine, MemoryStore

T = TypeVar("T")
_labels = count()


class Fault(Enum):
    NOT_SENT = auto()
    LOST_REQUEST = auto()
    LOST_REPLY = auto()


class FaultyStore(MemoryStore):
    """`plan(op, *faults)` meets the next calls of an operation; `delay` precedes every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.delay = 0.0
        self.down = False
        self._faults: dict[str, deque[Fault | None]] = {}

    def plan(self, op: str, *faults: Fault | None) -> None:
        self._faults.setdefault(op, deque()).extend(faults)

    def next_fault(self, op: str) -> Fault | None:
        self.calls[op] += 1
        if self.down:
            return Fault.NOT_SENT
        faults = self._faults.get(op)
        return faults.popleft() if faults else None

    def before(self, op: str) -> Fault | None:
        fault = self.next_fault(op)
        if fault is Fault.NOT_SENT:
            raise StoreUnavailable("planned: not sent")
        if fault is Fault.LOST_REQUEST:
            raise OutcomeUnknown("planned: the request was lost")
        return fault

    @staticmethod
    def after(fault: Fault | None, outcome: T) -> T:
        if fault is Fault.LOST_REPLY:
            raise OutcomeUnknown("planned: the reply was lost")
        return outcome

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        fault = self.before("take")
        outcome = super().take(key, claim, ask, until)
        time.sleep(self.delay)
        return self.after(fault, outcome)

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        fault = self.before("renew")
        return self.after(fault, super().renew(renewals, until))

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        fault = self.before("give")
        outcome = super().give(key, claim, token, until, parting=parting)
        return self.after(fault, outcome)

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        fault = self.before("put")
        return self.after(fault, super().put(key, field, value, guard, until))

    def read(self, key: Key, until: float) -> Record:
        self.before("read")
        return super().read(key, until)


class AsyncFaultyStore(AsyncMemoryStore):
    """The same with await points before and after every operation, where it can be cancelled."""

    def __init__(self, store: FaultyStore) -> None:
        super().__init__(store)
        self.faulty = store

    async def _pause(self) -> None:
        await asyncio.sleep(self.faulty.delay)

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        await self._pause()
        outcome = await super().take(key, claim, ask, until)
        await self._pause()
        return outcome

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        await self._pause()
        outcome = await super().give(key, claim, token, until, parting=parting)
        await self._pause()
        return outcome

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        await self._pause()
        outcome = await super().put(key, field, value, guard, until)
        await self._pause()
        return outcome


class FaultyEngine(MemoryEngine):
    """Pass it as `store=`; its `faulty` is where faults are planned."""

    def __init__(self) -> None:
        self.faulty = FaultyStore()
        super().__init__(f"memory:faulty-{next(_labels)}", self.faulty)
        self._async_faulty = AsyncFaultyStore(self.faulty)

    def async_store(self) -> AsyncFaultyStore:
        return self._async_faulty

    def stand(self, key: Key, *names: str) -> bool:
        """Whether all of these are candidates, as the store knows it."""
        return {it.holder for it in self.faulty.read(key, clock.now() + 30).candidates} >= {*names}
