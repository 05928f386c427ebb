"""The line of claims that wait for a lease, kept in the file. `stores.line` decides on it."""

from __future__ import annotations

from typing import Final

from incumbent.model import OVERTAKEN_MOST, Ask, Holding, Queue, Queued, Refused
from incumbent.stores.line import Line, Waiter
from incumbent.stores.sqlite import schema
from incumbent.stores.sqlite.connection import Connection
from incumbent.stores.sqlite.rows import Row

_HEARTBEAT_MOST: Final = 1.0
"""Seconds: the first in line looks every few milliseconds. One that is silent for longer is frozen
or dead, and nobody waits for it longer, unless it asked for fairness."""

_LEFT_TO_THE_FIRST: Final = 0.05
"""Seconds for which a free lease is left to the first in line: two of its looks."""


class KeptLine:
    """The line of one name, within a transaction; `row` is the lease as it was found."""

    def __init__(self, db: Connection, name: str, row: Row) -> None:
        self._db = db
        self._name = name
        found = db.execute(schema.SEE_LINE, (name,)).fetchall() if row.lined else []
        waiting = {
            claim: Waiter(claim, holder, Queue(heartbeat, bool(fair)))
            for claim, holder, heartbeat, fair in found
        }
        self._stored = set(waiting)
        self._stored_turn = (row.lined, row.due, row.overtaken)
        self._line = Line(waiting, row.due, row.overtaken)

    def refusal(self, claim: str, now: float, seen: str) -> Refused | None:
        """Why `claim` may not have a free lease now: somebody else's turn has come."""
        first = self._line.before(claim, now)
        if first is None:
            return None
        left = self._line.due - now
        return Refused("reserved", (Holding(first.holder, remaining=left),), left, seen)

    def stand(self, claim: str, ask: Ask, queue: Queue, now: float, refused: Refused) -> Queued:
        """The refusal of a claim that waits, with its place."""
        left = ask.ttl if refused.retry_after is None else min(ask.ttl, refused.retry_after)
        beat = queue.heartbeat if queue.fair else min(queue.heartbeat, _HEARTBEAT_MOST)
        place = self._line.stand(Waiter(claim, ask.holder, Queue(beat, queue.fair)), now, left)
        self._save()
        # A claim further back is told when it is the first. A pause or a closing concerns all, and
        # candidates want to know who leads.
        behind = place > 0 and refused.reason in ("held", "reserved") and not ask.candidacy
        seen = f"{refused.seen}|{claim}" if behind else refused.seen
        return Queued(refused.reason, refused.holders, refused.retry_after, seen, place)

    def granted(self, claim: str, ttl: float, now: float) -> None:
        """The lease was granted to `claim`, in line or not."""
        self._line.granted(claim, now, ttl)
        self._save()

    def leave(self, claim: str, now: float, left: float) -> None:
        """`claim` waits no more; `left`: seconds that the lease is held for."""
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


def may_look(db: Connection, name: str, claim: str, now: float) -> bool:
    """Whether a claim that is not the first in line should ask again."""
    found = db.execute(schema.SEE_TURN, (name, claim)).fetchone()
    if found is None:
        return True
    held_by, expires, closed_until, due, lined, overtaken, first, fair, waits, is_named = found
    if first == claim or not waits:
        return True
    if held_by is not None and expires > now:
        # Beside those who share it there may be room that the first in line lets go by.
        return bool(held_by == schema.LATCH and due <= now)
    if closed_until > now:
        return bool(is_named)
    if fair or overtaken >= OVERTAKEN_MOST:
        return bool(due <= now)
    free_since = due - lined if held_by is None else expires
    return bool(free_since + _LEFT_TO_THE_FIRST <= now)
