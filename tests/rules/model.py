"""A second, small model of the store contract, written from `stores.base` and docs/guarantees.md.

It shares no code with `incumbent.rules`: what both say is right, or was misread twice. It is slow,
keeps one clock, never fails, and forgets nothing. Instants and durations are seconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from incumbent.model import (
    ABSENT,
    Ask,
    ByClaim,
    ByVersion,
    Candidate,
    Field,
    GiveOutcome,
    Gone,
    Granted,
    Guard,
    Holding,
    Key,
    Past,
    PutOutcome,
    Queued,
    Record,
    Refused,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.rules.notices import notices_for

__all__ = ["Model"]


@dataclass
class Held:
    """A claim that holds a name, or used a slot."""

    claim: str
    holder: str
    token: int
    ttl: float
    since: float
    ends: float
    meta: bytes = b""
    permits: int | None = None

    def shown(self, now: float) -> Holding:
        left, age = self.ends - now, now - self.since
        return Holding(
            *(self.holder, self.token, left, self.ttl, age, self.meta, self.claim),
            permits=self.permits,
        )


@dataclass
class Waiting:
    claim: str
    holder: str
    silent_for: float
    fair: bool


@dataclass
class Name:
    token: int = 0
    held: list[Held] = field(default_factory=list)
    closed: tuple[Held, float, str] | None = None
    """The last holder, until when, and for whom it is reserved ("": nobody)."""
    slots: dict[str, Held] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    versions: int = 0
    candidates: dict[str, float] = field(default_factory=dict)
    line: list[Waiting] = field(default_factory=list)
    turn_ends: float = 0.0
    overtaken: int = 0
    dead: dict[str, float] = field(default_factory=dict)
    history: list[Past] = field(default_factory=list)
    changes: int = 0

    def at(self, now: float) -> Name:
        """The name at that instant: what has ended is gone."""
        self.held = [it for it in self.held if it.ends > now]
        self.slots = {name: it for name, it in self.slots.items() if it.ends > now}
        self.candidates = {who: ends for who, ends in self.candidates.items() if ends > now}
        self.dead = {claim: ends for claim, ends in self.dead.items() if ends > now}
        if self.closed and self.closed[1] <= now:
            self.closed = None
        return self

    def turn(self, begins: float) -> None:
        """The first in line has its turn, from `begins` on until its heartbeat is over."""
        self.turn_ends = begins + self.line[0].silent_for if self.line else 0.0


class Model:
    """The contract, with `now` as an argument; `wall` starts tokens and is shown in the history."""

    late_kept = 60.0

    def __init__(self) -> None:
        self.names: dict[Key, Name] = defaultdict(Name)
        self.epoch = "model"

    def take(self, key: Key, claim: str, ask: Ask, now: float, wall: float) -> TakeOutcome:
        name = self.names[key].at(now)
        if claim in name.dead:
            return Refused("closed", seen=self.seen(key))
        for mine in name.held:
            if mine.claim == claim:
                mine.ends = max(mine.ends, now + ask.ttl)
                return Granted(claim, mine.token, mine.ends - now, self.epoch)
        no = self._why_not(key, claim, ask, now)
        if no is None:
            return self._grant(name, claim, ask, now, wall)
        if ask.candidacy:
            name.candidates[ask.holder] = now + ask.candidacy
        if ask.queue is None or no.reason == "permits":
            return no
        looks_again = now + min(ask.ttl, ask.ttl if no.retry_after is None else no.retry_after)
        place = self._stand(name, claim, ask, now, looks_again)
        return Queued(no.reason, no.holders, no.retry_after, no.seen, place)

    def _why_not(self, key: Key, claim: str, ask: Ask, now: float) -> Refused | None:
        name, seen = self.names[key], self.seen(key)
        occupied = self._no_room(name, ask, now, seen) if name.held else None
        used = name.slots.get(ask.slot.name) if ask.slot else None
        if not occupied and used and used.claim != claim:
            return Refused("used", (used.shown(now),), used.ends - now, seen)
        if occupied or "pause" in name.fields:
            return occupied or Refused("paused", seen=seen)
        last, closed_until, successor = name.closed or (None, 0.0, "")
        if last and successor != ask.holder:
            left = closed_until - now
            if successor:
                return Refused("reserved", (Holding(successor, 0, left),), left, seen)
            return Refused("closed", (Holding(last.holder, last.token, left),), left, seen)
        first = name.line[0] if name.line and now < name.turn_ends and not last else None
        if first and first.claim != claim and (first.fair or name.overtaken >= 4):
            left = name.turn_ends - now
            return Refused("turn", (Holding(first.holder, 0, left),), left, seen)
        return None

    def _no_room(self, name: Name, ask: Ask, now: float, seen: str) -> Refused | None:
        shown = tuple(it.shown(now) for it in name.held)
        ends, permits = sorted(it.ends - now for it in name.held), name.held[0].permits
        if permits is None or ask.permits is None:
            return Refused("held", shown, ends[-1], seen)
        if permits != ask.permits:
            return Refused("permits", shown, ends[0], seen, permits=permits)
        full = permits > 0 and len(name.held) >= permits
        return Refused("held", shown, ends[0], seen) if full else None

    def _grant(self, name: Name, claim: str, ask: Ask, now: float, wall: float) -> Granted:
        name.token = max(name.token + 1, int(wall * 1e6))
        mine = Held(claim, ask.holder, name.token, ask.ttl, now, now + ask.ttl, ask.meta)
        mine.permits = ask.permits
        if not name.held:
            name.fields.pop("resign", None)
        name.held.append(mine)
        name.closed = None
        if ask.candidacy:
            name.candidates.pop(ask.holder, None)
        if ask.slot:
            name.slots[ask.slot.name] = Held(
                *(claim, ask.holder, name.token, ask.ttl, now, now + ask.slot.keep)
            )
        name.history = [*name.history, Past(ask.holder, name.token, wall)][-20:]
        name.changes += 1
        in_turn = not name.line or name.line[0].claim == claim or name.turn_ends <= now
        first = name.line[0] if name.line else None
        name.line = [it for it in name.line if it.claim != claim and not (in_turn and it is first)]
        name.overtaken = 0 if in_turn else name.overtaken + 1
        if in_turn:
            has_room = ask.permits == 0 or len(name.held) < (ask.permits or 0)
            name.turn(now if has_room else now + ask.ttl)
        return Granted(claim, name.token, ask.ttl, self.epoch)

    def _stand(self, name: Name, claim: str, ask: Ask, now: float, looks_again: float) -> int:
        assert ask.queue is not None
        if name.line and name.line[0].claim != claim and name.turn_ends <= now:
            del name.line[0]
            name.overtaken = 0
            name.turn(now)
        if not name.line:
            name.overtaken = 0
        if all(it.claim != claim for it in name.line):
            name.line.append(Waiting(claim, ask.holder, ask.queue.heartbeat, ask.queue.fair))
        place = [it.claim for it in name.line].index(claim)
        if place == 0:
            name.turn(looks_again)
        return place

    def renew(self, asked: Renewal, now: float) -> RenewOutcome:
        if asked.epoch != self.epoch:
            return Gone("store_restarted")
        name = self.names[asked.key].at(now)
        for mine in name.held:
            if (mine.claim, mine.token) == (asked.claim, asked.token):
                mine.ends = max(mine.ends, now + asked.ttl)
                if asked.meta is not None and asked.meta != mine.meta:
                    mine.meta = asked.meta
                    name.changes += 1
                pause, resign = (name.fields.get(it) for it in ("pause", "resign"))
                return Renewed(
                    notices_for(mine.token, pause and pause.value, resign and resign.value)
                )
        return Gone()

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        now: float,
        wall: float,
        closed_for: float = 0.0,
        slot: str | None = None,
        reserve_for: str | None = None,
    ) -> GiveOutcome:
        name = self.names[key].at(now)
        if token is None and self.late_kept:
            name.dead[claim] = now + self.late_kept
        if slot in name.slots and name.slots[slot].claim == claim:
            del name.slots[slot]
            name.changes += 1
        if name.line and name.line[0].claim == claim:
            alone = [it.ends for it in name.held if it.permits is None]
            del name.line[0]
            name.overtaken = 0
            name.turn(max([now, *alone]))
            name.changes += 1
        name.line = [it for it in name.line if it.claim != claim]
        for mine in name.held:
            if mine.claim == claim and token in (None, mine.token):
                name.held.remove(mine)
                name.turn(now)
                if closed_for > 0:
                    name.closed = (mine, now + closed_for, reserve_for or "")
                name.history = [
                    it._replace(ended=wall) if it.token == mine.token else it for it in name.history
                ]
                name.changes += 1
                return Released()
        return Gone()

    def put(self, key: Key, what: str, value: bytes | None, guard: Guard, now: float) -> PutOutcome:
        name = self.names[key].at(now)
        old = name.fields.get(what)
        by = next((it for it in name.held if it.permits is None), None)
        match guard:
            case ByClaim(claim, token):
                holds = by is not None and (by.claim, by.token) == (claim, token)
            case ByVersion(version):
                holds = old is not None and old.version == version
            case _:
                holds = guard is not ABSENT or old is None
        if not holds:
            return Stale()
        if value is None:
            name.changes += name.fields.pop(what, None) is not None
            return Stored(0)
        name.changes += 1
        name.versions += 1
        name.fields[what] = Field(value, name.versions)
        return Stored(name.versions)

    def read(self, key: Key, now: float) -> Record:
        name = self.names[key].at(now)
        _, closed_until, successor = name.closed or (None, now, "")
        latest = sorted(name.candidates.items(), key=lambda it: (it[1], it[0]))[-100:]
        return Record(
            key,
            tuple(it.shown(now) for it in name.held),
            closed_until - now,
            dict(name.fields),
            {slot: it.ends - now for slot, it in name.slots.items()},
            tuple(name.history),
            tuple(Candidate(who, ends - now) for who, ends in sorted(latest)),
            self.seen(key),
            successor,
        )

    def scan(self, namespace: str, prefix: str, now: float) -> tuple[Record, ...]:
        return tuple(
            self.read(key, now)
            for key in sorted(self.names)
            if key.namespace == namespace and key.name.startswith(prefix)
        )

    def holds(self, key: Key, claim: str, now: float) -> bool:
        return any(it.claim == claim for it in self.names[key].at(now).held)

    def has_given_up(self, key: Key, claim: str, now: float) -> bool:
        return claim in self.names[key].at(now).dead

    def seen(self, key: Key) -> str:
        changes = self.names[key].changes if key in self.names else 0
        return f"{self.epoch}:{changes}" if changes else ""
