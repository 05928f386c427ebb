"""The meaning of a lease's rows: its own, and the rows of claims that share it or wait for it.

Functions that get a connection run within a transaction; `row` is the lease as read there.
`schema` explains the latch of a shared lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from incumbent.model import OVERTAKEN_MOST, UNLIMITED, Ask, Holding, Queue, Queued, Refused
from incumbent.stores.sqlite import schema
from incumbent.stores.sqlite.connection import Connection
from incumbent.stores.sqlite.schema import LATCH


class Row(NamedTuple):
    """The file's state and a lease's row, whose fields are None for an unknown key.

    `first_heartbeat` (the column `lined`): of the first in line, 0.0 if nobody waits.
    """

    boot: str
    floor: int
    highest_reserved_token: int
    claim: str | None
    holder: str
    token: int
    ttl: float
    meta: bytes
    since: float
    expires: float
    started: float
    ended: float | None
    closed_until: float
    grants: int
    changes: int
    version: int
    switched: int
    first_heartbeat: float
    due: float
    overtaken: int

    @property
    def line_exists(self) -> bool:
        """Whether anybody waits: the first in line has a heartbeat."""
        return (self.first_heartbeat or 0.0) > 0

    def held(self, now: float) -> bool:
        """Whether any claim holds the lease."""
        return self.claim is not None and self.expires > now

    def held_by(self, claim: str, now: float) -> bool:
        """Whether this claim holds the lease."""
        return self.claim == claim and self.expires > now

    def shared(self, now: float) -> bool:
        """Whether the lease is a latch, shared by several holders."""
        return self.held_by(LATCH, now)

    def beside(self) -> Row:
        """The row for a claim that may share the lease: without the present holders' latch."""
        return self._replace(claim=None)

    def holder_at(self, now: float) -> tuple[str, int] | None:
        """The claim that holds the lease, and its token; None if no claim does."""
        claim = self.claim
        return (claim, self.token) if claim is not None and self.held_by(claim, now) else None

    def closed(self, now: float) -> bool:
        """Whether a release keeps the lease closed, perhaps with a reservation for one holder."""
        return (self.closed_until or 0) > now

    def holding(self, now: float) -> Holding:
        """The present holding."""
        left, age = self.expires - now, now - self.since
        return Holding(self.holder, self.token, left, self.ttl, age, self.meta, self.claim or "")

    def refusal(
        self,
        holder: str,
        slot: Holding | None,
        reserved_for: str,
        paused: bool,
        now: float,
        seen: str,
    ) -> Refused | None:
        """The refusal of the lease to `holder`, or None.

        `slot`: the other user of its slot. `reserved_for`: whom a closing lets in, or "".
        """
        if self.held(now):
            holding = self.holding(now)
            return Refused("held", (holding,), holding.remaining, seen)
        if slot:
            return Refused("used", (slot,), slot.remaining, seen)
        if paused:
            return Refused("paused", seen=seen)
        if self.closed(now) and not (reserved_for and reserved_for == holder):
            left = self.closed_until - now
            if reserved_for:
                return Refused("reserved", (Holding(reserved_for, remaining=left),), left, seen)
            return Refused("closed", (Holding(self.holder, self.token, left),), left, seen)
        return None


def seen_of(epoch: str, changes: int | None) -> str:
    """The value that `wait_change` compares; it differs after every change and in every file."""
    return "" if changes is None else f"{epoch}:{changes}"


# -- holders that share a lease --------------------------------------------------------------------


def sharing_holdings(db: Connection, name: str, now: float) -> tuple[Holding, ...]:
    """The holdings of all present sharers."""
    return tuple(
        Holding(holder, token, expires - now, ttl, now - since, meta, claim, permits=permits)
        for holder, token, ttl, meta, since, expires, claim, permits in db.execute(
            schema.SEE_SHARERS, (name, now)
        ).fetchall()
    )


def sharing_refusal(
    db: Connection, name: str, row: Row, ask: Ask, now: float, seen: str
) -> Refused | None:
    """The refusal of `ask` if there is no room beside the present sharers, or None."""
    count, permits = db.execute(schema.COUNT_SHARERS, (name, now)).fetchone()
    if not count:  # then `permits` is None
        return None
    has_room = permits == UNLIMITED or count < permits
    if has_room and ask.permits == permits:
        return None
    holders = sharing_holdings(db, name, now)
    if ask.permits is None:
        return Refused("held", holders, row.expires - now, seen)
    left = min(one.remaining or 0.0 for one in holders)
    if ask.permits != permits:
        return Refused("permits", holders, left, seen, permits=permits)
    return Refused("held", holders, left, seen)


def sharers_leave_room(db: Connection, name: str, ask: Ask, now: float) -> bool:
    """Whether there is still room for others, after the grant to `ask`."""
    if ask.permits is None:
        return False
    (count, _) = db.execute(schema.COUNT_SHARERS, (name, now)).fetchone()
    return ask.permits == UNLIMITED or count < ask.permits


def repeat_sharer(
    db: Connection, name: str, row: Row, claim: str, ttl: float, now: float
) -> tuple[int, float] | None:
    """Renew for `ttl` a claim that already shares the lease; returns its token and seconds left."""
    found = db.execute(schema.SEE_SHARER, (name, claim, now)).fetchone()
    if found is None:
        return None
    token, expires = found
    expires = max(expires, now + ttl)
    db.execute(schema.REPEAT_SHARER, (expires, name, claim))
    db.execute(schema.REPEAT, (max(row.expires, expires), name))
    return token, expires - now


def join_sharers(
    db: Connection, name: str, row: Row, claim: str, token: int, ask: Ask, now: float
) -> float:
    """Add a claim to the sharers; returns the instant at which the latch ends."""
    shared, expires = row.shared(now), now + ask.ttl
    db.execute(schema.DROP_SHARERS, (name, now if shared else float("inf")))
    values = (name, claim, ask.holder, token, ask.ttl, ask.meta, now, expires, ask.permits)
    db.execute(schema.SHARE, values)
    return max(row.expires, expires) if shared else expires


def leave_sharers(db: Connection, name: str, claim: str, token: int | None) -> bool:
    """Remove a claim from the sharers; True if it was one. The latch ends with the last sharer."""
    now, wall = db.host.now(), db.host.wall()
    found = db.execute(schema.GIVE_SHARER, (name, claim, token, now)).fetchone()
    if found is None:
        return False
    (token,) = found
    db.execute(schema.GIVE_LATCH, (name, now, token, wall))
    db.execute(schema.END_PAST, (wall, name, token))
    return True


# -- the line --------------------------------------------------------------------------------------

_HEARTBEAT_MOST: Final = 1.0
"""Seconds. The first in line looks every few milliseconds. A first waiter that is silent for longer
than this is frozen or dead, and loses its turn, unless it asked for fairness."""

_LEFT_TO_THE_FIRST: Final = 0.05
"""Seconds for which others leave a free lease to the first in line: two of its looks."""


class Waiter(NamedTuple):
    """A claim in line; `holder` is its name, for display."""

    claim: str
    holder: str
    queue: Queue


@dataclass(slots=True)
class Line:
    """The waiters for one lease. Instants (`now`, `due`) are on the store's clock."""

    waiting: dict[str, Waiter] = field(default_factory=dict)
    due: float = -inf
    """The instant until which it is the first waiter's turn."""
    overtaken: int = 0
    """How often another claim was granted before the present first."""

    def first(self) -> Waiter | None:
        """The first waiter in line, if any."""
        return next(iter(self.waiting.values()), None)

    def before(self, claim: str, now: float) -> Waiter | None:
        """The waiter that precedes `claim` although the lease is free, if any."""
        first = self.first()
        if first is None or first.claim == claim or self.due <= now:
            return None
        return first if first.queue.fair or self.overtaken >= OVERTAKEN_MOST else None

    def stand(self, waiter: Waiter, now: float, looks_in: float) -> int:
        """Join the line or stay in it; returns the place. `looks_in`: seconds to the next look."""
        first = self.first()
        if first is not None and first.claim != waiter.claim and self.due <= now:
            del self.waiting[first.claim]
            self._begin_turn(now)
        elif first is None:
            self.overtaken = 0
        self.waiting.setdefault(waiter.claim, waiter)
        if self.first() == waiter:
            self.due = now + looks_in + waiter.queue.heartbeat
        return list(self.waiting).index(waiter.claim)

    def granted(self, claim: str, now: float, ttl: float) -> None:
        """Update the line after a grant to `claim`, which need not be in line."""
        first = self.first()
        self.waiting.pop(claim, None)
        if first is None:
            return
        if first.claim != claim and self.due > now:
            self.overtaken += 1
            return
        # It was the first waiter's turn, or its turn passed unused.
        self.waiting.pop(first.claim, None)
        self._begin_turn(now + ttl)

    def free(self, now: float) -> None:
        """Begin the first waiter's turn, because the lease was given back."""
        first = self.first()
        self.due = now + first.queue.heartbeat if first else -inf

    def leave(self, claim: str, now: float, looks_in: float) -> bool:
        """Remove `claim`; True if it was the first in line, so that another waiter may be now."""
        first = self.first()
        self.waiting.pop(claim, None)
        if first is None or first.claim != claim:
            return False
        self._begin_turn(now + looks_in)
        return True

    def _begin_turn(self, now: float) -> None:
        self.overtaken = 0
        self.free(now)


class StoredLine:
    """The line of one name, within a transaction; `row` is the lease as read there."""

    def __init__(self, db: Connection, name: str, row: Row) -> None:
        self._db = db
        self._name = name
        found = db.execute(schema.SEE_LINE, (name,)).fetchall() if row.line_exists else []
        waiting = {
            claim: Waiter(claim, holder, Queue(heartbeat, bool(fair)))
            for claim, holder, heartbeat, fair in found
        }
        self._stored = set(waiting)
        self._stored_turn = (row.first_heartbeat, row.due, row.overtaken)
        self._line = Line(waiting, row.due, row.overtaken)

    def refusal(self, claim: str, now: float, seen: str) -> Refused | None:
        """The refusal of a free lease to `claim` if it is another waiter's turn, or None."""
        first = self._line.before(claim, now)
        if first is None:
            return None
        left = self._line.due - now
        return Refused("reserved", (Holding(first.holder, remaining=left),), left, seen)

    def stand(self, claim: str, ask: Ask, queue: Queue, now: float, refused: Refused) -> Queued:
        """Add a refused claim to the line; returns the refusal with its place."""
        left = ask.ttl if refused.retry_after is None else min(ask.ttl, refused.retry_after)
        beat = queue.heartbeat if queue.fair else min(queue.heartbeat, _HEARTBEAT_MOST)
        place = self._line.stand(Waiter(claim, ask.holder, Queue(beat, queue.fair)), now, left)
        self._save()
        # A claim further back looks when it becomes the first. But a pause or a closing concerns
        # all, and candidates want to know who leads.
        behind = place > 0 and refused.reason in ("held", "reserved") and not ask.candidacy
        seen = f"{refused.seen}|{claim}" if behind else refused.seen
        return Queued(refused.reason, refused.holders, refused.retry_after, seen, place)

    def granted(self, claim: str, now: float, ttl: float) -> None:
        """Update the line after a grant to `claim`, which need not be in line."""
        self._line.granted(claim, now=now, ttl=ttl)
        self._save()

    def leave(self, claim: str, now: float, left: float) -> None:
        """Remove `claim` from the line; `left`: seconds for which the lease is still held."""
        if self._line.leave(claim, now, left):
            self._db.execute(schema.CHANGED, (self._name,))
        self._save()

    def _save(self) -> None:
        execute, name, waiting = self._db.execute, self._name, self._line.waiting
        for claim in self._stored - waiting.keys():
            execute(schema.LEAVE_LINE, (name, claim))
        for claim, (_, holder, queue) in waiting.items():
            if claim not in self._stored:
                execute(schema.JOIN_LINE, (name, claim, holder, queue.heartbeat, queue.fair))
        first, turn = self._line.first(), (0.0, 0.0, 0)
        if first:
            turn = (first.queue.heartbeat, self._line.due, self._line.overtaken)
        if turn != self._stored_turn:
            execute(schema.SET_TURN, (*turn, name))


def should_ask_again(db: Connection, name: str, claim: str, now: float) -> bool:
    """Whether a claim that is not the first in line should ask again."""
    found = db.execute(schema.SEE_TURN, (name, claim)).fetchone()
    if found is None:
        return True
    holder_claim, expires, closed_until, due, first_heartbeat, overtaken, *waiting = found
    first, fair, is_waiting, is_reserved_for_it = waiting
    if first == claim or not is_waiting:
        return True
    if holder_claim is not None and expires > now:
        # Beside the sharers there may be room that the first in line has left unused.
        return bool(holder_claim == schema.LATCH and due <= now)
    if closed_until > now:
        return bool(is_reserved_for_it)
    if fair or overtaken >= OVERTAKEN_MOST:
        return bool(due <= now)
    # A release sets `due` to its own instant plus the heartbeat of the first in line.
    free_since = due - first_heartbeat if holder_claim is None else expires
    return bool(free_since + _LEFT_TO_THE_FIRST <= now)
