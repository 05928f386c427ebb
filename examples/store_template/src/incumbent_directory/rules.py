"""What each operation means for the one document of a key. Pure: no clock, no I/O.

Each rule takes the document as it is and the instant, and answers with the document as it shall be
(None: as it is) and the outcome. Whatever can read a document and replace it only if nobody else
did meanwhile can be a store with these rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from incumbent.model import (
    Ask,
    GiveOutcome,
    Gone,
    Granted,
    Holding,
    Key,
    Past,
    Record,
    Refused,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    TakeOutcome,
)

__all__ = ["HISTORY_KEPT", "Document", "Moment", "give", "record_of", "renew", "seen", "take"]

HISTORY_KEPT = 20


@dataclass(frozen=True, slots=True)
class Moment:
    """`now` counts ttls (seconds since `epoch` began), `wall` is for people and first tokens."""

    now: float
    wall: float
    epoch: str


@dataclass(frozen=True, slots=True)
class Document:
    """All that is kept of a key. `claim` is empty once it was given back; it stays past its end."""

    token: int = 0
    claim: str = ""
    holder: str = ""
    ttl: float = 0.0
    meta: str = ""
    since: float = 0.0
    expires: float = 0.0
    closed_until: float = 0.0
    epoch: str = ""
    changes: int = 0
    history: tuple[tuple[str, int, float, float | None], ...] = ()

    def held(self, at: Moment) -> bool:
        """Whether somebody holds the lease. An instant of another epoch means nothing."""
        return bool(self.claim) and self.epoch == at.epoch and self.expires > at.now

    def closed(self, at: Moment) -> bool:
        """Whether the last holder left the name closed."""
        return self.epoch == at.epoch and self.closed_until > at.now


def take(
    old: Document | None, claim: str, ask: Ask, at: Moment
) -> tuple[Document | None, TakeOutcome]:
    """See incumbent.stores.base.Store.take."""
    was = old or Document()
    if was.held(at):
        if was.claim != claim:
            return None, _refused("held", was, was.expires, at)
        again = replace(was, expires=max(was.expires, at.now + ask.ttl))
        return again, Granted(claim, was.token, again.expires - at.now, at.epoch)
    if was.closed(at):
        return None, _refused("closed", was, was.closed_until, at)
    # Not below the clock, so that tokens grow even if somebody removes the documents.
    token = max(was.token + 1, int(at.wall * 1_000_000))
    new = Document(
        token=token,
        claim=claim,
        holder=ask.holder,
        ttl=ask.ttl,
        meta=ask.meta.hex(),
        since=at.now,
        expires=at.now + ask.ttl,
        epoch=at.epoch,
        changes=was.changes + 1,
        history=(*was.history, (ask.holder, token, at.wall, None))[-HISTORY_KEPT:],
    )
    return new, Granted(claim, token, ask.ttl, at.epoch)


def renew(
    old: Document | None, renewal: Renewal, at: Moment
) -> tuple[Document | None, RenewOutcome]:
    """See incumbent.stores.base.Store.renew, for one lease."""
    if renewal.epoch != at.epoch:
        return None, Gone("store_restarted")
    mine = (renewal.claim, renewal.token)
    if old is None or not old.held(at) or (old.claim, old.token) != mine:
        return None, Gone()
    meta = old.meta if renewal.meta is None else renewal.meta.hex()
    changes = old.changes + (meta != old.meta)
    expires = max(old.expires, at.now + renewal.ttl)
    return replace(old, expires=expires, meta=meta, changes=changes), Renewed()


def give(
    old: Document | None, claim: str, token: int | None, closed_for: float, at: Moment
) -> tuple[Document | None, GiveOutcome]:
    """See incumbent.stores.base.Store.give."""
    if old is None or not old.held(at) or old.claim != claim or token not in (None, old.token):
        return None, Gone()
    history = tuple((*it[:3], at.wall) if it[1] == old.token else it for it in old.history)
    closed = at.now + closed_for if closed_for > 0 else 0.0
    new = replace(old, claim="", closed_until=closed, changes=old.changes + 1, history=history)
    return new, Released()


def seen(old: Document | None) -> str:
    """What `wait_change` compares."""
    return "" if old is None else f"{old.epoch}:{old.changes}"


def record_of(key: Key, old: Document | None, at: Moment) -> Record:
    """See incumbent.stores.base.Store.read."""
    if old is None:
        return Record(key)
    return Record(
        key,
        (_holding(old, at),) if old.held(at) else (),
        old.closed_until - at.now if old.closed(at) else 0.0,
        history=tuple(Past(*it) for it in old.history),
        seen=seen(old),
    )


def _refused(reason: str, was: Document, until: float, at: Moment) -> Refused:
    left = until - at.now
    if reason == "held":
        return Refused("held", (_holding(was, at),), left, seen(was))
    return Refused("closed", (Holding(was.holder, was.token, left),), left, seen(was))


def _holding(was: Document, at: Moment) -> Holding:
    left, for_long = was.expires - at.now, at.now - was.since
    meta = bytes.fromhex(was.meta)
    return Holding(was.holder, was.token, left, was.ttl, for_long, meta, was.claim)
