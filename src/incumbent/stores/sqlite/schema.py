"""The file's format: its tables, its statements, and the state that each opening sets. Pure.

A file of another format is refused and not changed.

Instants: `since`, `expires` and `closed_until` are on the host's boot-time clock; the columns named
wall, `started`, `ended` and `forget_at` are on the wall clock.

Tokens: each key counts its own, from a `floor` that all keys share. No token above `reserved` is
granted, and `reserved` is on the disk before or with the first grant of a token up to it. The
commits of single leases are not synced, so a power loss may undo the last of them; the next boot
starts above `reserved`, hence above every token that was ever granted. Tokens are reserved up to
JUMP ahead of the clock, and a new file starts that far ahead: above the tokens of a lost one.

A row of `reservation` belongs to the closing left by the lease with the same token.

A row of `sharer` is one claim on a shared lease. The lease's own row is then a latch: its claim is
LATCH ('*' in a statement), it ends with the last sharer, and it names the claim that was granted
last. So an exclusive take finds the lease held. Rows of `sharer` without a latch mean nothing, and
the next latch removes them.

A row of `waiting` is one claim in line. The lease's row has `lined`, the heartbeat of the first in
line (0.0: nobody waits), `due` and `overtaken`: if nobody waits, no other row has to be read.
"""

from __future__ import annotations

from typing import Final, NamedTuple

APPLICATION_ID: Final = 0x1EA5E001
"""The mark in the file's header, so that another program's database is never written to."""

RECORD_FORMAT: Final = 1
"""The number of the file's format, which its header has as `user_version`."""

LATCH: Final = "*"
"""The claim in the row of a shared lease; no drawn claim equals it."""

JUMP: Final = 60 * 1_000_000
"""The most by which reserved tokens are ahead of the wall clock, in microseconds.

Every opening raises the floor to the wall clock's microseconds (so that a lost log does not repeat
tokens); up to `reserved` that needs no sync.
"""
LEAST: Final = 1000
"""The number of tokens reserved at once where JUMP leaves no room, just after a reboot."""

PUT_KEEPS: Final = 86_400.0
"""Seconds after the last `put` for which a record without fields is kept."""

TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS state (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        born TEXT NOT NULL,
        boot TEXT NOT NULL,
        floor INTEGER NOT NULL,
        reserved INTEGER NOT NULL,
        swept TEXT NOT NULL DEFAULT ''
    )""",
    """
    CREATE TABLE IF NOT EXISTS lease (
        key TEXT PRIMARY KEY,
        claim TEXT,
        holder TEXT NOT NULL DEFAULT '',
        token INTEGER NOT NULL DEFAULT 0,
        ttl REAL NOT NULL DEFAULT 0,
        meta BLOB NOT NULL DEFAULT x'',
        since REAL NOT NULL DEFAULT 0,
        expires REAL NOT NULL DEFAULT 0,
        started REAL NOT NULL DEFAULT 0,
        ended REAL,
        closed_until REAL NOT NULL DEFAULT 0,
        closed_wall REAL NOT NULL DEFAULT 0,
        closed_for REAL NOT NULL DEFAULT 0,
        grants INTEGER NOT NULL DEFAULT 0,
        changes INTEGER NOT NULL DEFAULT 0,
        version INTEGER NOT NULL DEFAULT 0,
        switched INTEGER NOT NULL DEFAULT 0,
        lined REAL NOT NULL DEFAULT 0,
        due REAL NOT NULL DEFAULT 0,
        overtaken INTEGER NOT NULL DEFAULT 0,
        forget_at REAL NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS past (
        key TEXT NOT NULL,
        place INTEGER NOT NULL,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL,
        started REAL NOT NULL,
        ended REAL,
        PRIMARY KEY (key, place)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS field (
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        PRIMARY KEY (key, name)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS slot (
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        claim TEXT NOT NULL,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL,
        ttl REAL NOT NULL,
        since REAL NOT NULL,
        expires REAL NOT NULL,
        expires_wall REAL NOT NULL,
        keep REAL NOT NULL,
        PRIMARY KEY (key, name)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS reservation (
        key TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS waiting (
        key TEXT NOT NULL,
        claim TEXT NOT NULL,
        place INTEGER NOT NULL,
        holder TEXT NOT NULL,
        heartbeat REAL NOT NULL,
        fair INTEGER NOT NULL,
        PRIMARY KEY (key, claim)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS candidate (
        key TEXT NOT NULL,
        holder TEXT NOT NULL,
        boot TEXT NOT NULL,
        expires REAL NOT NULL,
        PRIMARY KEY (key, holder)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS sharer (
        key TEXT NOT NULL,
        claim TEXT NOT NULL,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL,
        ttl REAL NOT NULL,
        meta BLOB NOT NULL,
        since REAL NOT NULL,
        expires REAL NOT NULL,
        permits INTEGER NOT NULL,
        PRIMARY KEY (key, claim)
    ) WITHOUT ROWID""",
)

SEE: Final = """
    SELECT s.boot, s.floor, s.reserved, l.claim, l.holder, l.token, l.ttl, l.meta, l.since,
        l.expires, l.started, l.ended, l.closed_until, l.grants, l.changes, l.version,
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
# Past holdings: the last is in the lease's own row, the holdings before it are in a ring.
ARCHIVE: Final = """
    INSERT OR REPLACE INTO past (key, place, holder, token, started, ended)
    SELECT key, grants % 19, holder, token, started, ended
    FROM lease WHERE key = ?"""
GRANT: Final = """
    INSERT INTO lease (key, claim, holder, token, ttl, meta, since, expires, started, forget_at,
        grants, changes)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 1)
    ON CONFLICT (key) DO UPDATE SET claim = excluded.claim, holder = excluded.holder,
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
    WHERE key = ?3 AND claim = ?4 AND token = ?5 AND expires > ?6
    RETURNING switched"""

GIVE: Final = """
    UPDATE lease SET claim = NULL, expires = 0, ended = ?, closed_until = ?, closed_wall = ?,
        closed_for = ?, due = ? + lined, changes = changes + 1
    WHERE key = ? AND claim = ? AND token = coalesce(?, token) AND expires > ?"""
GIVE_SLOT: Final = "DELETE FROM slot WHERE key = ? AND name = ? AND claim = ?"

COUNT_SHARERS: Final = "SELECT count(*), max(permits) FROM sharer WHERE key = ? AND expires > ?"
SEE_SHARERS: Final = """
    SELECT holder, token, ttl, meta, since, expires, claim, permits FROM sharer
    WHERE key = ? AND expires > ? ORDER BY token"""
SEE_SHARER: Final = """
    SELECT token, expires FROM sharer WHERE key = ? AND claim = ? AND expires > ?"""
REPEAT_SHARER: Final = "UPDATE sharer SET expires = ? WHERE key = ? AND claim = ?"
DROP_SHARERS: Final = "DELETE FROM sharer WHERE key = ? AND expires <= ?"
SHARE: Final = """
    INSERT INTO sharer (key, claim, holder, token, ttl, meta, since, expires, permits)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
# First the latch, if the row is one and the claim is a sharer; then the claim's own row.
RENEW_LATCH: Final = """
    UPDATE lease SET expires = max(lease.expires, ?1),
        changes = changes + (?2 IS NOT NULL AND ?2 IS NOT s.meta)
    FROM sharer AS s
    WHERE lease.key = ?3 AND lease.claim = '*'
        AND s.key = ?3 AND s.claim = ?4 AND s.token = ?5 AND s.expires > ?6
    RETURNING switched"""
RENEW_SHARER: Final = """
    UPDATE sharer SET expires = max(expires, ?1), meta = coalesce(?2, meta)
    WHERE key = ?3 AND claim = ?4"""
GIVE_SHARER: Final = """
    DELETE FROM sharer
    WHERE key = ?1 AND claim = ?2 AND token = coalesce(?3, token) AND expires > ?4
        AND EXISTS (SELECT 1 FROM lease WHERE key = ?1 AND claim = '*')
    RETURNING token"""
GIVE_LATCH: Final = """
    UPDATE lease SET claim = CASE WHEN s.last IS NULL THEN NULL ELSE claim END,
        expires = coalesce(s.last, 0), ended = CASE WHEN token = ?3 THEN ?4 ELSE ended END,
        due = ?2 + lined, changes = changes + 1
    FROM (SELECT max(expires) AS last FROM sharer WHERE key = ?1 AND expires > ?2) AS s
    WHERE key = ?1"""
END_PAST: Final = "UPDATE past SET ended = ? WHERE key = ? AND token = ?"

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

# `switched`: a field "pause" or "resign" may exist. It may be set without such a field, but it is
# never unset with one.
TOUCH: Final = """
    INSERT INTO lease (key, version, switched, forget_at, changes) VALUES (?, ?, ?, ?, 1)
    ON CONFLICT (key) DO UPDATE SET version = excluded.version,
        switched = max(switched, excluded.switched),
        forget_at = max(forget_at, excluded.forget_at), changes = changes + 1"""
SWITCHED: Final = "UPDATE lease SET switched = 1 WHERE key = ?"
WRITE_FIELD: Final = "INSERT OR REPLACE INTO field (key, name, value, version) VALUES (?, ?, ?, ?)"
DROP_FIELD: Final = "DELETE FROM field WHERE key = ? AND name = ?"

SEE_LINE: Final = "SELECT claim, holder, heartbeat, fair FROM waiting WHERE key = ? ORDER BY place"
JOIN_LINE: Final = """
    INSERT INTO waiting (key, claim, place, holder, heartbeat, fair)
    SELECT ?1, ?2, 1 + coalesce(max(place), 0), ?3, ?4, ?5 FROM waiting WHERE key = ?1"""
LEAVE_LINE: Final = "DELETE FROM waiting WHERE key = ? AND claim = ?"
SET_TURN: Final = "UPDATE lease SET lined = ?, due = ?, overtaken = ? WHERE key = ?"
CHANGED: Final = "UPDATE lease SET changes = changes + 1 WHERE key = ?"
SEE_TURN: Final = """
    SELECT l.claim, l.expires, l.closed_until, l.due, l.lined, l.overtaken, w.claim, w.fair,
        EXISTS (SELECT 1 FROM waiting WHERE key = ?1 AND claim = ?2),
        EXISTS (SELECT 1 FROM waiting AS me JOIN reservation AS r ON r.key = me.key
            WHERE me.key = ?1 AND me.claim = ?2 AND r.token = l.token AND r.holder = me.holder)
    FROM lease AS l LEFT JOIN waiting AS w ON w.key = l.key
    WHERE l.key = ?1 ORDER BY w.place LIMIT 1"""

# A sweep covers a window of keys: from the last key of the previous sweep to the key `limit` rows
# later. A window that reaches the end covers all later keys, and the next sweep starts anew.
SWEEP_WINDOW: Final = """
    SELECT swept, (SELECT key FROM lease WHERE key > swept ORDER BY key LIMIT 1 OFFSET :limit)
    FROM state WHERE id = 1"""
SWEEP_END: Final = "\U0010ffff"
SWEEP_SLOTS: Final = "DELETE FROM slot WHERE key > :after AND key <= :upto AND expires <= :now"
SWEEP_LEASES: Final = """
    DELETE FROM lease WHERE key > :after AND key <= :upto AND forget_at <= :wall
        AND (claim IS NULL OR expires <= :now) AND closed_until <= :now
        AND NOT EXISTS (SELECT 1 FROM field WHERE field.key = lease.key)
        AND NOT EXISTS (SELECT 1 FROM slot WHERE slot.key = lease.key)
    RETURNING token"""
SWEEP_BESIDE: Final = (
    """DELETE FROM past WHERE key > :after AND key <= :upto
        AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.key = past.key)""",
    """DELETE FROM reservation WHERE key > :after AND key <= :upto AND NOT EXISTS (
        SELECT 1 FROM lease AS l WHERE l.key = reservation.key AND l.token = reservation.token
            AND l.closed_until > :now)""",
    """DELETE FROM candidate WHERE key > :after AND key <= :upto
        AND (expires <= :now OR boot != (SELECT boot FROM state WHERE id = 1))""",
    """DELETE FROM waiting WHERE key > :after AND key <= :upto
        AND NOT EXISTS (SELECT 1 FROM lease WHERE lease.key = waiting.key)""",
    """DELETE FROM sharer WHERE key > :after AND key <= :upto AND (expires <= :now
        OR NOT EXISTS (SELECT 1 FROM lease AS l WHERE l.key = sharer.key AND l.claim = '*'))""",
)
# A deleted key starts again from the floor, which therefore rises above its last token.
SWEPT: Final = "UPDATE state SET swept = ?, floor = max(floor, ?) WHERE id = 1"

SEE_STATE: Final = "SELECT born, boot, floor, reserved FROM state WHERE id = 1"
WRITE_STATE: Final = """
    INSERT INTO state (id, born, boot, floor, reserved) VALUES (1, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET boot = excluded.boot, floor = excluded.floor,
        reserved = excluded.reserved"""
RESERVE_TOKENS: Final = "UPDATE state SET reserved = ? WHERE id = 1"

# Over a reboot the rest of a closing or slot is counted by the wall clock, because boot time starts
# again; it is at most the whole length, in case the wall clock was set back meanwhile.
REBOOT: Final = (
    "UPDATE lease SET claim = NULL, expires = 0, changes = changes + 1 WHERE claim IS NOT NULL",
    """UPDATE lease SET closed_until = :now + min(closed_for, closed_wall - :wall)
       WHERE closed_for > 0""",
    "UPDATE slot SET expires = :now + min(keep, expires_wall - :wall)",
    "UPDATE lease SET lined = 0, due = 0, overtaken = 0 WHERE lined > 0",
    "DELETE FROM waiting",
    "DELETE FROM sharer",
)


class State(NamedTuple):
    """The one row about the file: `born` identifies it, `boot` is the boot that wrote last."""

    born: str
    boot: str
    floor: int
    reserved: int


def settled(state: State | None, boot_id: str, wall: float, fresh: str) -> State:
    """The state that an opening must write; `fresh` identifies the file if it is new.

    A boot other than the stored boot starts above all reserved tokens.
    """
    micros = int(wall * 1_000_000)
    if state is None:
        floor = micros + JUMP + 1
        return State(fresh, boot_id, floor, reserved_from(floor, wall))
    rebooted = state.boot != boot_id
    floor = max(state.reserved if rebooted else state.floor, micros)
    # No more are reserved before nearly all are used up, so that most openings need no sync.
    enough = not rebooted and floor + LEAST // 2 <= state.reserved
    reserved = state.reserved if enough else reserved_from(floor, wall)
    return State(state.born, boot_id, floor, reserved)


def reserved_from(token: int, wall: float) -> int:
    """The highest token to reserve, with all from `token` on."""
    return max(int(wall * 1_000_000) + JUMP, token + LEAST)
