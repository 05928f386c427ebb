"""A record for display: durations instead of instants, and nothing that is over."""

from __future__ import annotations

from collections.abc import Iterable

from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.rules.notices import PAUSE, RESIGN
from incumbent.rules.record import (
    Entry,
    Grant,
    Instant,
    LastGrant,
    LeaseRecord,
    Moment,
    closed,
    holders,
    seen_of,
)


def holding(grant: Grant, now: Instant) -> Holding:
    """A grant as a holding."""
    left, held_for = (grant.expires - now) / 1e6, (now - grant.since) / 1e6
    return Holding(
        *(grant.holder, grant.token, left, grant.ttl / 1e6, held_for, grant.meta, grant.claim),
        *(not grant.token, grant.permits),
    )


def shown(key: Key, record: LeaseRecord, entries: Iterable[Entry], at: Moment) -> Record:
    """See Store.read; `entries`: all that is kept beside the record."""
    now, closing = at.now, closed(record, at.now)
    switches = ((PAUSE, record.pause), (RESIGN, record.resign))
    fields = {name: field for name, field in switches if field is not None}
    slots: dict[str, float] = {}
    past = [record.last] if record.last else []
    for _, name, value in entries:
        if isinstance(value, Field):
            fields[name] = value
        elif isinstance(value, Grant) and value.expires > now:
            slots[name] = (value.expires - now) / 1e6
        elif isinstance(value, LastGrant):
            past.append(value)
    candidates = sorted(it for it in record.candidates if it.until > now)
    return Record(
        key,
        tuple(holding(grant, now) for grant in holders(record, now)),
        (closing.until - now) / 1e6 if closing else 0.0,
        fields,
        slots,
        tuple(map(_past, sorted(past, key=lambda it: it.token))),
        tuple(Candidate(it.holder, (it.until - now) / 1e6) for it in candidates),
        seen_of(record, at.epoch),
        closing.reserved_for if closing else "",
    )


def _past(grant: LastGrant) -> Past:
    ended = grant.ended / 1e6 if grant.ended else None
    return Past(grant.holder, grant.token, grant.started / 1e6, ended)
