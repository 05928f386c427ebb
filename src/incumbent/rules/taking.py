"""Takes: a claim is granted the name, or refused, with a place in line or without one."""

from __future__ import annotations

from typing import Final

from incumbent.model import UNLIMITED, Ask, Granted, Holding, Queued, Refused, TakeOutcome
from incumbent.rules import line as lines
from incumbent.rules.record import (
    EVERYBODY,
    HISTORY_KEPT,
    Entry,
    Grant,
    Instant,
    LastGrant,
    LeaseRecord,
    ListedCandidate,
    Moment,
    Ruling,
    Waiter,
    after,
    closed,
    holders,
    holding_of,
    later_of,
    micros,
    seen_of,
)
from incumbent.rules.showing import holding

CANDIDATES_KEPT: Final = 100
"""The most candidates that a record lists: those whose candidacy ends last."""


def take(
    record: LeaseRecord, claim: str, ask: Ask, at: Moment, used: Grant | None = None
) -> Ruling[TakeOutcome]:
    """Store.take. `used`: the last grant that used the slot which is asked for."""
    if any(gone.claim == claim and gone.until > at.now for gone in record.given_up):
        # Its caller has gone: nobody would know that it holds the name. "closed" ends a take that
        # nobody waits for any more, whatever the reason says.
        return Ruling(Refused("closed", seen=seen_of(record, at.epoch)))
    mine = holding_of(record, claim, at.now)
    if mine is not None:
        return _again(record, mine, ask, at)
    refusal = _refusal(record, claim, ask, at, used)
    if refusal is None:
        return _grant(record, claim, ask, at)
    return _refuse(record, claim, ask, at, refusal)


def _again(record: LeaseRecord, mine: Grant, ask: Ask, at: Moment) -> Ruling[TakeOutcome]:
    """The same grant again, because the answer to the first take may have been lost."""
    # Never shorter: an earlier answer may have been believed already, with the longer ttl.
    us = max(micros(ask.ttl), mine.expires - at.now)
    longer = mine._replace(expires=after(us))
    grants = tuple(longer if grant is mine else grant for grant in record.grants)
    return Ruling(
        Granted(mine.claim, mine.token, us / 1e6, at.epoch),
        record._replace(grants=grants, keep_until=later_of(record.keep_until, us, at.now)),
    )


# -- why not ---------------------------------------------------------------------------------------


def _refusal(
    record: LeaseRecord, claim: str, ask: Ask, at: Moment, used: Grant | None
) -> Refused | None:
    """The first reason that keeps the claim out; a later reason counts on the ones before it."""
    now, seen = at.now, seen_of(record, at.epoch)
    return (
        _no_room(record, ask, now, seen)
        or _slot_used(claim, used, now, seen)
        or _paused(record, seen)
        or _closed(record, ask, now, seen)
        or _not_its_turn(record, claim, now, seen)
    )


def _slot_used(claim: str, used: Grant | None, now: Instant, seen: str) -> Refused | None:
    if used is None or used.claim == claim or used.expires <= now:
        return None
    return Refused("used", (holding(used, now),), (used.expires - now) / 1e6, seen)


def _paused(record: LeaseRecord, seen: str) -> Refused | None:
    return None if record.pause is None else Refused("paused", seen=seen)


def _closed(record: LeaseRecord, ask: Ask, now: Instant, seen: str) -> Refused | None:
    closing = closed(record, now)
    if closing is None:
        return None
    left = (closing.until - now) / 1e6
    if not closing.reserved_for:
        return Refused("closed", (Holding(closing.holder, closing.token, left),), left, seen)
    # By holder: who reserved the name knows its successor by that, and knows no claim.
    if closing.reserved_for == ask.holder:
        return None
    return Refused("reserved", (Holding(closing.reserved_for, 0, left),), left, seen)


def _not_its_turn(record: LeaseRecord, claim: str, now: Instant, seen: str) -> Refused | None:
    first = lines.preceding(record.line, claim, now)
    # If it is closed, `_closed` let this asker pass as the successor, who precedes the line.
    if first is None or closed(record, now):
        return None
    left = (record.line.lapses_at - now) / 1e6
    return Refused("turn", (Holding(first.holder, 0, left),), left, seen)


def _no_room(record: LeaseRecord, ask: Ask, now: Instant, seen: str) -> Refused | None:
    """The refusal because of the holders, if there is no room beside them."""
    there = holders(record, now)
    if not there:
        return None
    shown = tuple(holding(grant, now) for grant in there)
    ends = [(grant.expires - now) / 1e6 for grant in there]
    permits = there[0].permits
    if permits is None or ask.permits is None:
        # A claim that wants it alone waits for the last of them.
        return Refused("held", shown, max(ends), seen)
    # Not "held": one of the two numbers is a mistake, and waiting would hide it.
    if ask.permits != permits:
        return Refused("permits", shown, min(ends), seen, permits=permits)
    return Refused("held", shown, min(ends), seen) if _full(permits, len(there)) else None


def _full(permits: int | None, count: int) -> bool:
    return permits is not None and permits != UNLIMITED and count >= permits


def _refuse(
    record: LeaseRecord, claim: str, ask: Ask, at: Moment, refusal: Refused
) -> Ruling[TakeOutcome]:
    """The refusal, once candidate and waiter are on record. Nobody has to be woken for that."""
    new = record
    if ask.candidacy > 0:
        new = new._replace(candidates=_standing(record, ask, at.now))
    outcome: TakeOutcome = refusal
    # Waiting does not help against another number of permits.
    if ask.queue is not None and refusal.reason != "permits":
        left = ask.ttl if refusal.retry_after is None else min(ask.ttl, refusal.retry_after)
        waiter = Waiter(claim, ask.holder, micros(ask.queue.heartbeat), ask.queue.fair)
        new = new._replace(line=lines.join(record.line, waiter, micros(left), at.now))
        place = lines.place_of(new.line, claim)
        outcome = Queued(refusal.reason, refusal.holders, refusal.retry_after, refusal.seen, place)
    if new is record or new == record:
        return Ruling(outcome)
    kept = later_of(record.keep_until, micros(max(ask.ttl, ask.candidacy)), at.now)
    return Ruling(outcome, new._replace(keep_until=kept))


def _standing(record: LeaseRecord, ask: Ask, now: Instant) -> tuple[ListedCandidate, ...]:
    """The candidates that are still listed, and the asker as the last."""
    others = [it for it in record.candidates if it.until > now and it.holder != ask.holder]
    others.sort(key=lambda it: (it.until, it.holder))
    asker = ListedCandidate(ask.holder, after(micros(ask.candidacy)))
    return (*others[1 - CANDIDATES_KEPT :], asker)


# -- the grant -------------------------------------------------------------------------------------


def _grant(record: LeaseRecord, claim: str, ask: Ask, at: Moment) -> Ruling[TakeOutcome]:
    beside = () if ask.permits is None else holders(record, at.now)
    # The clock, so that tokens grow even over a wipe; plus one, in case the clock was set back.
    token = max(record.token + 1, at.wall, at.floor)
    ttl = micros(ask.ttl)
    grant = Grant(
        *(claim, ask.holder, token, ttl, after(0), after(ttl), ask.meta, ask.permits),
        record.granted,
    )
    shares = ask.permits is not None
    room_beside = shares and not _full(ask.permits, len(beside) + 1)
    keep = max(ttl, micros(ask.keep_record))
    elected = ask.holder if ask.candidacy > 0 else None
    new = record._replace(
        token=token,
        granted=record.granted + 1,
        grants=(*beside, grant),
        changes=record.changes + 1,
        last=LastGrant(ask.holder, token, at.wall),
        # Whoever is let in while it is closed is the successor: the reservation is used up.
        closing=None,
        # It asked the holders before this one to resign. Some of them may share the lease still.
        resign=record.resign if beside else None,
        line=lines.served(record.line, claim, 0 if room_beside else ttl, at.now),
        # Expired entries go: the record of a name that is taken and given back is plain again.
        candidates=tuple(
            it for it in record.candidates if it.until > at.now and it.holder != elected
        ),
        given_up=tuple(it for it in record.given_up if it.until > at.now),
        keep_until=later_of(record.keep_until, keep, at.now),
    )
    entries = past_entries(record)
    if ask.slot is not None:
        slot = grant._replace(expires=after(micros(ask.slot.keep)), meta=b"")
        entries = (*entries, Entry("slot", ask.slot.name, slot))
        new = new._replace(keep_until=later_of(new.keep_until, micros(ask.slot.keep), at.now))
    # Candidates want to know who leads; and the next waiter may share the lease, if there is room.
    wake = EVERYBODY if ask.candidacy > 0 or shares else ""
    return Ruling(Granted(claim, token, ask.ttl, at.epoch), new, wake, entries)


def past_entries(record: LeaseRecord) -> tuple[Entry, ...]:
    """The newest holding of the history, moved out of the record to make room for another one."""
    if record.last is None:
        return ()
    return (Entry("past", past_place(record.granted - 1), record.last),)


def past_place(number: int) -> str:
    """The place in the history of the grant with this number; the newest one is in the record."""
    return str(number % (HISTORY_KEPT - 1))
