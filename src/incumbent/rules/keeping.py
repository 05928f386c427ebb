"""What follows a grant: it is renewed, and given back; and fields are written beside the lease."""

from __future__ import annotations

from typing import Final

from incumbent.model import (
    PLAIN,
    Field,
    GiveOutcome,
    Gone,
    Guard,
    Parting,
    PutOutcome,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Stale,
    Stored,
)
from incumbent.rules import line as lines
from incumbent.rules.notices import PAUSE, RESIGN, guard_holds, notices_for
from incumbent.rules.record import (
    EVERYBODY,
    HISTORY_KEPT,
    Closing,
    Entry,
    GivenUp,
    Grant,
    LastGrant,
    LeaseRecord,
    Moment,
    Ruling,
    after,
    holders,
    holding_of,
    later_of,
    micros,
)
from incumbent.rules.taking import past_place

LATE_KEPT: Final = 60.0
"""Seconds for which takes are refused of a claim that was given up in doubt."""

_PUT_KEEPS: Final = 86_400_000_000
_SWITCHES: Final = (PAUSE, RESIGN)


def renew(record: LeaseRecord, renewal: Renewal, at: Moment) -> Ruling[RenewOutcome]:
    """Store.renew, for one lease: it never creates, and never shortens.

    Its answer tells the holder whether the name is paused, and whether an operator or a candidate
    asks this holder to end (`rules.notices`): it holds the name until it gives it back.
    """
    # First: what outlived a restart may lack its last writes, so no holder survives one.
    if renewal.epoch != at.epoch:
        return Ruling(Gone("store_restarted"))
    mine = holding_of(record, renewal.claim, at.now)
    # The claim may hold it anew, after it ran out: that is another term, with another token.
    if mine is None or mine.token != renewal.token:
        return Ruling(Gone())
    us = max(micros(renewal.ttl), mine.expires - at.now)
    meta = mine.meta if renewal.meta is None else renewal.meta
    longer = mine._replace(expires=after(us), meta=meta)
    # A renewal alone is no news: else every waiter would be woken at every heartbeat.
    changed = meta != mine.meta
    new = record._replace(
        grants=tuple(longer if grant is mine else grant for grant in record.grants),
        changes=record.changes + changed,
        keep_until=later_of(record.keep_until, us, at.now),
    )
    pause, resign = (it and it.value for it in (record.pause, record.resign))
    notices = notices_for(mine.token, pause, resign)
    return Ruling(Renewed(notices), new, EVERYBODY if changed else "")


def give(
    record: LeaseRecord,
    claim: str,
    token: int | None,
    at: Moment,
    parting: Parting = PLAIN,
    *,
    used: Grant | None = None,
    late_kept: float = LATE_KEPT,
) -> Ruling[GiveOutcome]:
    """Store.give. `token`: None if the claim is given up without knowing whether it was granted.

    `parting.shared` is for stores that keep shared leases apart: here the record says it.
    `used`: the last grant that used `parting.slot`.
    `late_kept`: seconds for which takes of a claim that was given up are refused: LATE_KEPT, or 0
    if no take can reach the store after its give.
    """
    closed_for, reserve_for, slot, _ = parting
    new, entries = record, tuple[Entry, ...]()
    if token is None and late_kept:
        # Noted even if it holds the name: a second take may be on its way behind the granted one.
        new = _given_up(record, claim, at, micros(late_kept))
    first = lines.first(record.line)
    # The waiter behind it becomes the first, and does not know it yet.
    changes = 1 if first is not None and first.claim == claim else 0
    if slot is not None and used and used.claim == claim and used.expires > at.now:
        entries, changes = (Entry("slot", slot, None),), changes + 1
    mine = holding_of(record, claim, at.now)
    line = lines.leave(record.line, claim, _looks_in(record, at))
    if mine is None or token not in (None, mine.token):
        # It held nothing. If it was the first in line, it is another waiter's turn.
        new = new._replace(line=line, changes=record.changes + changes)
        return Ruling(Gone(), None if new == record else new, EVERYBODY if changes else "", entries)
    new = new._replace(line=lines.begin_turn(line), changes=record.changes + changes + 1)
    new, past = _ended(new, mine, at)
    if closed_for > 0:
        us = micros(closed_for)
        closing = Closing(mine.holder, mine.token, after(us), reserve_for or "")
        kept = later_of(new.keep_until, us, at.now)
        new = new._replace(closing=closing, keep_until=kept)
    # One is enough where there is a line: of many that are woken one would get it.
    next_one = lines.first(new.line)
    wake = EVERYBODY if next_one is None or closed_for > 0 else next_one.claim
    return Ruling(Released(), new, wake, (*entries, *past))


def _looks_in(record: LeaseRecord, at: Moment) -> int:
    """Microseconds until the next waiter asks by itself: when the holder's ttl runs out."""
    there = holders(record, at.now)
    return there[0].expires - at.now if there and there[0].permits is None else 0


def _given_up(record: LeaseRecord, claim: str, at: Moment, us: int) -> LeaseRecord:
    """The record that refuses a take of this claim, which may still be on its way."""
    others = [it for it in record.given_up if it.until > at.now and it.claim != claim]
    return record._replace(
        given_up=(*others, GivenUp(claim, after(us))),
        keep_until=later_of(record.keep_until, us, at.now),
    )


def _ended(record: LeaseRecord, mine: Grant, at: Moment) -> tuple[LeaseRecord, tuple[Entry, ...]]:
    """The record without this grant, and the history with its end."""
    left = tuple(grant for grant in holders(record, at.now) if grant is not mine)
    new, last = record._replace(grants=left), record.last
    if last is not None and last.token == mine.token:
        return new._replace(last=last._replace(ended=at.wall)), ()
    if record.granted - mine.number > HISTORY_KEPT - 1:
        return new, ()  # a later holding has been written in its place
    started = at.wall - (at.now - mine.since)
    ended = LastGrant(mine.holder, mine.token, started, at.wall)
    return new, (Entry("past", past_place(mine.number), ended),)


def put(
    record: LeaseRecord, name: str, value: bytes | None, guard: Guard, at: Moment, old: Field | None
) -> Ruling[PutOutcome]:
    """Store.put. `old`: the field as it is; "pause" and "resign" are in the record itself."""
    if name in _SWITCHES:
        old = record.pause if name == PAUSE else record.resign
    there = holders(record, at.now)
    alone = there[0] if there and there[0].permits is None else None
    if not guard_holds(guard, old, (alone.claim, alone.token) if alone else None):
        return Ruling(Stale())
    if value is None and old is None:
        return Ruling(Stored(0))
    # Not below the clock, so that no version comes back after the name was forgotten.
    version = record.version if value is None else max(record.version + 1, at.wall)
    field = None if value is None else Field(value, version)
    new = record._replace(
        version=version,
        changes=record.changes + 1,
        keep_until=later_of(record.keep_until, _PUT_KEEPS, at.now),
    )
    stored = Stored(version if field else 0)
    if name == PAUSE:
        return Ruling(stored, new._replace(pause=field), EVERYBODY)
    if name == RESIGN:
        return Ruling(stored, new._replace(resign=field), EVERYBODY)
    return Ruling(stored, new, EVERYBODY, (Entry("field", name, field),))
