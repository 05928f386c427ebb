"""The tables, and what has to be set right in them whenever a connection is opened. Pure.

A file of another format (the major version) is refused and left alone. Minor versions only add
columns (with defaults) and tables, and every statement names its columns, so that processes of
neighbouring releases share one file. A row whose `format` is newer than ours counts as held, since
we cannot know what it means.

Instants: `since`, `expires` and `closed_until` count on the host's boot time; the columns named
wall, `started`, `ended` and `forget_at` on the wall clock.

Tokens: each key counts its own, from a `floor` that all keys share. No token above `reserved` is
given, and `reserved` is on the disk (one synced commit) before a token up to it is. The commits of
single leases are not synced, so a power loss may take the last of them back; the next boot starts
above `reserved`, hence above every token that was ever given.

A row of `reservation` belongs to the closing that the same token left: a neighbouring release that
knows no reservations leaves it standing when it grants or closes, and refuses everybody meanwhile.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "APPLICATION_ID",
    "BLOCK",
    "FORMAT",
    "MINOR",
    "RECORD_FORMAT",
    "TABLES",
    "State",
    "settled",
]

APPLICATION_ID: Final = 0x1EA5E001
"""In the file's header, so that another program's database is never written to."""

RECORD_FORMAT: Final = 2
"""The major version of the file. Format 1 kept no line, and did not sync its slots."""

MINOR: Final = 0
FORMAT: Final = 1

BLOCK: Final = 20 * 60 * 1_000_000
"""Tokens reserved at once: as many as there are microseconds in 20 minutes.

Every opening lifts the floor to the wall clock's microseconds (so that a lost file or log does not
repeat tokens), and within a block that costs no sync.
"""

TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS state (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        major INTEGER NOT NULL,
        minor INTEGER NOT NULL,
        born TEXT NOT NULL,
        boot TEXT NOT NULL,
        floor INTEGER NOT NULL,
        reserved INTEGER NOT NULL,
        swept TEXT NOT NULL DEFAULT ''
    )""",
    """
    CREATE TABLE IF NOT EXISTS lease (
        key TEXT PRIMARY KEY,
        format INTEGER NOT NULL DEFAULT 1,
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
)

READ_VERSION: Final = "SELECT major, minor FROM state WHERE id = 1"
READ_STATE: Final = "SELECT major, minor, born, boot, floor, reserved FROM state WHERE id = 1"
WRITE_STATE: Final = """
    INSERT INTO state (id, major, minor, born, boot, floor, reserved) VALUES (1, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET minor = excluded.minor, boot = excluded.boot,
        floor = excluded.floor, reserved = excluded.reserved"""

# What is left of a closing or a slot is counted by the wall clock over a reboot, for boot time
# starts again; bounded by its whole length, in case that clock was set back meanwhile.
REBOOT: Final = (
    "UPDATE lease SET claim = NULL, expires = 0, changes = changes + 1 WHERE claim IS NOT NULL",
    """UPDATE lease SET closed_until = :now + min(closed_for, closed_wall - :wall)
       WHERE closed_for > 0""",
    "UPDATE slot SET expires = :now + min(keep, expires_wall - :wall)",
    "UPDATE lease SET lined = 0, due = 0, overtaken = 0 WHERE lined > 0",
    "DELETE FROM waiting",
)


class State(NamedTuple):
    """The one row about the file: `born` names it, `boot` is the boot that wrote last."""

    major: int
    minor: int
    born: str
    boot: str
    floor: int
    reserved: int


def settled(
    state: State | None,
    boot_id: str,
    wall: float,
    fresh: str,
    *,
    above: int = 0,
    block: int = BLOCK,
) -> State:
    """The state as an opening must leave it; `fresh` names the file if it is new.

    A boot other than the stored one starts above all that was reserved. `above` is a token that
    reached `reserved`: the floor stays, and more is reserved.
    """
    micros = int(wall * 1_000_000)
    if state is None:
        return State(RECORD_FORMAT, MINOR, fresh, boot_id, micros, micros + block)
    rebooted = state.boot != boot_id
    floor = max(state.reserved if rebooted else state.floor, micros)
    highest = max(floor, above)
    # Kept until half of it is used up, so that most openings need no sync.
    enough = not rebooted and highest + block // 2 < state.reserved
    reserved = state.reserved if enough else highest + block
    return State(RECORD_FORMAT, max(state.minor, MINOR), state.born, boot_id, floor, reserved)
