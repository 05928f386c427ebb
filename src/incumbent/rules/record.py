"""The record of a name: everything that the rules know about it, as values that never change.

Instants and durations are integers: microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from incumbent.model import Field

OutcomeT = TypeVar("OutcomeT")

HISTORY_KEPT: Final = 20
"""The most past holdings that are kept of a name."""

EVERYBODY: Final = "*"
"""Wake all who wait for a change of the name; no claim is called so."""

# -- time ------------------------------------------------------------------------------------------

Instant: TypeAlias = int
"""Microseconds on the store's clock, or `after(...)` in a record that has not been written yet."""

_BEGUN: Final = 1 << 62


def after(us: int) -> Instant:
    """The instant `us` microseconds after the write of the record that it is in."""
    return _BEGUN + us


def us_after_write(instant: Instant) -> int | None:
    """The microseconds of an `after(...)`; None for an instant that is known already."""
    # No known instant comes near half of _BEGUN.
    return instant - _BEGUN if instant >= _BEGUN // 2 else None


def later_of(instant: Instant, us: int, now: Instant) -> Instant:
    """`instant`, or `after(us)` if that is later."""
    known = us_after_write(instant)
    left = instant - now if known is None else known
    return instant if left >= us else after(us)


def micros(seconds: float) -> int:
    """Seconds as microseconds, rounded up."""
    return ceil(seconds * 1_000_000)


class Moment(NamedTuple):
    """When and where a rule is applied.

    `now`: an instant that is not later than the store's clock at the write.
    `wall`: the wall clock, in microseconds: tokens begin there, and people are shown it.
    `floor`: the least token to grant, because of what the store may have lost.
    `epoch`: the incarnation of the store.
    """

    now: Instant
    wall: int
    floor: int = 0
    epoch: str = ""


# -- the record ------------------------------------------------------------------------------------


class Grant(NamedTuple):
    """A claim that was granted the name, until `expires`.

    `ttl`: that of its first take; `number`: how many grants there were before it;
    `permits`: as in model.Ask: None if it holds the name alone.
    """

    claim: str
    holder: str
    token: int
    ttl: int
    since: Instant
    expires: Instant
    meta: bytes = b""
    permits: int | None = None
    number: int = 0


class LastGrant(NamedTuple):
    """The newest entry of the history; wall clock. `ended`: 0 unless it was given back."""

    holder: str
    token: int
    started: int
    ended: int = 0


class Closing(NamedTuple):
    """A release that keeps the name closed, to all but `reserved_for` if that is not empty."""

    holder: str
    token: int
    until: Instant
    reserved_for: str = ""


class Waiter(NamedTuple):
    """A claim in line. In its turn it may stay silent for `heartbeat` microseconds."""

    claim: str
    holder: str
    heartbeat: int
    fair: bool


class Line(NamedTuple):
    """The waiters in the order of arrival.

    `lapses_at`: the first waiter keeps its place until then without asking, whether the name is
    held or free; `overtaken`: how many other claims were granted the name since it became the
    first.
    """

    waiters: tuple[Waiter, ...] = ()
    lapses_at: Instant = 0
    overtaken: int = 0


class ListedCandidate(NamedTuple):
    """A candidate, listed until `until`."""

    holder: str
    until: Instant


class GivenUp(NamedTuple):
    """A claim that was given up in doubt: until `until` a take of it comes too late."""

    claim: str
    until: Instant


Beside: TypeAlias = Field | Grant | LastGrant
"""A value beside a record: a field, the last use of a slot, an entry of the history."""


class LeaseRecord(NamedTuple):
    """All that the rules know about a name; NOTHING if nothing is known of it.

    `token`: the last token that was granted; `granted`: how many grants there were;
    `grants`: the holders, those that expired included until the next write;
    `changes`: counts what waiters and observers have to learn of;
    `pause`, `resign`: the notices of operators, see rules.notices;
    `version`: the last version of a field; `keep_until`: the store may forget the name then;
    `more`: parts that a later version of these rules wrote, carried on as they are.
    """

    token: int = 0
    granted: int = 0
    grants: tuple[Grant, ...] = ()
    changes: int = 0
    last: LastGrant | None = None
    closing: Closing | None = None
    pause: Field | None = None
    resign: Field | None = None
    line: Line = Line()
    candidates: tuple[ListedCandidate, ...] = ()
    given_up: tuple[GivenUp, ...] = ()
    version: int = 0
    keep_until: Instant = 0
    more: Mapping[str, object] = {}

    @property
    def plain(self) -> bool:
        """Whether it says no more than who holds the name alone, or held it last."""
        # Compares all from `closing` to `given_up`.
        alone = not self.grants or self.grants[0].permits is None
        return alone and self[5:11] == _PLAIN and not self.more


NOTHING: Final = LeaseRecord()
_PLAIN: Final = NOTHING[5:11]


def holders(record: LeaseRecord, now: Instant) -> tuple[Grant, ...]:
    """The claims that hold the name: one, or several that share it."""
    return tuple(grant for grant in record.grants if grant.expires > now)


def holding_of(record: LeaseRecord, claim: str, now: Instant) -> Grant | None:
    """The claim's own grant, while it holds the name."""
    for grant in record.grants:
        if grant.claim == claim and grant.expires > now:
            return grant
    return None


def dated(record: LeaseRecord, written: Instant) -> LeaseRecord:
    """The record with all its instants known, once it was written at `written`."""
    closing = record.closing
    return record._replace(
        grants=tuple(dated_grant(grant, written) for grant in record.grants),
        closing=closing and closing._replace(until=_known(closing.until, written)),
        line=dated_line(record.line, written),
        candidates=tuple(it._replace(until=_known(it.until, written)) for it in record.candidates),
        given_up=tuple(it._replace(until=_known(it.until, written)) for it in record.given_up),
        keep_until=_known(record.keep_until, written),
    )


def dated_grant(grant: Grant, written: Instant) -> Grant:
    """The grant with its instants known, once it was written at `written`."""
    since, expires = _known(grant.since, written), _known(grant.expires, written)
    return grant._replace(since=since, expires=expires)


def dated_value(value: Beside, written: Instant) -> Beside:
    """A value beside a record with its instants known, likewise."""
    return dated_grant(value, written) if isinstance(value, Grant) else value


def dated_line(line: Line, written: Instant) -> Line:
    """The line with its instants known, likewise."""
    return line._replace(lapses_at=_known(line.lapses_at, written))


def _known(instant: Instant, written: Instant) -> Instant:
    us = us_after_write(instant)
    return instant if us is None else written + us


def moved(record: LeaseRecord, by: int) -> LeaseRecord:
    """The record with all its instants moved by microseconds, from one clock to another."""
    closing = record.closing
    return record._replace(
        grants=tuple(moved_grant(grant, by) for grant in record.grants),
        closing=closing and closing._replace(until=closing.until + by),
        line=record.line._replace(lapses_at=record.line.lapses_at + by),
        candidates=tuple(it._replace(until=it.until + by) for it in record.candidates),
        given_up=tuple(it._replace(until=it.until + by) for it in record.given_up),
        keep_until=record.keep_until + by,
    )


def moved_grant(grant: Grant, by: int) -> Grant:
    """The grant, likewise."""
    return grant._replace(since=grant.since + by, expires=grant.expires + by)


def moved_value(value: Beside, by: int) -> Beside:
    """A value beside a record, likewise."""
    return moved_grant(value, by) if isinstance(value, Grant) else value


def without_holders(record: LeaseRecord) -> LeaseRecord:
    """The record after a restart, which no holder, waiter, candidate or late take survives."""
    return record._replace(grants=(), line=Line(), candidates=(), given_up=())


def closed(record: LeaseRecord, now: Instant) -> Closing | None:
    """The closing that is in force, if any."""
    closing = record.closing
    return closing if closing is not None and closing.until > now else None


def seen_of(record: LeaseRecord, epoch: str) -> str:
    """The text that `Store.wait_change` compares."""
    return f"{epoch}:{record.changes}" if record.changes else ""


def may_forget(record: LeaseRecord, now: Instant) -> bool:
    """Whether nothing that is known of the name matters any more, fields and slots aside."""
    if record.pause or record.resign or holders(record, now) or closed(record, now):
        return False
    return record.keep_until <= now


# -- beside the record -----------------------------------------------------------------------------


class Entry(NamedTuple):
    """A value beside the record, written in the same step; None removes it.

    `kind` and `name` identify it: ("field", its name), ("slot", its name), ("past", its place).
    """

    kind: str
    name: str
    value: Beside | None


class Ruling(NamedTuple, Generic[OutcomeT]):
    """The decision of a rule. `record`: the next record; None: it stays as it is.

    `wake`: "" (nobody), EVERYBODY, or a claim: this waiter, and all that wait without a place in
    line.
    """

    outcome: OutcomeT
    record: LeaseRecord | None = None
    wake: str = ""
    entries: tuple[Entry, ...] = ()
