"""Candidates with priorities in virtual time: the real protocols on the contract's own table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from incumbent.election import with_rank
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.locks.options import lease_request, rank_from
from incumbent.model import (
    Ask,
    GiveOutcome,
    Guard,
    Key,
    Notice,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.protocol.acquire import acquire
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.port import Debt
from incumbent.protocol.renew import renew
from incumbent.stores.base import NO_LIMITS
from incumbent.stores.memory import MemoryEngine, MemoryTable
from tests.sim.tasks import Exchange, Nap, Schedule, Task, wish

CAN = MemoryEngine.capabilities
WALL = 1_700_000_000.0
MOST_EVENTS = 200_000


@dataclass
class Term:
    """One leadership. `notice`: what ended it, if anybody asked; `ended`: None while it lasts."""

    leader: Candidate
    began: float
    ended: float | None = None
    notice: Notice | None = None


@dataclass
class Fleet(Schedule):
    """The store, and what everybody did."""

    seed: int = 0
    table: MemoryTable = field(default_factory=MemoryTable)
    terms: list[Term] = field(default_factory=list)
    asked: list[tuple[float, Candidate]] = field(default_factory=list)
    """Who wrote a notice, when."""
    looked: list[tuple[Any, ...]] = field(default_factory=list)
    """Who looked at whose term, when."""
    away: Callable[[float], bool] = lambda now: False
    """Whether the store gives no answer to who looks or writes a notice."""

    def __post_init__(self) -> None:
        super().__init__()
        self.rng = Random(self.seed)
        self.listeners: list[tuple[Task, int]] = []
        self.claims = 0

    def join(self, name: str, priority: int | None, **settings: Any) -> Candidate:
        """A candidate that stands from `joins` until it dies at `leaves`."""
        return Candidate(self, name, priority, **settings)

    def play(self) -> None:
        """Until everybody is gone."""
        assert self.run(MOST_EVENTS), "no end"

    def changed(self) -> None:
        """Wake who waits."""
        told, self.listeners = self.listeners, []
        for task, serial in told:
            self.at(self.now + 0.001, task.resume, serial)

    def leader_at(self, instant: float) -> str | None:
        for term in self.terms:
            if term.began <= instant and (term.ended is None or instant < term.ended):
                return term.leader.name
        return None


class Candidate:
    """A process that stands, leads, gives back when it is asked to, and stands again."""

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        priority: int | None,
        *,
        joins: float = 0.0,
        leaves: float = 3600.0,
        lasts: float = 1e9,
        step_down_after: float | None = None,
        ttl: float = 15.0,
    ) -> None:
        self.fleet, self.name, self.priority = fleet, name, priority
        self.leaves, self.lasts = leaves, lasts
        """`lasts`: seconds of a term after which it crashes, and comes back."""
        self.alive = True
        self.frozen = False
        self.backlog: list[Any] = []
        wanted = lease_request("default", "a", CAN, ttl=ttl, holder=name)
        rank = rank_from(priority, step_down_after, wanted, CAN)
        self.step_down_after = rank.step_down_after if rank else 0.0
        meta = with_rank(b'{"at":"x"}', rank)
        self.wanted: LeaseRequest = wanted.asking(meta=meta, candidacy=2.5 * ttl)._replace(
            rank=rank
        )
        self.held: Claim | None = None
        self.task = Task(self, self._live())
        fleet.at(joins, self.task.resume, 0)
        fleet.at(leaves, self.die)

    def grant(self, task: Task, wished: Exchange | Nap) -> None:
        assert isinstance(wished, Nap)
        if wished.until < 1e9:
            self.fleet.at(wished.until, task.resume, task.serial)

    def die(self) -> None:
        """SIGKILL: nothing is given back."""
        self.alive = False
        self._forget()
        self.task.kill()

    def _forget(self) -> None:
        if self.held is not None:
            # Or it would be given back when Python collects it.
            self.held.machine.note_forked()
            self._ended(None)

    def _ended(self, notice: Notice | None) -> None:
        self.held = None
        self.fleet.terms[-1].ended, self.fleet.terms[-1].notice = self.fleet.now, notice

    async def _live(self) -> None:
        fleet, every = self.fleet, self.wanted.policy.renew_every
        port = Port(self)
        while True:
            held = self.held = await acquire(cast("Any", port), self.wanted, None)
            fleet.terms.append(Term(self, fleet.now))
            end = fleet.now + self.lasts
            while held.machine.valid(fleet.now) and fleet.now < end:
                await port.sleep_until(fleet.now + every)
                await renew(cast("Any", port), [held])
            if held.machine.valid(fleet.now):
                self._forget()
                del held
                await port.sleep_until(fleet.now + 1)
                continue
            self._ended(held.notice)
            port.owe(held.debt(fleet.now, undo_slot=False))
            await port.sleep_until(fleet.now + every * (1 + port.jitter()))


class Port:
    """A Port whose store answers at once."""

    limits = NO_LIMITS

    def __init__(self, of: Candidate) -> None:
        self._of, self._fleet, self._table = of, of.fleet, of.fleet.table
        self.jitter = of.fleet.rng.random

    def now(self) -> float:
        return self._fleet.now

    def draw_claim(self) -> str:
        self._fleet.claims += 1
        return f"{self._fleet.claims:032x}"

    def owe(self, debt: Debt) -> None:
        now = self.now()
        if self._of.alive:
            self._table.give(debt.key, debt.claim, None, now, WALL + now, debt.parting(now))
            self._fleet.changed()

    def log_outage(self, key: Key, error: StoreError, *_: float | None) -> None: ...

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return self._table.take(key, claim, ask, self.now(), WALL + self.now(), 0.0)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return [self._table.renew(renewal, self.now()) for renewal in renewals]

    async def give(self, *_: Any, **__: Any) -> GiveOutcome:
        raise AssertionError("what was lost is owed, and not released")

    async def read(self, key: Key, until: float) -> Record:
        if self._fleet.away(self.now()):
            raise StoreUnavailable("away")
        record = self._table.read(key, self.now())
        tokens = [holding.token for holding in record.holdings]
        self._fleet.looked.append((self.now(), self._of, *tokens))
        return record

    async def put(
        self, key: Key, name: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        self._fleet.asked.append((self.now(), self._of))
        if self._fleet.away(self.now()):
            raise StoreUnavailable("away")
        return self._table.put(key, name, value, guard, self.now())

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        if self._table.seen(key) == seen:
            self._fleet.listeners.append((self._of.task, self._of.task.serial))
            await wish(Nap(until))

    async def sleep_until(self, instant: float) -> None:
        await wish(Nap(instant))
