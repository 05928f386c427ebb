"""The line of those who wait for a lease, kept in the file. What it decides is `stores.line`'s.

A row of `waiting` is one in line. The lease's row has `lined`, the heartbeat of the first (0.0:
nobody waits), `due` and `overtaken`: where nobody waits, nothing more is read.
"""

from __future__ import annotations

from typing import Final

from incumbent.model import OVERTAKEN_MOST, Ask, Holding, Queue, Queued, Refused
from incumbent.stores.line import Line, Waiter
from incumbent.stores.sqlite.link import Link
from incumbent.stores.sqlite.rows import Row

__all__ = ["KeptLine", "may_look"]

_HEARTBEAT_MOST: Final = 1.0
"""Seconds: the first in line looks every few milliseconds. One that is silent for longer is frozen
or dead, and nobody waits for it longer, unless it asked for fairness."""

_LEFT_TO_THE_FIRST: Final = 0.05
"""Seconds for which a free lease is left to the first in line: two of its looks."""

_SEE: Final = "SELECT claim, holder, heartbeat, fair FROM waiting WHERE key = ? ORDER BY place"
_STAND: Final = """
    INSERT INTO waiting (key, claim, place, holder, heartbeat, fair)
    SELECT ?1, ?2, 1 + coalesce(max(place), 0), ?3, ?4, ?5 FROM waiting WHERE key = ?1"""
_LEAVE: Final = "DELETE FROM waiting WHERE key = ? AND claim = ?"
_TURN: Final = "UPDATE lease SET lined = ?, due = ?, overtaken = ? WHERE key = ?"
_CHANGED: Final = "UPDATE lease SET changes = changes + 1 WHERE key = ?"
_SEE_TURN: Final = """
    SELECT l.claim, l.expires, l.closed_until, l.due, l.lined, l.overtaken, w.claim, w.fair,
        EXISTS (SELECT 1 FROM waiting WHERE key = ?1 AND claim = ?2),
        EXISTS (SELECT 1 FROM waiting AS me JOIN reservation AS r ON r.key = me.key
            WHERE me.key = ?1 AND me.claim = ?2 AND r.token = l.token AND r.holder = me.holder)
    FROM lease AS l LEFT JOIN waiting AS w ON w.key = l.key
    WHERE l.key = ?1 ORDER BY w.place LIMIT 1"""


class KeptLine:
    """The line of one name, within a transaction; `row` is the lease as it was found."""

    def __init__(self, link: Link, name: str, row: Row) -> None:
        self._link = link
        self._name = name
        found = link.execute(_SEE, (name,)).fetchall() if row.lined else []
        waiting = {
            claim: Waiter(claim, holder, Queue(beat, bool(fair)))
            for claim, holder, beat, fair in found
        }
        self._known = set(waiting)
        self._turn = (row.lined, row.due, row.overtaken)
        self._line = Line(waiting, row.due, row.overtaken)

    def refusal(self, claim: str, now: float, seen: str) -> Refused | None:
        """Why `claim` may not have a free lease now: somebody else's turn has come."""
        first = self._line.before(claim, now)
        if first is None:
            return None
        left = self._line.due - now
        return Refused("reserved", (Holding(first.holder, remaining=left),), left, seen)

    def stand(self, claim: str, ask: Ask, queue: Queue, now: float, refused: Refused) -> Queued:
        """The refusal of one that waits, with its place."""
        left = ask.ttl if refused.retry_after is None else min(ask.ttl, refused.retry_after)
        beat = queue.heartbeat if queue.fair else min(queue.heartbeat, _HEARTBEAT_MOST)
        place = self._line.stand(Waiter(claim, ask.holder, Queue(beat, queue.fair)), now, left)
        self._save()
        # Those further back are told when they are the first. A pause or a closing concerns all,
        # and candidates want to know who leads.
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
            self._link.execute(_CHANGED, (self._name,))
        self._save()

    def _save(self) -> None:
        execute, name, waiting = self._link.execute, self._name, self._line.waiting
        for claim in self._known - waiting.keys():
            execute(_LEAVE, (name, claim))
        for claim, waiter in waiting.items():
            if claim not in self._known:
                queue = waiter.queue
                execute(_STAND, (name, claim, waiter.holder, queue.heartbeat, queue.fair))
        first = self._line.first()
        turn = (
            (first.queue.heartbeat, self._line.due, self._line.overtaken)
            if first
            else (0.0, 0.0, 0)
        )
        if turn != self._turn:
            execute(_TURN, (*turn, name))


def may_look(link: Link, name: str, claim: str, now: float) -> bool:
    """Whether one that does not stand first should ask again."""
    found = link.execute(_SEE_TURN, (name, claim)).fetchone()
    if found is None:
        return True
    held_by, expires, closed_until, due, lined, overtaken, first, fair, waits, is_named = found
    if first == claim or not waits:
        return True
    if held_by is not None and expires > now:
        return False
    if closed_until > now:
        return bool(is_named)
    if fair or overtaken >= OVERTAKEN_MOST:
        return bool(due <= now)
    free_since = due - lined if held_by is None else expires
    return bool(free_since + _LEFT_TO_THE_FIRST <= now)
