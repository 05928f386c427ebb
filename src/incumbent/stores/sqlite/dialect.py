"""Statements for each operation, and what their rows mean. Pure; the meaning is `stores.table`'s.

An exclusive take reads one row, decides here, and writes. Renewing and giving compare within their
one statement.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from incumbent.model import (
    Absent,
    Ask,
    ByClaim,
    ByVersion,
    Field,
    Granted,
    Guard,
    Holding,
    Key,
    Past,
    Record,
    Refused,
)
from incumbent.stores.notices import PAUSE
from incumbent.stores.sqlite.schema import FORMAT

__all__ = ["Row", "UsedSlot", "guard_holds", "record_of", "refusal", "repeated", "seen_of"]

HISTORY_KEPT: Final = 20
"""Past holdings that a record remembers: the last one in its own row, the others in a ring."""

PUT_KEEPS: Final = 86_400.0
"""Seconds for which a record that only ever had fields is remembered after the last `put`."""

_ROW = """
    SELECT l.format, l.claim, l.holder, l.token, l.ttl, l.meta, l.since, l.expires, l.started,
        l.ended, l.closed_until, l.grants, l.changes, l.version, l.switched"""
SEE: Final = f"""{_ROW}, s.boot, s.floor, s.reserved
    FROM state AS s LEFT JOIN lease AS l ON l.key = ? WHERE s.id = 1"""
READ: Final = f"{_ROW}, '', 0, 0 FROM lease AS l WHERE l.key = ?"
READ_CHANGES: Final = "SELECT changes FROM lease WHERE key = ?"
READ_BOOT: Final = "SELECT boot FROM state WHERE id = 1"
READ_KEYS: Final = "SELECT key FROM lease WHERE key >= ? AND key < ? ORDER BY key"
READ_PAST: Final = "SELECT holder, token, started, ended FROM past WHERE key = ? ORDER BY token"
READ_FIELDS: Final = "SELECT name, value, version FROM field WHERE key = ? ORDER BY name"
READ_FIELD: Final = "SELECT value, version FROM field WHERE key = ? AND name = ?"
READ_SWITCHES: Final = (
    "SELECT name, value FROM field WHERE key = ? AND name IN ('pause', 'resign')"
)
READ_SLOTS: Final = "SELECT name, expires FROM slot WHERE key = ? AND expires > ? ORDER BY name"
READ_SLOT: Final = (
    "SELECT claim, holder, token, ttl, since, expires FROM slot WHERE key = ? AND name = ?"
)

ARCHIVE: Final = f"""
    INSERT OR REPLACE INTO past (key, place, holder, token, started, ended)
    SELECT key, grants % {HISTORY_KEPT - 1}, holder, token, started, ended
    FROM lease WHERE key = ?"""
GRANT: Final = """
    INSERT INTO lease (key, claim, holder, token, ttl, meta, since, expires, started, forget_at,
        switched, grants, changes)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 1)
    ON CONFLICT (key) DO UPDATE SET format = 1, claim = excluded.claim, holder = excluded.holder,
        token = excluded.token, ttl = excluded.ttl, meta = excluded.meta, since = excluded.since,
        expires = excluded.expires, started = excluded.started, ended = NULL, closed_until = 0,
        closed_for = 0, forget_at = excluded.forget_at, switched = excluded.switched,
        grants = grants + 1, changes = changes + 1"""
GRANT_SLOT: Final = """
    INSERT OR REPLACE INTO slot (key, name, claim, holder, token, ttl, since, expires,
        expires_wall, keep)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
REPEAT: Final = "UPDATE lease SET expires = ? WHERE key = ?"
DROP_FIELD: Final = "DELETE FROM field WHERE key = ? AND name = ?"

RENEW: Final = f"""
    UPDATE lease SET expires = max(expires, ?), meta = coalesce(?, meta)
    WHERE key = ? AND claim = ? AND token = ? AND expires > ? AND format <= {FORMAT}
    RETURNING switched"""

GIVE: Final = f"""
    UPDATE lease SET claim = NULL, expires = 0, ended = :wall, changes = changes + 1,
        closed_until = CASE WHEN :closed_for > 0 THEN :now + :closed_for ELSE 0 END,
        closed_wall = :wall + :closed_for, closed_for = :closed_for
    WHERE key = :key AND claim = :claim AND token = coalesce(:token, token) AND expires > :now
        AND format <= {FORMAT}
    RETURNING token"""
GIVE_SLOT: Final = "DELETE FROM slot WHERE key = ? AND name = ? AND claim = ?"

TOUCH: Final = """
    INSERT INTO lease (key, changes, version, switched, forget_at) VALUES (?, 1, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET changes = changes + 1, version = excluded.version,
        switched = max(switched, excluded.switched), forget_at = max(forget_at, excluded.forget_at)
    """
WRITE_FIELD: Final = "INSERT OR REPLACE INTO field (key, name, value, version) VALUES (?, ?, ?, ?)"


class Row(NamedTuple):
    """A lease's row beside the file's state; all but the last three are None for an unknown key."""

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
    boot: str
    floor: int
    reserved: int

    @property
    def known(self) -> bool:
        """Whether there is a record of the key at all."""
        return self.format is not None

    def newer(self) -> bool:
        """Whether a later release wrote the row: it counts as held, for we cannot read it."""
        return self.format is not None and self.format > FORMAT

    def held(self, now: float) -> bool:
        """Whether somebody holds the lease."""
        return self.known and (self.newer() or (self.claim is not None and self.expires > now))

    def held_by(self, claim: str, now: float) -> bool:
        """Whether this claim holds the lease."""
        return self.claim == claim and not self.newer() and self.expires > now

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
    row: Row, claim: str, used: UsedSlot | None, paused: bool, now: float, epoch: str
) -> Refused | None:
    """Why `claim` may not have the lease now, or None."""
    if not row.known:
        return Refused("paused", seen=seen_of(epoch, None)) if paused else None
    seen = seen_of(epoch, row.changes)
    if row.held(now):
        holding = holding_of(row, now)
        return Refused("held", (holding,), holding.remaining, seen)
    if paused:
        return Refused("paused", seen=seen)
    if row.closed_until > now:
        left = row.closed_until - now
        return Refused("closed", (Holding(row.holder, row.token, left),), left, seen)
    if used is not None and used.claim != claim and used.expires > now:
        left = used.expires - now
        by = Holding(
            used.holder, used.token, left, used.ttl, now - used.since, b"", used.claim
        )
        return Refused("closed", (by,), left, seen)
    return None


def holding_of(row: Row, now: float) -> Holding:
    """The present holding, as far as it can be read."""
    if row.newer():
        return Holding("(written by a newer release)", row.token, foreign=True)
    return Holding(
        row.holder,
        row.token,
        row.expires - now,
        row.ttl,
        now - row.since,
        row.meta,
        row.claim or "",
    )


def grant_values(key: str, claim: str, ask: Ask, row: Row, now: float, wall: float) -> tuple:
    """Values for GRANT."""
    ...


def seen_of(epoch: str, changes: int | None) -> str:
    """What `wait_change` compares: it differs after every change, and for another file."""
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
