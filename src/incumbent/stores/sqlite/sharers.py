"""Those who hold a lease together, kept in the file: see `schema` for their rows and the latch.

Each function runs within a transaction. `row` is the lease as it was found there.
"""

from __future__ import annotations

from incumbent.model import Ask, Holding, Refused
from incumbent.stores.sqlite import schema
from incumbent.stores.sqlite.connection import Connection
from incumbent.stores.sqlite.rows import Row


def holdings(db: Connection, name: str, now: float) -> tuple[Holding, ...]:
    """One of each that shares it now."""
    return tuple(
        Holding(holder, token, expires - now, ttl, now - since, meta, claim, permits=permits)
        for holder, token, ttl, meta, since, expires, claim, permits in db.execute(
            schema.SEE_SHARERS, (name, now)
        ).fetchall()
    )


def refusal(db: Connection, name: str, row: Row, ask: Ask, now: float, seen: str) -> Refused | None:
    """Why there is no room for `ask` beside those who share it, or None."""
    count, permits = db.execute(schema.COUNT_SHARERS, (name, now)).fetchone()
    if not count or (ask.permits == permits and not 0 < permits <= count):
        return None
    holders = holdings(db, name, now)
    if ask.permits is None:
        return Refused("held", holders, row.expires - now, seen)
    left = min(one.remaining or 0.0 for one in holders)
    if ask.permits != permits:
        return Refused("permits", holders, left, seen, permits=permits)
    return Refused("held", holders, left, seen)


def have_room(db: Connection, name: str, ask: Ask, now: float) -> bool:
    """Whether others may have what was granted to `ask` at the same time."""
    if ask.permits is None:
        return False
    (count, _) = db.execute(schema.COUNT_SHARERS, (name, now)).fetchone()
    return not ask.permits or count < ask.permits


def repeat(
    db: Connection, name: str, row: Row, claim: str, ttl: float, now: float
) -> tuple[int, float] | None:
    """Keep a claim that shares the lease already for `ttl`: its token, and the seconds left."""
    found = db.execute(schema.SEE_SHARER, (name, claim, now)).fetchone()
    if found is None:
        return None
    token, expires = found
    expires = max(expires, now + ttl)
    db.execute(schema.REPEAT_SHARER, (expires, name, claim))
    db.execute(schema.REPEAT, (max(row.expires, expires), name))
    return token, expires - now


def join(
    db: Connection, name: str, row: Row, claim: str, token: int, ask: Ask, now: float
) -> float:
    """Add a claim to those who share it: the instant at which the latch ends."""
    shared, expires = row.shared(now), now + ask.ttl
    db.execute(schema.DROP_SHARERS, (name, now if shared else float("inf")))
    values = (name, claim, ask.holder, token, ask.ttl, ask.meta, now, expires, ask.permits)
    db.execute(schema.SHARE, values)
    return max(row.expires, expires) if shared else expires


def leave(db: Connection, name: str, claim: str, token: int | None) -> bool:
    """End what a claim shares; True if it did share it. With the last of them the latch goes."""
    now, wall = db.host.now(), db.host.wall()
    found = db.execute(schema.GIVE_SHARER, (name, claim, token, now)).fetchone()
    if found is None:
        return False
    (token,) = found
    db.execute(schema.GIVE_LATCH, (name, now, token, wall))
    db.execute(schema.END_PAST, (wall, name, token))
    return True
