"""The executable specification of the store contract: one table, no clock, no I/O.

`MemoryTable` is the whole contract, with every instant as an argument: the simulator runs it as its
server; `stores.memory` puts it behind a mutex and this process's clock.

`Line` is the line of the waiters for one lease, in the order of arrival. Only the first in line has
to show that it is alive: it asks again when the holder's ttl runs out, or when it is woken. If it
stays silent for longer than its heartbeat, the next waiter becomes the first.
"""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from incumbent.errors import StoreUnavailable
from incumbent.model import (
    OVERTAKEN_MOST,
    UNLIMITED,
    Ask,
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
    Queue,
    Queued,
    Record,
    Refused,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Slot,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.stores.findings import restart_words, wait_after_restart
from incumbent.stores.notices import PAUSE, RESIGN, guard_holds, notices_for

HISTORY_KEPT = 20
"""The most past holdings that a record keeps."""

CANDIDATES_KEPT = 100
"""The most candidates that a record lists: those whose candidacy ends last."""

LATE_KEPT = 60.0
"""Seconds for which takes are refused of a claim that was given up in doubt."""

_SWEEP_EVERY = 256
_PUT_KEEPS = 86_400.0


# -- the line --------------------------------------------------------------------------------------


class Waiter(NamedTuple):
    """A claim in line; `holder` is its name, for display."""

    claim: str
    holder: str
    queue: Queue


@dataclass(slots=True)
class Line:
    """The waiters for one lease. Instants (`now`, `due`) are on the store's clock."""

    waiting: dict[str, Waiter] = field(default_factory=dict)
    due: float = -inf
    """The instant until which it is the first waiter's turn."""
    overtaken: int = 0
    """How often another claim was granted before the present first."""

    def first(self) -> Waiter | None:
        """The first waiter in line, if any."""
        return next(iter(self.waiting.values()), None)

    def before(self, claim: str, now: float) -> Waiter | None:
        """The waiter that precedes `claim` although the lease is free, if any."""
        first = self.first()
        if first is None or first.claim == claim or self.due <= now:
            return None
        return first if first.queue.fair or self.overtaken >= OVERTAKEN_MOST else None

    def stand(self, waiter: Waiter, now: float, looks_in: float) -> int:
        """Join the line or stay in it; returns the place. `looks_in`: seconds to the next look."""
        first = self.first()
        if first is not None and first.claim != waiter.claim and self.due <= now:
            del self.waiting[first.claim]
            self._begin_turn(now)
        elif first is None:
            self.overtaken = 0
        self.waiting.setdefault(waiter.claim, waiter)
        if self.first() == waiter:
            self.due = now + looks_in + waiter.queue.heartbeat
        return list(self.waiting).index(waiter.claim)

    def granted(self, claim: str, now: float, ttl: float) -> None:
        """Update the line after a grant to `claim`, which need not be in line."""
        first = self.first()
        self.waiting.pop(claim, None)
        if first is None:
            return
        if first.claim != claim and self.due > now:
            self.overtaken += 1
            return
        # It was the first waiter's turn, or its turn passed unused.
        self.waiting.pop(first.claim, None)
        self._begin_turn(now + ttl)

    def free(self, now: float) -> None:
        """Begin the first waiter's turn, because the lease was given back."""
        first = self.first()
        self.due = now + first.queue.heartbeat if first else -inf

    def leave(self, claim: str, now: float, looks_in: float) -> bool:
        """Remove `claim`; True if it was the first in line, so that another waiter may be now."""
        first = self.first()
        self.waiting.pop(claim, None)
        if first is None or first.claim != claim:
            return False
        self._begin_turn(now + looks_in)
        return True

    def _begin_turn(self, now: float) -> None:
        self.overtaken = 0
        self.free(now)


# -- the table -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Held:
    claim: str
    token: int
    holder: str
    ttl: float
    meta: bytes
    since: float
    expires: float
    permits: int | None = None


@dataclass(slots=True)
class _Closing:
    holder: str
    token: int
    expires: float
    reserved_for: str = ""


@dataclass(slots=True)
class _Entry:
    token: int = 0
    held: _Held | None = None
    sharers: dict[str, _Held] = field(default_factory=dict)
    closing: _Closing | None = None
    fields: dict[str, Field] = field(default_factory=dict)
    slots: dict[str, _Held] = field(default_factory=dict)
    history: deque[Past] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    candidates: dict[str, float] = field(default_factory=dict)
    line: Line = field(default_factory=Line)
    version: int = 0
    changes: int = 0
    forget_at: float = 0.0

    def holding(self, now: float) -> _Held | None:
        held = self.held
        return held if held is not None and held.expires > now else None

    def sharing(self, now: float) -> list[_Held]:
        """The holders that share the lease now."""
        self.sharers = {claim: one for claim, one in self.sharers.items() if one.expires > now}
        return list(self.sharers.values())

    def holders(self, now: float) -> list[_Held]:
        """All present holders of the lease."""
        held = self.holding(now)
        return [held] if held is not None else self.sharing(now)

    def of(self, claim: str, now: float) -> _Held | None:
        """The claim's holding, exclusive or shared."""
        held = self.holding(now)
        return held if held is not None and held.claim == claim else self._shared_by(claim, now)

    def _shared_by(self, claim: str, now: float) -> _Held | None:
        held = self.sharers.get(claim)
        return held if held is not None and held.expires > now else None

    def closed(self, now: float) -> _Closing | None:
        closing = self.closing
        return closing if closing is not None and closing.expires > now else None


class MemoryTable:
    """The contract with every instant as an argument: `now` counts ttls, `wall` starts tokens."""

    late_kept = LATE_KEPT
    """LATE_KEPT; or 0.0 to be a store that treats a late take as a new one, as some stores do."""

    def __init__(self, started: float | None = None) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._given_up: dict[tuple[Key, str], float] = {}
        self._started = started
        self._longest = 0.0
        self._takes = 0
        self.epoch = uuid.uuid4().hex

    def restart(self, now: float, *, empty: bool) -> None:
        """Begin a new incarnation; `empty` loses all data, as a store without a disk does."""
        self.epoch = uuid.uuid4().hex
        self._started = now
        held = [one for entry in self._entries.values() for one in entry.holders(now)]
        self._longest = 0.0 if empty else max((one.ttl for one in held), default=0.0)
        if empty:
            self._entries.clear()
            self._given_up.clear()

    def take(
        self,
        key: Key,
        claim: str,
        ask: Ask,
        now: float,
        wall: float,
        restart_wait: float | None = None,
    ) -> TakeOutcome:
        """See Store.take; `restart_wait`: see wait_after_restart."""
        self._admit(wait_after_restart(restart_wait, ask.ttl, self._longest), now)
        self._sweep(now)
        if self._given_up.get((key, claim), now) > now:
            return Refused("closed", seen=self.seen(key))
        entry = self._entries.setdefault(key, _Entry())
        held = entry.of(claim, now)
        if held is not None:
            held.expires = max(held.expires, now + ask.ttl)
            return Granted(claim, held.token, held.expires - now, self.epoch)
        refusal = _refusal(entry, claim, ask, now, self.seen(key))
        if refusal is None:
            return self._grant(entry, claim, ask, now, wall)
        if ask.candidacy > 0:
            entry.candidates = _standing(entry.candidates, ask, now)
        return _in_line(entry.line, claim, ask, now, refusal)

    def _admit(self, wait: float, now: float) -> None:
        if self._started is not None and now < self._started + wait:
            left = self._started + wait - now
            raise StoreUnavailable(
                restart_words("the store", "started", now - self._started, left),
                retry_after=left,
            )

    def _grant(self, entry: _Entry, claim: str, ask: Ask, now: float, wall: float) -> Granted:
        entry.token = max(entry.token + 1, int(wall * 1_000_000))
        expires = now + ask.ttl
        held = _Held(claim, entry.token, ask.holder, ask.ttl, ask.meta, now, expires, ask.permits)
        joins = ask.permits is not None and bool(entry.sharing(now))
        if ask.permits is None:
            entry.held, room = held, False
        else:
            entry.sharers[claim] = held
            room = not ask.permits or len(entry.sharers) < ask.permits
        entry.closing = None
        if not joins:
            # A notice is for earlier holders. If the lease is shared, it still applies to them.
            entry.fields.pop(RESIGN, None)
        if ask.candidacy > 0:
            entry.candidates.pop(ask.holder, None)
        entry.line.granted(claim, now, 0.0 if room else ask.ttl)
        entry.slots = {name: used for name, used in entry.slots.items() if used.expires > now}
        if ask.slot is not None:
            entry.slots[ask.slot.name] = _slot_record(held, now + ask.slot.keep)
        entry.history.append(Past(ask.holder, entry.token, wall))
        entry.changes += 1
        entry.forget_at = now + max(ask.ttl, ask.keep_record)
        return Granted(claim, entry.token, ask.ttl, self.epoch)

    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        """See Store.renew, for one lease."""
        if renewal.epoch != self.epoch:
            return Gone("store_restarted")
        entry = self._entries.get(renewal.key)
        held = entry and entry.of(renewal.claim, now)
        if not entry or not held or held.token != renewal.token:
            return Gone()
        held.expires = max(held.expires, now + renewal.ttl)
        if renewal.meta not in (None, held.meta):
            held.meta = renewal.meta or b""
            entry.changes += 1
        pause, resign = (entry.fields.get(name) for name in (PAUSE, RESIGN))
        return Renewed(
            notices_for(
                held.token,
                None if pause is None else pause.value,
                None if resign is None else resign.value,
            )
        )

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
        shared: bool = False,
    ) -> GiveOutcome:
        """See Store.give; `shared` is not needed here, because the record says it."""
        if token is None and self.late_kept:
            self._given_up[key, claim] = now + self.late_kept
        entry = self._entries.get(key)
        if entry is None:
            return Gone()
        if slot is not None and slot in entry.slots and entry.slots[slot].claim == claim:
            del entry.slots[slot]
            entry.changes += 1
        other, held = entry.holding(now), entry.of(claim, now)
        if entry.line.leave(claim, now, other.expires - now if other else 0.0):
            entry.changes += 1
        if held is None or token not in (None, held.token):
            return Gone()
        if entry.sharers.pop(claim, None) is None:
            entry.held = None
        entry.line.free(now)
        if closed_for > 0:
            until = now + closed_for
            entry.closing = _Closing(held.holder, held.token, until, reserve_for or "")
        _end_history(entry.history, held.token, wall)
        entry.changes += 1
        return Released()

    def put(self, key: Key, name: str, value: bytes | None, guard: Guard, now: float) -> PutOutcome:
        entry = self._entries.get(key, _Entry())
        holding = entry.holding(now)
        held = (holding.claim, holding.token) if holding else None
        if not guard_holds(guard, entry.fields.get(name), held):
            return Stale()
        entry.changes += 1
        # Versions must outlive the last field for a while, or an old guard could match again.
        entry.forget_at = max(entry.forget_at, now + _PUT_KEEPS)
        if value is None:
            entry.fields.pop(name, None)
            return Stored(0)
        self._entries[key] = entry
        entry.version += 1
        entry.fields[name] = Field(value, entry.version)
        return Stored(entry.version)

    def read(self, key: Key, now: float) -> Record:
        entry = self._entries.get(key)
        if entry is None:
            return Record(key)
        closed = entry.closed(now)
        return Record(
            key,
            tuple(_holding_of(held, now) for held in entry.holders(now)),
            closed.expires - now if closed else 0.0,
            dict(entry.fields),
            {name: slot.expires - now for name, slot in entry.slots.items() if slot.expires > now},
            tuple(entry.history),
            _candidates(entry, now),
            self.seen(key),
            closed.reserved_for if closed else "",
        )

    def scan(self, namespace: str, prefix: str, now: float) -> tuple[Record, ...]:
        keys = sorted(
            key
            for key in self._entries
            if key.namespace == namespace and key.name.startswith(prefix)
        )
        return tuple(self.read(key, now) for key in keys)

    def seen(self, key: Key) -> str:
        """The value that `wait_change` compares."""
        entry = self._entries.get(key)
        return f"{self.epoch}:{entry.changes}" if entry else ""

    def _sweep(self, now: float) -> None:
        self._takes += 1
        if self._takes % _SWEEP_EVERY:
            return
        for key in [key for key, entry in self._entries.items() if _forgettable(entry, now)]:
            del self._entries[key]
        self._given_up = {claim: until for claim, until in self._given_up.items() if until > now}


def _in_the_way(entry: _Entry, ask: Ask, now: float, seen: str) -> Refused | None:
    """The refusal because of the present holders, if there is no room beside them."""
    held, sharing = entry.holding(now), entry.sharing(now)
    if held is not None:
        return Refused("held", (_holding_of(held, now),), held.expires - now, seen)
    if not sharing:
        return None
    holders = tuple(_holding_of(one, now) for one in sharing)
    left = min(one.expires for one in sharing) - now
    if ask.permits is None:
        return Refused("held", holders, max(one.expires for one in sharing) - now, seen)
    permits = sharing[0].permits or UNLIMITED
    if ask.permits != permits:
        return Refused("permits", holders, left, seen, permits=permits)
    return Refused("held", holders, left, seen) if 0 < ask.permits <= len(sharing) else None


def _refusal(entry: _Entry, claim: str, ask: Ask, now: float, seen: str) -> Refused | None:
    occupied = _in_the_way(entry, ask, now, seen)
    if occupied is not None:
        return occupied
    used = _used(entry, claim, ask.slot)
    if used is not None and used.expires > now:
        return Refused("used", (_holding_of(used, now),), used.expires - now, seen)
    if PAUSE in entry.fields:
        return Refused("paused", seen=seen)
    closing = entry.closed(now)
    if closing is not None and not (closing.reserved_for and closing.reserved_for == ask.holder):
        return _shut(closing, closing.expires - now, seen)
    first = entry.line.before(claim, now)
    if first is None or closing is not None:
        return None
    left = entry.line.due - now
    return Refused("reserved", (Holding(first.holder, 0, left),), left, seen)


def _shut(closing: _Closing, left: float, seen: str) -> Refused:
    if closing.reserved_for:
        return Refused("reserved", (Holding(closing.reserved_for, 0, left),), left, seen)
    return Refused("closed", (Holding(closing.holder, closing.token, left),), left, seen)


def _in_line(line: Line, claim: str, ask: Ask, now: float, refusal: Refused) -> Refused:
    if ask.queue is None or refusal.reason == "permits":
        return refusal
    left = ask.ttl if refusal.retry_after is None else min(ask.ttl, refusal.retry_after)
    place = line.stand(Waiter(claim, ask.holder, ask.queue), now, left)
    return Queued(refusal.reason, refusal.holders, refusal.retry_after, refusal.seen, place)


def _used(entry: _Entry, claim: str, slot: Slot | None) -> _Held | None:
    used = entry.slots.get(slot.name) if slot else None
    return used if used is not None and used.claim != claim else None


def _standing(candidates: dict[str, float], ask: Ask, now: float) -> dict[str, float]:
    """The present candidates, with the asker added."""
    standing = {holder: expires for holder, expires in candidates.items() if expires > now}
    standing[ask.holder] = now + ask.candidacy
    ordered = sorted(standing.items(), key=lambda it: (it[1], it[0]))
    return dict(ordered[-CANDIDATES_KEPT:])


def _candidates(entry: _Entry, now: float) -> tuple[Candidate, ...]:
    standing = sorted(entry.candidates.items())
    return tuple(Candidate(name, expires - now) for name, expires in standing if expires > now)


def _holding_of(held: _Held, now: float) -> Holding:
    left, held_for = held.expires - now, now - held.since
    return Holding(
        *(held.holder, held.token, left, held.ttl, held_for, held.meta, held.claim),
        permits=held.permits,
    )


def _slot_record(held: _Held, expires: float) -> _Held:
    return _Held(held.claim, held.token, held.holder, held.ttl, b"", held.since, expires)


def _end_history(history: deque[Past], token: int, wall: float) -> None:
    for index, past in enumerate(history):
        if past.token == token:
            history[index] = Past(past.holder, past.token, past.started, wall)


def _forgettable(entry: _Entry, now: float) -> bool:
    if entry.fields or entry.holders(now) or entry.closed(now):
        return False
    return entry.forget_at <= now and all(slot.expires <= now for slot in entry.slots.values())
