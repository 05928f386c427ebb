"""What the rows mean: each decision of the contract, with every instant handed in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from incumbent.model import (
    Absent,
    ByClaim,
    ByVersion,
    Candidate,
    Field,
    Granted,
    Guard,
    Holding,
    Key,
    Past,
    Record,
    Refused,
)
from incumbent.stores.sqlite.schema import FORMAT

__all__ = [
    "Row",
    "UsedSlot",
    "guard_holds",
    "holding_of",
    "record_of",
    "refusal",
    "repeated",
    "seen_of",
]


class Row(NamedTuple):
    """The file's state, and beside it a lease's row, whose fields are None for an unknown key."""

    boot: str
    floor: int
    reserved: int
    format: int | None
    claim: str | None
    holder: str
    token: int
    ttl: float
    meta: bytes
    since: float
    expires: float
    started: float
    ended: float | None
    closed_until: float
    grants: int
    changes: int
    version: int
    switched: int
    lined: float
    due: float
    overtaken: int

    @property
    def known(self) -> bool:
        """Whether there is a record of the key at all."""
        return self.format is not None

    @property
    def newer(self) -> bool:
        """Whether a later release wrote the row: it counts as held, for we cannot read it."""
        return self.format is not None and self.format > FORMAT

    def held(self, now: float) -> bool:
        """Whether somebody holds the lease."""
        return self.newer or (self.claim is not None and self.expires > now)

    def held_by(self, claim: str, now: float) -> bool:
        """Whether this claim holds the lease."""
        return self.claim == claim and self.expires > now and not self.newer

    def closed(self, now: float) -> bool:
        """Whether a release keeps the lease closed."""
        return self.known and self.closed_until > now

    def next_token(self) -> int:
        """The token of the next grant."""
        return max(self.token or 0, self.floor) + 1


class UsedSlot(NamedTuple):
    """A slot that was taken at some time."""

    claim: str
    holder: str
    token: int
    ttl: float
    since: float
    expires: float


def repeated(row: Row, claim: str, ttl: float, now: float, epoch: str) -> Granted:
    """The same grant again, with max(remaining, ttl)."""
    return Granted(claim, row.token, max(row.expires - now, ttl), epoch)


def refusal(
    row: Row,
    claim: str,
    holder: str,
    used: UsedSlot | None,
    reserved_for: str,
    paused: bool,
    now: float,
    epoch: str,
) -> Refused | None:
    """Why `claim` of `holder` may not have the lease now, or None."""
    seen = seen_of(epoch, row.changes)
    if row.held(now):
        holding = holding_of(row, now)
        return Refused("held", (holding,), holding.remaining, seen)
    if paused:
        return Refused("paused", seen=seen)
    closing = _closing(row, now)
    if closing is not None and reserved_for:
        if reserved_for != holder:
            left = closing.remaining
            return Refused("reserved", (Holding(reserved_for, remaining=left),), left, seen)
        closing = None
    by = closing or _closing_slot(used, claim, now)
    return Refused("closed", (by,), by.remaining, seen) if by else None


def holding_of(row: Row, now: float) -> Holding:
    """The present holding, as far as it can be read."""
    if row.newer:
        return Holding("(written by a newer release)", foreign=True)
    left, age = row.expires - now, now - row.since
    return Holding(row.holder, row.token, left, row.ttl, age, row.meta, row.claim or "")


def _closing(row: Row, now: float) -> Holding | None:
    if not row.closed(now):
        return None
    return Holding(row.holder, row.token, row.closed_until - now)


def _closing_slot(used: UsedSlot | None, claim: str, now: float) -> Holding | None:
    if used is None or used.claim == claim or used.expires <= now:
        return None
    left, age = used.expires - now, now - used.since
    return Holding(used.holder, used.token, left, used.ttl, age, b"", used.claim)


def seen_of(epoch: str, changes: int | None) -> str:
    """What `wait_change` compares: another text after every change, and for another file."""
    return "" if changes is None else f"{epoch}:{changes}"


def guard_holds(row: Row, old: Field | None, guard: Guard, now: float) -> bool:
    """Whether a `put` under `guard` may write over `old`."""
    match guard:
        case None:
            return True
        case Absent():
            return old is None
        case ByVersion(version):
            return old is not None and old.version == version
        case ByClaim(claim, token):
            return row.held_by(claim, now) and row.token == token


def record_of(
    key: Key,
    row: Row,
    fields: Mapping[str, Field],
    slots: Mapping[str, float],
    past: Iterable[Past],
    candidates: tuple[Candidate, ...],
    reserved_for: str,
    now: float,
    epoch: str,
) -> Record:
    """All that is known of `key`; the last holding of the history stands in the row itself."""
    if not row.known:
        return Record(key)
    holdings = (holding_of(row, now),) if row.held(now) else ()
    last = (Past(row.holder, row.token, row.started, row.ended),) if row.grants else ()
    closed_for = max(0.0, row.closed_until - now)
    seen, history = seen_of(epoch, row.changes), (*past, *last)
    return Record(key, holdings, closed_for, fields, slots, history, candidates, seen, reserved_for)
