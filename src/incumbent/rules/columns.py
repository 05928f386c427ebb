"""A record as columns, for stores that keep rows: what every lease has, and a text for the rest.

The usual record, of a name that somebody holds alone or held last, is all in the columns, and its
`rest` is empty. So a statement can grant, renew or give back a lease without a look at a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from incumbent.rules.codec import decoded, encoded, waiters_of
from incumbent.rules.record import NOTHING, Grant, Instant, LastGrant, LeaseRecord, Line


class Columns(NamedTuple):
    """The columns of a record; see LeaseRecord and Grant.

    `claim`: who holds the name alone, or held it last without giving it back; empty: nobody, or
    several share it. `holder`, `token`, `started` and `ended` are also those of the last grant, if
    `granted` says that there was one. `rest`: the text of everything else, or nothing.
    """

    token: int = 0
    granted: int = 0
    changes: int = 0
    claim: str = ""
    holder: str = ""
    ttl: int = 0
    since: Instant = 0
    expires: Instant = 0
    meta: bytes = b""
    started: int = 0
    ended: int = 0
    field_version: int = 0
    keep_until: Instant = 0
    rest: bytes = b""


_NOBODY: Final = Grant("", "", 0, 0, 0, 0)


def columns_of(record: LeaseRecord) -> Columns:
    """The columns of a record."""
    mine, last = _alone(record), record.last or LastGrant("", 0, 0)
    rest = record._replace(
        token=0,
        granted=0,
        changes=0,
        last=None,
        version=0,
        keep_until=0,
        grants=() if mine else record.grants,
    )
    mine = mine or _NOBODY
    return Columns(
        record.token,
        record.granted,
        record.changes,
        mine.claim,
        last.holder,
        mine.ttl,
        mine.since,
        mine.expires,
        mine.meta,
        last.started,
        last.ended,
        record.version,
        record.keep_until,
        b"" if rest == NOTHING else encoded(rest),
    )


def _alone(record: LeaseRecord) -> Grant | None:
    """The grant of who holds the name alone, or held it last."""
    if record.last is None or len(record.grants) != 1:
        return None
    (grant,) = record.grants
    # The columns keep these once, for the grant and for the history: only if both agree.
    known = record.last.holder, record.last.token, record.granted - 1
    same = (grant.holder, grant.token, grant.number) == known and record.token == grant.token
    return grant if grant.permits is None and grant.claim and same else None


def record_of(it: Columns, written: Instant) -> LeaseRecord:
    """The record of columns; its rest was written at `written`. Raises Unreadable."""
    record = decoded(it.rest, written) if it.rest else NOTHING
    if it.claim:
        alone = it.meta, None, it.granted - 1
        held = Grant(it.claim, it.holder, it.token, it.ttl, it.since, it.expires, *alone)
        record = record._replace(grants=(held,))
    last = LastGrant(it.holder, it.token, it.started, it.ended) if it.granted else None
    return record._replace(
        token=it.token,
        granted=it.granted,
        changes=it.changes,
        last=last,
        version=it.field_version,
        keep_until=it.keep_until,
    )


class LineColumns(NamedTuple):
    """The columns of a line, for stores whose waiters are rows of their own; see Line.

    `due`: Line.lapses_at; `heartbeat`: of the first waiter; 0: nobody waits. `fair`: whether the
    first asked for fairness. So a statement can begin the first waiter's turn, or count another
    grant before it, without a look at who waits.
    """

    due: Instant = 0
    overtaken: int = 0
    heartbeat: int = 0
    fair: int = 0


def line_columns_of(line: Line) -> LineColumns:
    """The columns of a line."""
    if not line.waiters:
        return LineColumns()
    first = line.waiters[0]
    return LineColumns(line.lapses_at, line.overtaken, first.heartbeat, int(first.fair))


def line_of(it: LineColumns, rows: Iterable[Iterable[Any]]) -> Line:
    """The line of columns, and of the rows of its waiters in order. Raises Unreadable."""
    waiters = waiters_of(rows)
    return Line(waiters, it.due, it.overtaken) if waiters else Line()
