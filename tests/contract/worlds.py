"""Worlds that play every fault without a server: a memory store whose clock can be moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
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
from incumbent.stores.memory import MemoryEngine, MemoryStore, MemoryTable
from incumbent.testing.contract import World

T = TypeVar("T")


class FaultyMemoryStore(MemoryStore):
    """Loses answers, or cannot be reached, when it is told to; `shift` moves its clocks."""

    def __init__(self, table: MemoryTable | None = None, restart_wait: float | None = None) -> None:
        super().__init__(
            lambda: clock.now() + self.shift, lambda: clock.wall() + self.shift, restart_wait
        )
        self.shift = 0.0
        self.away = False
        self.loses_answers = 0
        if table is not None:
            self._table = table

    def _in_reach(self, request: Callable[[], T]) -> T:
        if self.away:
            raise StoreUnavailable("the store is away")
        return request()

    def _through(self, request: Callable[[], T]) -> T:
        answer = self._in_reach(request)
        if self.loses_answers > 0:
            self.loses_answers -= 1
            raise OutcomeUnknown("the answer was lost")
        return answer

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return self._through(partial(super().take, key, claim, ask, until))

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return self._through(partial(super().renew, renewals, until))

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        return self._through(partial(super().give, key, claim, token, until, parting=parting))

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return self._through(partial(super().put, key, field, value, guard, until))

    def read(self, key: Key, until: float) -> Record:
        return self._in_reach(partial(super().read, key, until))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return self._in_reach(partial(super().scan, namespace, prefix, until))


class MemoryWorld(World):
    """Every fault that a store without connections can have; time passes when it is told to."""

    def __init__(self, memory: FaultyMemoryStore) -> None:
        super().__init__(MemoryEngine(store=memory))
        self.memory = memory

    def pass_time(self, seconds: float) -> None:
        self.memory.shift += seconds

    def restart(self, *, empty: bool) -> None:
        self.memory.restart(empty=empty)

    def failover(self) -> None:
        self.memory.restart(empty=False)

    @contextmanager
    def lose_reply(self, times: int = 10) -> Iterator[None]:
        self.memory.loses_answers = times
        yield
        self.memory.loses_answers = 0

    @contextmanager
    def cut(self) -> Iterator[None]:
        self.memory.away = True
        yield
        self.memory.away = False

    def other_client(self, clock_offset: float = 0.0) -> MemoryEngine:
        """All clients count on the one clock of this process; only the wall clock is another."""
        other = copy(self.memory)
        other._wall = lambda: clock.wall() + self.memory.shift + clock_offset
        return MemoryEngine(store=other)
