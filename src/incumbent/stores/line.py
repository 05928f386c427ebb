"""Who waits for one lease, in the order of arrival: whose turn it is, and until when. Pure.

Only the first in line has to be heard of. It looks when the holder's ttl runs out, or when it is
told; while it is silent for longer than its heartbeat, the next one is first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from incumbent.model import OVERTAKEN_MOST, Queue


class Waiter(NamedTuple):
    """One in line; `holder` is its name, for people."""

    claim: str
    holder: str
    queue: Queue


@dataclass(slots=True)
class Line:
    """Instants (`now`, `due`) are the store's."""

    waiting: dict[str, Waiter] = field(default_factory=dict)
    due: float = -inf
    """Until then it is the turn of the first."""
    overtaken: int = 0
    """How often somebody came before the present first."""

    def first(self) -> Waiter | None:
        """Who is next."""
        return next(iter(self.waiting.values()), None)

    def before(self, claim: str, now: float) -> Waiter | None:
        """The waiter that goes first, although the lease is free."""
        first = self.first()
        if first is None or first.claim == claim or self.due <= now:
            return None
        return first if first.queue.fair or self.overtaken >= OVERTAKEN_MOST else None

    def stand(self, waiter: Waiter, now: float, looks_in: float) -> int:
        """Stand in line, or go on doing so: the place. `looks_in`: seconds to its next look."""
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
        """The lease was granted to `claim`, in line or not."""
        first = self.first()
        self.waiting.pop(claim, None)
        if first is None:
            return
        if first.claim != claim and self.due > now:
            self.overtaken += 1
            return
        # Its turn it was, or it let its turn go by.
        self.waiting.pop(first.claim, None)
        self._begin_turn(now + ttl)

    def free(self, now: float) -> None:
        """The lease was given back: the first has its turn now."""
        first = self.first()
        self.due = now + first.queue.heartbeat if first else -inf

    def leave(self, claim: str, now: float, looks_in: float) -> bool:
        """`claim` does not wait any more; True if another one is first by that."""
        first = self.first()
        self.waiting.pop(claim, None)
        if first is None or first.claim != claim:
            return False
        self._begin_turn(now + looks_in)
        return True

    def _begin_turn(self, now: float) -> None:
        self.overtaken = 0
        self.free(now)
