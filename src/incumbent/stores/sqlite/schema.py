"""The file's format: its tables, its statements, and the state that each opening sets. Pure.

A file of another format is refused and not changed.

The record of a name is one row of `lease`. Its columns have what every lease has: the last grant,
the claim that holds the name alone, and the turn of the first in line; `rest` has the text of
everything else (sharers, a closing, ...), by rules.codec. If `rest` is empty, a statement grants,
renews or gives back the lease, and everything else is decided by the rules. `waiting` has those in
line, so that a grant beside a long line writes no more than another. `beside` has fields and uses
of slots, `past` has the history but for the last holding.

Instants are microseconds on the host's boot-time clock, which starts anew with each boot. So a row
says in which boot it was written (`boots`), and by both clocks when (`written`, `walled`): what is
left after a reboot is counted once by the wall clock, see `since_boot`.

Tokens: no token above `reserved` is granted, and `reserved` is on the disk before or with the first
grant of a token up to it. The commits of single leases are not synced, so a power loss may undo the
last of them; the next boot starts above `reserved`, hence above every token that was ever granted.
Tokens are reserved up to JUMP ahead of the clock, so that one grant in a minute waits for the disk;
and a new file starts that far ahead: above the tokens of a lost one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from incumbent.rules import codec
from incumbent.rules.columns import Columns, LineColumns

APPLICATION_ID: Final = 0x1EA5E001
"""The mark in the file's header, so that another program's database is never written to."""

RECORD_FORMAT: Final = codec.RECORD_FORMAT
"""The number of the file's format, which its header has as `user_version`."""

JUMP: Final = 60 * 1_000_000
"""The most by which reserved tokens are ahead of the wall clock, in microseconds."""
LEAST: Final = 1000
"""The number of tokens reserved at once where JUMP leaves no room, just after a reboot."""

TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS state (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        born TEXT NOT NULL,
        boot TEXT NOT NULL,
        floor INTEGER NOT NULL,
        reserved INTEGER NOT NULL,
        boots INTEGER NOT NULL,
        swept TEXT NOT NULL DEFAULT ''
    )""",
    """
    CREATE TABLE IF NOT EXISTS lease (
        key TEXT PRIMARY KEY,
        boots INTEGER NOT NULL,
        written INTEGER NOT NULL,
        walled INTEGER NOT NULL,
        version INTEGER NOT NULL DEFAULT 0,
        token INTEGER NOT NULL,
        granted INTEGER NOT NULL,
        changes INTEGER NOT NULL,
        claim TEXT NOT NULL,
        holder TEXT NOT NULL,
        ttl INTEGER NOT NULL,
        since INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        meta BLOB NOT NULL,
        started INTEGER NOT NULL,
        ended INTEGER NOT NULL,
        field_version INTEGER NOT NULL,
        keep_until INTEGER NOT NULL,
        rest BLOB NOT NULL,
        due INTEGER NOT NULL DEFAULT 0,
        overtaken INTEGER NOT NULL DEFAULT 0,
        heartbeat INTEGER NOT NULL DEFAULT 0,
        fair INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS waiting (
        key TEXT NOT NULL,
        place INTEGER NOT NULL,
        claim TEXT NOT NULL,
        holder TEXT NOT NULL,
        heartbeat INTEGER NOT NULL,
        fair INTEGER NOT NULL,
        PRIMARY KEY (key, place)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS past (
        key TEXT NOT NULL,
        place INTEGER NOT NULL,
        holder TEXT NOT NULL,
        token INTEGER NOT NULL,
        started INTEGER NOT NULL,
        ended INTEGER NOT NULL,
        PRIMARY KEY (key, place)
    ) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS beside (
        key TEXT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        boots INTEGER NOT NULL,
        written INTEGER NOT NULL,
        walled INTEGER NOT NULL,
        until INTEGER NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (key, kind, name)
    ) WITHOUT ROWID""",
)
"""`until` of a slot is when its use ends; of a field it is 0. `place`: see rules.taking.past_place.
"""

_AGE: Final = ("boots", "written", "walled")
_ROW: Final = (*_AGE, *Columns._fields, *LineColumns._fields)

SEE: Final = f"""
    SELECT s.boot, s.floor, s.reserved, l.version, {", ".join(f"l.{name}" for name in _ROW)}
    FROM state AS s LEFT JOIN lease AS l ON l.key = ? WHERE s.id = 1"""
SEE_BOOT: Final = "SELECT boot FROM state WHERE id = 1"
SEE_LINE: Final = """
    SELECT claim, holder, heartbeat, fair FROM waiting WHERE key = ? ORDER BY place"""
SEE_WAITER: Final = "SELECT 1 FROM waiting WHERE key = ? AND claim = ?"
SEE_KEYS: Final = "SELECT key FROM lease WHERE key >= ? AND key < ? ORDER BY key"
_SEE_BESIDE: Final = """
    SELECT kind, name, boots, written, walled, value FROM beside WHERE key = ?"""
SEE_BESIDE: Final = f"{_SEE_BESIDE} AND kind = ? AND name = ?"
SEE_ALL_BESIDE: Final = _SEE_BESIDE
SEE_PAST: Final = "SELECT place, holder, token, started, ended FROM past WHERE key = ?"

# The statements for a plain record say what rules.taking and rules.keeping say of it.
ARCHIVE: Final = """
    INSERT OR REPLACE INTO past (key, place, holder, token, started, ended)
    SELECT key, (granted - 1) % 19, holder, token, started, ended FROM lease WHERE key = ?"""
GRANT: Final = """
    INSERT INTO lease (key, boots, written, walled, token, granted, changes, claim, holder, ttl,
        since, expires, meta, started, ended, field_version, keep_until, rest)
    VALUES (?, ?, ?, ?, ?, 1, 1, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, x'')
    ON CONFLICT (key) DO UPDATE SET boots = excluded.boots, written = excluded.written,
        walled = excluded.walled, version = version + 1, token = excluded.token,
        granted = granted + 1, changes = changes + 1, claim = excluded.claim,
        holder = excluded.holder, ttl = excluded.ttl, since = excluded.since,
        expires = excluded.expires, meta = excluded.meta, started = excluded.started, ended = 0,
        overtaken = overtaken + (heartbeat > 0),
        keep_until = max(keep_until, excluded.keep_until)"""
RENEW: Final = """
    UPDATE lease SET expires = max(expires, ?1), keep_until = max(keep_until, ?1),
        version = version + 1
    WHERE key = ?2 AND claim = ?3 AND token = ?4 AND expires > ?5 AND rest = x'' AND boots = ?6"""
GIVE: Final = """
    UPDATE lease SET claim = '', ttl = 0, since = 0, expires = 0, meta = x'', ended = ?,
        due = ? + heartbeat, changes = changes + 1, version = version + 1
    WHERE key = ? AND claim = ? AND token = ? AND expires > ? AND rest = x'' AND boots = ?"""

WRITE: Final = f"""
    INSERT INTO lease (key, {", ".join(_ROW)}) VALUES (?{", ?" * len(_ROW)})
    ON CONFLICT (key) DO UPDATE SET version = version + 1,
        {", ".join(f"{name} = excluded.{name}" for name in _ROW)}"""
JOIN_LINE: Final = """
    INSERT INTO waiting (key, place, claim, holder, heartbeat, fair)
    SELECT ?1, 1 + coalesce(max(place), 0), ?2, ?3, ?4, ?5 FROM waiting WHERE key = ?1"""
LEAVE_LINE: Final = "DELETE FROM waiting WHERE key = ? AND claim = ?"
CLEAR_LINE: Final = "DELETE FROM waiting WHERE key = ?"
PUT: Final = """
    INSERT OR REPLACE INTO beside (key, kind, name, boots, written, walled, until, value)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
PUT_PAST: Final = """
    INSERT OR REPLACE INTO past (key, place, holder, token, started, ended)
    VALUES (?, ?, ?, ?, ?, ?)"""
REMOVE: Final = "DELETE FROM beside WHERE key = ? AND kind = ? AND name = ?"

# A sweep covers a window of keys: from the last key of the previous sweep to the key `limit` rows
# later. A window that reaches the end covers all later keys, and the next sweep starts anew.
SWEEP_WINDOW: Final = """
    SELECT swept, (SELECT key FROM lease WHERE key > swept ORDER BY key LIMIT 1 OFFSET :limit)
    FROM state WHERE id = 1"""
SWEEP_END: Final = "\U0010ffff"
_OVER: Final = """key > :after AND key <= :upto AND CASE boots WHEN :boots THEN {0} <= :now
        ELSE {0} - written <= max(0, :wall - walled) END"""
"""Whether an instant of a row has passed; `since_boot` says the same."""
SWEEP_SLOTS: Final = f"DELETE FROM beside WHERE kind = 'slot' AND {_OVER.format('until')}"
SEE_SWEPT: Final = f"""
    SELECT key FROM lease WHERE {_OVER.format("keep_until")} AND NOT EXISTS (
        SELECT 1 FROM beside AS b WHERE b.key = lease.key AND b.kind IN ('field', 'slot'))"""
FORGET: Final = (
    "DELETE FROM lease WHERE key = ?",
    "DELETE FROM past WHERE key = ?",
    "DELETE FROM beside WHERE key = ?",
    CLEAR_LINE,
)
# A deleted key starts again from the floor, which therefore rises above its last token.
SWEPT: Final = "UPDATE state SET swept = ?, floor = max(floor, ?) WHERE id = 1"

SEE_STATE: Final = "SELECT born, boot, floor, reserved, boots FROM state WHERE id = 1"
WRITE_STATE: Final = """
    INSERT INTO state (id, born, boot, floor, reserved, boots) VALUES (1, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET boot = excluded.boot, floor = excluded.floor,
        reserved = excluded.reserved, boots = excluded.boots"""
RESERVE_TOKENS: Final = "UPDATE state SET reserved = ? WHERE id = 1"


def since_boot(now: int, wall: int, written: int, walled: int) -> int:
    """By how much the instants of an earlier boot's row are moved, to those of this boot.

    So much of a row's time is left as there was when it was written, less what passed by the wall
    clock; nothing passed if that was set back meanwhile. All in microseconds.
    """
    return now - written - max(0, wall - walled)


class State(NamedTuple):
    """The one row about the file: `born` identifies it, `boot` is the boot that wrote last.

    `boots`: the number of that boot.
    """

    born: str
    boot: str
    floor: int
    reserved: int
    boots: int = 1


def state_of_boot(state: State | None, boot_id: str, wall: float, fresh: str) -> State:
    """The state that an opening must write; `fresh` identifies the file if it is new.

    A boot other than the stored boot starts above all reserved tokens.
    """
    micros = int(wall * 1_000_000)
    if state is None:
        floor = micros + JUMP + 1
        return State(fresh, boot_id, floor, reserved_from(floor, micros))
    if state.boot == boot_id:
        return state
    floor = max(state.reserved, micros)
    return State(state.born, boot_id, floor, reserved_from(floor, micros), state.boots + 1)


def reserved_from(token: int, wall: int) -> int:
    """The highest token to reserve, with all from `token` on; `wall` in microseconds."""
    return max(wall + JUMP, token + LEAST)
