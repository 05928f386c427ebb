"""The statements of each operation and their values. Pure.

An exclusive take reads one row (SEE), decides in `rows`, and writes GRANT. Renewing and giving
compare within their one statement. Sweeping looks at a bounded window of keys at a time.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from incumbent.model import Ask, Renewal, Slot
from incumbent.stores.names import flat
from incumbent.stores.notices import PAUSE, RESIGN
from incumbent.stores.sqlite.rows import Row

__all__ = [
    "CANDIDATES_KEPT",
    "HISTORY_KEPT",
    "give_values",
    "grant_values",
    "prefix_range",
    "renew_values",
    "slot_values",
    "touch_values",
]

HISTORY_KEPT: Final = 20
"""Past holdings that a record remembers: the last one in its own row, 19 in a ring (ARCHIVE)."""

CANDIDATES_KEPT: Final = 100
"""Candidates that a record lists: beyond these, whose time is over first is left out."""

PUT_KEEPS: Final = 86_400.0
"""Seconds for which a record that has no field any more is remembered after the last `put`."""

Values: TypeAlias = "tuple[Any, ...]"

# "format <= 1": schema.FORMAT, what this release can read.

SEE: Final = """
    SELECT s.boot, s.floor, s.reserved, l.format, l.claim, l.holder, l.token, l.ttl, l.meta,
        l.since, l.expires, l.started, l.ended, l.closed_until, l.grants, l.changes, l.version,
        l.switched, l.lined, l.due, l.overtaken
    FROM state AS s LEFT JOIN lease AS l ON l.key = ? WHERE s.id = 1"""
SEE_BOOT: Final = "SELECT boot FROM state WHERE id = 1"
SEE_CHANGES: Final = "SELECT changes FROM lease WHERE key = ?"
SEE_KEYS: Final = "SELECT key FROM lease WHERE key >= ? AND key < ? ORDER BY key"
SEE_PAST: Final = "SELECT holder, token, started, ended FROM past WHERE key = ? ORDER BY token"
SEE_FIELDS: Final = "SELECT name, value, version FROM field WHERE key = ? ORDER BY name"
SEE_FIELD: Final = "SELECT value, version FROM field WHERE key = ? AND name = ?"
SEE_SLOTS: Final = "SELECT name, expires FROM slot WHERE key = ? AND expires > ? ORDER BY name"
SEE_SLOT: Final = """
    SELECT claim, holder, token, ttl, since, expires FROM slot WHERE key = ? AND name = ?"""

REPEAT: Final = "UPDATE lease SET expires = ? WHERE key = ?"
ARCHIVE: Final = """
    INSERT OR REPLACE INTO past (key, place, holder, token, started, ended)
    SELECT key, grants % 19, holder, token, started, ended
    FROM lease WHERE key = ?"""
GRANT: Final = """
    INSERT INTO lease (key, claim, holder, token, ttl, meta, since, expires, started, forget_at,
        grants, changes)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 1)
    ON CONFLICT (key) DO UPDATE SET format = 1, claim = excluded.claim, holder = excluded.holder,
        token = excluded.token, ttl = excluded.ttl, meta = excluded.meta, since = excluded.since,
        expires = excluded.expires, started = excluded.started, ended = NULL, closed_until = 0,
        closed_for = 0, forget_at = excluded.forget_at, switched = 0, grants = grants + 1,
        changes = changes + 1"""
GRANT_SLOT: Final = """
    INSERT OR REPLACE INTO slot
        (key, name, claim, holder, token, ttl, since, expires, expires_wall, keep)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

RENEW: Final = """
    UPDATE lease SET expires = max(expires, ?1), meta = coalesce(?2, meta),
        changes = changes + (?2 IS NOT NULL AND ?2 IS NOT meta)
    WHERE key = ?3 AND claim = ?4 AND token = ?5 AND expires > ?6 AND format <= 1
    RETURNING switched"""

GIVE: Final = """
    UPDATE lease SET claim = NULL, expires = 0, ended = ?, closed_until = ?, closed_wall = ?,
        closed_for = ?, due = ? + lined, changes = changes + 1
    WHERE key = ? AND claim = ? AND token = coalesce(?, token) AND expires > ?
        AND format <= 1"""
GIVE_SLOT: Final = "DELETE FROM slot WHERE key = ? AND name = ? AND claim = ?"

RESERVE: Final = """
    INSERT OR REPLACE INTO reservation (key, holder, token)
    SELECT key, ?, token FROM lease WHERE key = ?"""
SEE_RESERVATION: Final = "SELECT holder FROM reservation WHERE key = ? AND token = ?"

STAND: Final = """
    INSERT OR REPLACE INTO candidate (key, holder, boot, expires) VALUES (?, ?, ?, ?)"""
CROWD_OUT: Final = """
    DELETE FROM candidate WHERE key = ?1 AND (boot != ?2 OR expires <= ?3 OR holder NOT IN (
        SELECT holder FROM candidate WHERE key = ?1 AND boot = ?2
        ORDER BY expires DESC, holder DESC LIMIT ?4))"""
STAND_DOWN: Final = "DELETE FROM candidate WHERE key = ? AND holder = ?"
SEE_CANDIDATES: Final = """
    SELECT holder, expires FROM candidate WHERE key = ? AND boot = ? AND expires > ?
    ORDER BY holder"""

# `switched` says that a look for switches is due; it may say so in vain, never keep silent.
TOUCH: Final = """
    INSERT INTO lease (key, version, switched, forget_at, changes) VALUES (?, ?, ?, ?, 1)
    ON CONFLICT (key) DO UPDATE SET version = excluded.version,
        switched = max(switched, excluded.switched),
        forget_at = max(forget_at, excluded.forget_at), changes = changes + 1"""
WRITE_FIELD: Final = "INSERT OR REPLACE INTO field (key, name, value, version) VALUES (?, ?, ?, ?)"
DROP_FIELD: Final = "DELETE FROM field WHERE key = ? AND name = ?"

# The window lies between the last key of the sweep before and the key `limit` rows further on;
# a window that reaches the end covers everything behind it, and the next one starts anew.
SWEEP_WINDOW: Final = """
    SELECT swept, (SELECT key FROM lease WHERE key > swept ORDER BY key LIMIT 1 OFFSET :limit)
    FROM state WHERE id = 1"""
SWEEP_END: Final = "\U0010ffff"
SWEEP_SLOTS: Final = "DELETE FROM slot WHERE key > :after AND key <= :upto AND expires <= :now"
SWEEP_LEASES: Final = """
    DELETE FROM lease WHERE key > :after AND key <= :upto AND forget_at <= :wall
        AND (claim IS NULL OR expires <= :now) AND closed_until <= :now AND format <= 1
        AND NOT EXISTS (SELECT 1 FROM field WHERE field.key = lease.key)
        AND NOT EXISTS (SELECT 1 FROM slot WHERE slot.key = lease.key)
    RETURNING token"""
SWEEP_PAST: Final = """
    DELETE FROM past WHERE key > :after AND key <= :upto
        AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.key = past.key)"""
SWEEP_RESERVATIONS: Final = """
    DELETE FROM reservation WHERE key > :after AND key <= :upto AND NOT EXISTS (
        SELECT 1 FROM lease AS l WHERE l.key = reservation.key AND l.token = reservation.token
            AND l.closed_until > :now)"""
SWEEP_CANDIDATES: Final = """
    DELETE FROM candidate WHERE key > :after AND key <= :upto
        AND (expires <= :now OR boot != (SELECT boot FROM state WHERE id = 1))"""
SWEEP_WAITING: Final = """
    DELETE FROM waiting WHERE key > :after AND key <= :upto
        AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.key = waiting.key)"""
SWEEP_BESIDE: Final = (SWEEP_PAST, SWEEP_RESERVATIONS, SWEEP_CANDIDATES, SWEEP_WAITING)
# A forgotten key starts again from the floor, which therefore rises above its last token.
SWEPT: Final = "UPDATE state SET swept = ?, floor = max(floor, ?) WHERE id = 1"


def grant_values(key: str, claim: str, token: int, ask: Ask, now: float, wall: float) -> Values:
    """For GRANT."""
    keep = max(ask.ttl, ask.keep_record)
    return (
        key, claim, ask.holder, token, ask.ttl, ask.meta, now, now + ask.ttl, wall, wall + keep
    )  # fmt: skip


def slot_values(
    key: str, claim: str, token: int, ask: Ask, slot: Slot, now: float, wall: float
) -> Values:
    """For GRANT_SLOT."""
    ends, ends_wall = now + slot.keep, wall + slot.keep
    return (key, slot.name, claim, ask.holder, token, ask.ttl, now, ends, ends_wall, slot.keep)


def renew_values(renewal: Renewal, now: float) -> Values:
    """For RENEW."""
    key, claim, token = flat(renewal.key), renewal.claim, renewal.token
    return (now + renewal.ttl, renewal.meta, key, claim, token, now)


def give_values(
    key: str, claim: str, token: int | None, closed_for: float, now: float, wall: float
) -> Values:
    """For GIVE; a closing is stored by both clocks, for the wall clock outlives a reboot.

    The turn of the first in line begins now.
    """
    until = now + closed_for if closed_for > 0 else 0.0
    return (wall, until, wall + closed_for, closed_for, now, key, claim, token, now)


def touch_values(key: str, name: str, row: Row, value: bytes | None, wall: float) -> Values:
    """For TOUCH; a removal leaves the version where it is."""
    version = (row.version or 0) + (value is not None)
    return (key, version, name in {PAUSE, RESIGN}, wall + PUT_KEEPS)


def prefix_range(namespace: str, prefix: str) -> tuple[str, str]:
    """For SEE_KEYS: from the first key of that prefix to the first that is behind them all."""
    # Names are ASCII, so DEL sorts behind each of them.
    return f"{namespace}/{prefix}", f"{namespace}/{prefix}\x7f"
