"""Memory stores that read, decide and then write, with nothing that excludes others in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import ClassVar

from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.memory import MemoryTable
from tests.contract.worlds import FaultyMemoryStore

# Seconds between the reading and the writing, as they are two requests to a server.
_ROUND_TRIP = 0.0002


class ReadsThenWrites(FaultyMemoryStore):
    """All four operations that write do it on a copy of the record, which replaces the record."""

    racy: ClassVar[frozenset[str]] = frozenset({"take", "renew", "give", "put"})

    def __init__(self) -> None:
        self._mine = threading.local()
        super().__init__()

    @property
    def _table(self) -> MemoryTable:
        mine: MemoryTable = getattr(self._mine, "table", self._common)
        return mine

    @_table.setter
    def _table(self, table: MemoryTable) -> None:  # the base class sets it once
        self._common = table

    @contextmanager
    def _read_then_write(self, operation: str, key: Key) -> Iterator[None]:
        if operation not in self.racy:
            yield
            return
        common, mine = self._common, MemoryTable()
        mine.epoch = common.epoch
        if key in common._kept:
            mine._kept[key] = deepcopy(common._kept[key])
        self._mine.table = mine
        try:
            yield
            time.sleep(_ROUND_TRIP)
        finally:
            del self._mine.table
            common._kept.update(mine._kept)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        with self._read_then_write("take", key):
            return super().take(key, claim, ask, until)

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        with self._read_then_write("renew", renewals[0].key):
            return super().renew(renewals, until)

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        with self._read_then_write("give", key):
            return super().give(key, claim, token, until, parting=parting)

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        with self._read_then_write("put", key):
            return super().put(key, field, value, guard, until)


class TakesAreNotCompared(ReadsThenWrites):
    racy = frozenset({"take"})


class RenewalsAreNotCompared(ReadsThenWrites):
    racy = frozenset({"renew"})


class GivesAreNotCompared(ReadsThenWrites):
    racy = frozenset({"give"})


class PutsAreNotCompared(ReadsThenWrites):
    racy = frozenset({"put"})
