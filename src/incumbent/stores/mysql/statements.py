"""The tables, and the statements on them, as texts. Pure.

Theory of operation. The record of a name is one row. Its columns have what every lease has: the
last grant, and the exclusive claim that holds it. `rest` has the text of everything else (a line,
sharers, a pause, ...), by rules.codec, and is empty for a plain record. So the common requests are
one UPDATE each, whose answer brings the number of rows and the token (LAST_INSERT_ID):

    take    WHERE it is plain, nobody holds it, and `until` has not passed
    renew   WHERE the claim holds it, and no notice waits; many names at once
    give    WHERE it is plain, and the claim holds it

Everything else is decided by the rules, and swapped in WHERE the version is the one that was read.
What every write compares, too:

- `seal`, a checksum of the row: a row that was edited by hand, or cut, is granted to nobody. SET
  assigns from left to right, so `seal` is computed of the new columns.
- `epoch` and _HERE: the row's incarnation of the data, and the server that began it. A new
  incarnation marks all rows, so that no write of an older one hits.
- The clock is SYSDATE: NOW is the start of a statement, which may have waited for the row since.

Instants are microseconds since 1970 in UTC. Reads use NOW, which is no later than what they find.
READ COMMITTED, because no statement relies on another's snapshot: each compares what it changes,
and it locks rows, not the gaps between them, in which the first takes of two names would deadlock.

A waiter that joins a line leaves a row beside the record, and `joins` says that there are some. The
next swap moves them into the record.
"""

from __future__ import annotations

from typing import Final

from incumbent.rules import codec
from incumbent.rules.columns import Columns

FORMAT: Final = codec.RECORD_FORMAT
"""The format of the tables."""
CLOCK: Final = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',SYSDATE(6))"
START: Final = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',NOW(6))"
HERE: Final = "CONCAT_WS(' ',@@hostname,@@port,@@server_id,@@read_only IN ('0','OFF'))"
"""The server; it is read-only if this ends with a 0."""
JUMP: Final = 60_000_000
"""Microseconds by which the tokens of a new incarnation lead the clock: lost ones were below."""
LATE: Final = 60_000_000
"""A swap is refused that arrives later than this: what it read may have been forgotten, and begun
anew. A row is forgotten after twice as long."""

_NAME: Final = "VARCHAR(264) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
_ID: Final = "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
_TEXT: Final = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
_US: Final = "BIGINT NOT NULL DEFAULT 0"
_COLUMNS: Final = ",".join(Columns._fields)
TABLES: Final = (
    f"""CREATE TABLE IF NOT EXISTS incumbent_lease (name {_NAME} PRIMARY KEY, epoch {_ID},
    version {_US}, written {_US}, token {_US}, granted {_US}, changes {_US}, claim {_ID},
    holder VARCHAR(1000) {_TEXT}, ttl {_US}, since {_US}, expires {_US},
    meta VARBINARY(1024) NOT NULL, started {_US}, ended {_US}, field_version {_US},
    keep_until {_US}, rest MEDIUMBLOB NOT NULL, past MEDIUMTEXT {_TEXT}, notices {_US},
    joins {_US}, seal {_US}) ENGINE=InnoDB""",
    f"""CREATE TABLE IF NOT EXISTS incumbent_beside (name {_NAME}, kind {_ID},
    part VARBINARY(1000) NOT NULL, at {_US}, value MEDIUMBLOB NOT NULL,
    PRIMARY KEY (name, kind, part)) ENGINE=InnoDB""",
    f"""CREATE TABLE IF NOT EXISTS incumbent_marker (one TINYINT PRIMARY KEY, format {_US},
    id {_ID}, place VARCHAR(300) {_TEXT}, made {_ID}, born {_US}, longest {_US}, floor {_US})
    ENGINE=InnoDB""",
)
"""The statements that make the tables; each may be repeated."""
_SEAL: Final = f"CRC32(CONCAT_WS(' ',name,version,written,notices,past,{_COLUMNS}))"
BLANK: Final = "{} 0 0 0 {{}} 0 0 0   0 0 0  0 0 0 0 "
"""What the seal of a row with version 0 is computed of."""
_SEALED: Final = f"seal={_SEAL}"
"""The condition that a row is sound, and the assignment that makes it so."""
_NEXT: Final = "version=GREATEST(version+1,"


# -- the server ------------------------------------------------------------------------------------

HANDSHAKE: Final = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES',time_zone='+00:00',autocommit=1,"
    "innodb_lock_wait_timeout=1,lock_wait_timeout=1/*M!,in_predicate_conversion_threshold=0*/;"
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    f"SELECT {CLOCK},SLEEP(0.001),{CLOCK},{HERE},@@autocommit,@@max_allowed_packet,@@binlog_format;"
    "SELECT COALESCE(SUM(engine<>'InnoDB'),3),MAX(create_time) FROM information_schema.tables"
    " WHERE table_schema=DATABASE()"
    " AND table_name IN ('incumbent_lease','incumbent_beside','incumbent_marker');"
    "SELECT format,id,place,made,born,longest,floor FROM incumbent_marker"
)
"""Sets what every connection needs, and asks for the facts of the server."""
_HIGHEST: Final = "GREATEST(floor,COALESCE((SELECT MAX(token) FROM incumbent_lease),0))"
# Tokens go on above all that was granted, and above what was lost, which was at most JUMP ahead of
# the clock. Values: the new id, `made`, the id before, `made`, the new id.
BEGIN: Final = (
    "START TRANSACTION;INSERT IGNORE INTO incumbent_marker (one,format,id,place,made)"
    f" VALUES (1,{FORMAT},'','','');UPDATE incumbent_marker SET"
    f" floor=IF(id='',{CLOCK}+{JUMP}+1,GREATEST({CLOCK}+{JUMP},{_HIGHEST}+1)),"
    f"id=%s,place={HERE},made=%s,born={CLOCK} WHERE id=%s AND (place<>{HERE} OR made<>%s);"
    "UPDATE incumbent_lease,incumbent_marker SET epoch=id WHERE id=%s;COMMIT"
)


def longest(epoch: str, ttl: int) -> str:
    """Note the longest ttl that anybody asked for, before it is granted."""
    return f"UPDATE incumbent_marker SET longest=GREATEST(longest,{ttl}) WHERE id='{epoch}'"


def if_ours(epoch: str, here: str) -> str:
    """The condition that the row belongs to this incarnation, and this is the server of it."""
    return f"epoch='{epoch}' AND {HERE}='{here}'"


# -- the quick ones --------------------------------------------------------------------------------


def take(if_ours: str, floor: int, admitted: int, until: int) -> str:
    """Values: claim, holder, ttl, meta, how long to keep the record, name."""
    return (
        f"UPDATE incumbent_lease SET past={_pushed()},since={CLOCK},{_NEXT}since),"
        f"token=LAST_INSERT_ID(GREATEST(token+1,since,{floor})),granted=granted+1,"
        "changes=changes+1,claim=%s,holder=%s,ttl=%s,expires=since+ttl,meta=%s,started=since,"
        f"ended=0,keep_until=GREATEST(keep_until,since+%s),{_SEALED}"
        f" WHERE name=%s AND {if_ours} AND rest='' AND joins=0 AND expires<={CLOCK} AND {_SEALED}"
        f" AND {CLOCK} BETWEEN {admitted} AND {until}"
    )


def _pushed() -> str:
    """The history with the grant before; rules.taking.past_place has its place there."""
    one = "JSON_ARRAY(holder,token,started,ended)"
    return f"IF(granted,JSON_SET(past,CONCAT('$.\"',(granted-1) MOD 19,'\"'),{one}),past)"


def renew(if_ours: str, ttl: int, count: int) -> str:
    """Values: the names, and "<name> <claim> <token>" of each."""
    return (
        f"UPDATE incumbent_lease SET expires=GREATEST(expires,{CLOCK}+{ttl}),{_NEXT}{CLOCK}),"
        f"keep_until=GREATEST(keep_until,expires),{_SEALED} {_held_by(if_ours, count)}"
        f" AND expires>{CLOCK} AND {_SEALED}"
    )


_LEASE: Final = "CONCAT_WS(' ',name,claim,token)"
NOTE_NOW: Final = f"SET @now={CLOCK}"


def renewed(if_ours: str, ttl: int, count: int) -> str:
    """Which of them last for their ttl from @now on; values as above."""
    found = f"SELECT {_LEASE} FROM incumbent_lease {_held_by(if_ours, count)}"
    return f"{found} AND expires>=@now+{ttl} AND {_SEALED}"


def _held_by(if_ours: str, count: int) -> str:
    many = ",".join(["%s"] * count)
    return f"WHERE name IN ({many}) AND {_LEASE} IN ({many}) AND {if_ours} AND notices=0"


def give(if_ours: str) -> str:
    """Values: name, claim, token."""
    return (
        f"UPDATE incumbent_lease SET ended={CLOCK},{_NEXT}ended),changes=changes+1,claim='',"
        f"ttl=0,since=0,expires=0,meta='',{_SEALED} WHERE name=%s AND {if_ours} AND rest=''"
        f" AND joins=0 AND claim=%s AND token=%s AND expires>{CLOCK} AND {_SEALED}"
    )


# -- the others ------------------------------------------------------------------------------------


def load(names: str, *, past: bool) -> str:
    """The rows with these names (a condition), beside the marker; one row at least, if there is a
    marker.
    """
    history = "past" if past else "''"
    return (
        f"SELECT id,{HERE},{START},name,epoch=id AND {_SEALED},version,written,{history},{_COLUMNS}"
        f" FROM incumbent_marker LEFT JOIN incumbent_lease ON {names}"
    )


def beside(where: str) -> str:
    """The values beside the records, and who joined their lines, in the order of arrival."""
    return f"SELECT name,kind,part,value,at FROM incumbent_beside WHERE {where} ORDER BY at,part"


def blank(epoch: str, here: str) -> str:
    """Make the row of a name that is not known, with version 0. Values: name, its seal.

    Unlike IGNORE this locks a row that is there as the swap does that follows: no deadlock.
    """
    return (
        "INSERT INTO incumbent_lease (name,epoch,claim,holder,meta,rest,past,seal)"
        f" SELECT %s,id,'','','','','{{}}',%s FROM incumbent_marker"
        f" WHERE id='{epoch}' AND place={HERE} AND {HERE}='{here}' LOCK IN SHARE MODE"
        " ON DUPLICATE KEY UPDATE joins=joins"
    )


def swap(if_ours: str, version: int, not_before: int, columns: str) -> str:
    """Values: those of the columns, then the name."""
    return (
        f"UPDATE incumbent_lease SET {columns},{_SEALED} WHERE name=%s AND {if_ours}"
        f" AND version={version} AND {_SEALED}"
        f" AND {CLOCK} BETWEEN {not_before} AND {not_before + LATE}"
    )


# These follow a swap in its transaction, and @done says whether it was done.
DONE: Final = "SET @done=ROW_COUNT()"
PUT: Final = (  # kind, part, value, name
    "REPLACE INTO incumbent_beside (name,kind,part,value,at)"
    " SELECT name,%s,%s,%s,written FROM incumbent_lease WHERE name=%s AND @done"
)
REMOVE: Final = "DELETE FROM incumbent_beside WHERE name=%s AND kind=%s AND part=%s AND @done"
DRAIN: Final = (  # name, claim, at
    "DELETE FROM incumbent_beside WHERE name=%s AND kind='join' AND part=%s AND at=%s AND @done"
)
DRAINED: Final = (  # name, name
    "UPDATE incumbent_lease SET joins=0 WHERE name=%s AND @done AND NOT EXISTS"
    " (SELECT 1 FROM incumbent_beside WHERE name=%s AND kind='join')"
)


def join(if_ours: str) -> str:
    """Mark a record, and leave a waiter beside it. Values: name, claim, value, name.

    The mark locks the row, so waiters come one after the other: each finds those before it, and
    comes after them, also if the clock stands still or stepped back.
    """
    return (
        f"START TRANSACTION;UPDATE incumbent_lease SET joins=joins+1 WHERE name=%s AND {if_ours};"
        "REPLACE INTO incumbent_beside (name,kind,part,value,at) SELECT name,'join',%s,%s,"
        f"GREATEST({CLOCK},COALESCE((SELECT MAX(at)+1 FROM incumbent_beside AS b"
        " WHERE b.name=incumbent_lease.name AND b.kind='join'),0))"
        f" FROM incumbent_lease WHERE name=%s AND {if_ours};COMMIT"
    )


def forgettable(now: int, most: int) -> str:
    """Some names of which nothing matters any more."""
    return f"SELECT name FROM incumbent_lease WHERE {_unneeded(now)} LIMIT {most}"


def forget(now: int, names: str) -> str:
    """Forget those of these names (a list) of which nothing matters yet."""
    return (
        f"START TRANSACTION;DELETE FROM incumbent_lease WHERE name IN {names} AND {_unneeded(now)};"
        f"DELETE FROM incumbent_beside WHERE name IN {names} AND NOT EXISTS (SELECT 1 FROM"
        " incumbent_lease AS l WHERE l.name=incumbent_beside.name LOCK IN SHARE MODE);COMMIT"
    )


def _unneeded(now: int) -> str:
    return (
        f"keep_until<{now - 2 * LATE} AND written<{now - 2 * LATE} AND expires<{now} AND notices=0"
        " AND NOT EXISTS (SELECT 1 FROM incumbent_beside AS b"
        " WHERE b.name=incumbent_lease.name AND b.kind='field')"
    )
