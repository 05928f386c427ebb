"""The keeper's memory: leases in buckets, by the instant at which they are renewed together.

Theory of operation. Time is cut into instants of a grid, at least 16 in a renewal interval. Leases
with one interval that are due at one instant are a bucket, and share a request.

    time  --+----------+----------+----------+----------+----------+-->
            |          |                     |
         [a b c]     [d]                  [e f ...]        at most 500, else the one before
            |
     take: due, in hand -- the keeper renews them in one request -- put_back: one period later
            |                                                                  [a b c]

A bucket keeps its phase: however late a renewal was, the next is due a whole number of periods
after it was due. So leases stay spread over time, and the request of a bucket stays the same.

Any thread adds and removes leases, a finalizer or a signal handler may run between any two steps,
and a fork may copy any state. So a lease that moves is in two places meanwhile, never in none, and
each step is one operation of a dict or list.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from functools import lru_cache
from math import floor, frexp, inf, ldexp

from incumbent.protocol.claim import Claim
from incumbent.protocol.renew import Batches

FULL = 500
"""The most leases in a request, and in a bucket: a bucket gets more only if no other has room."""

# The least number of buckets in a renewal interval; at most twice as many.
_PARTS = 16


class Bucket(dict["weakref.ref[Claim]", None]):
    """Leases with one renewal interval, due at one instant. Any thread may remove its own lease."""

    __slots__ = ("batches", "due", "every", "sent")

    def __init__(self, due: float, every: float) -> None:
        super().__init__()
        self.due = due
        self.every = every
        self.sent = due
        """The instant just before its last renewals were sent."""
        self.batches = Batches()
        """The renewals that were sent."""

    def leases(self) -> list[Claim]:
        """The leases of this bucket that still exist."""
        found = []
        # A copy, made in one step: another thread may remove its lease meanwhile.
        for ref in list(self):
            claim = ref()
            if claim is None:
                self.pop(ref, None)
            else:
                found.append(claim)
        return found


class Buckets:
    """All buckets of one store. They hold leases weakly, and never keep one alive.

    `spread`: a new lease goes where fewest are, for a store that has a request of its own for each:
    together they save nothing there, and are a burst.
    """

    def __init__(self, mutex: threading.RLock, *, spread: bool = False) -> None:
        self.mutex = mutex
        self._spread = spread
        self._at: dict[float, dict[float, Bucket]] = {}
        self._in_hand: list[Bucket] = []

    def add(self, claim: Claim, due: float, *, earliest: float = inf) -> float:
        """Make `claim` due at `due`, and at no other instant; returns the instant of its bucket.

        `earliest`: if the bucket is full, `claim` may be due sooner, but not before this instant.
        """
        every = claim.machine.policy.renew_every
        # Rounding down brings leases together in one bucket, and never makes a renewal late.
        due -= due % grid(every)
        with self.mutex:
            # Read under the mutex: the thread may be moving this lease to another bucket.
            before = claim.bucket
            if self._spread and earliest < due:
                # The instant with fewest leases, from `earliest` on; of several the last.
                width = grid(every)
                instants = [due - at * width for at in range(floor((due - earliest) / width) + 1)]
                due = min(instants, key=lambda it: len(self._at.get(it, {}).get(every, ())))
            found = self._at.get(due)
            bucket = None if found is None else found.get(every)
            if bucket is None or len(bucket) >= FULL:
                bucket = self._with_room(due, every, earliest)
            bucket[claim.ref] = None
            claim.bucket = bucket
            if before is not None and before is not bucket:
                # Last, so that a fork in between finds the lease in one of the two.
                before.pop(claim.ref, None)
            return bucket.due

    def _with_room(self, due: float, every: float, earliest: float) -> Bucket:
        latest, width = due, grid(every)
        while due >= earliest and self._is_full(due, every):
            due -= width
        found = self._at.setdefault(due if due >= earliest else latest, {})
        # setdefault is one step: a signal handler may run in between.
        return found.get(every) or found.setdefault(every, Bucket(due, every))

    def _is_full(self, due: float, every: float) -> bool:
        bucket = self._at.get(due, {}).get(every)
        return bucket is not None and len(bucket) >= FULL

    @staticmethod
    def discard(claim: Claim) -> None:
        """Forget `claim`."""
        if claim.bucket is not None:
            claim.bucket.pop(claim.ref, None)

    def first(self) -> float:
        """The instant at which the next bucket is due."""
        with self.mutex:
            # Without a copy: min() over floats runs no Python code in between, so no finalizer
            # either.
            return min(self._at, default=inf)

    def take(self, now: float) -> list[Bucket]:
        """The buckets that are due by `now`, longest due first; pass each to `put_back` later."""
        with self.mutex:
            # Copies, made in one step: a finalizer may run in between and plan something.
            past = sorted(instant for instant in list(self._at) if instant <= now)
            # Noted before they are removed, so that a fork in between still finds them.
            self._in_hand = [bucket for due in past for bucket in list(self._at[due].values())]
            for instant in past:
                del self._at[instant]
            for bucket in self._in_hand:
                bucket.sent = now
            return list(self._in_hand)

    def put_back(self, bucket: Bucket) -> None:
        """Plan `bucket` for the last instant of its phase at which no renewal is late."""
        bucket.due = _next_in_phase(bucket.due, bucket.every, bucket.sent)
        with self.mutex:
            if bucket:
                found = self._at.setdefault(bucket.due, {})
                other = found.setdefault(bucket.every, bucket)
                if other is not bucket:
                    _move(bucket, other)
            # Last: a fork's child must find the leases here until they are planned again.
            self._in_hand = [one for one in self._in_hand if one is not bucket]

    def refs(self) -> Iterator[weakref.ref[Claim]]:
        """References to all leases, including those whose renewal is under way."""
        # Copies, each made in one step, without the mutex: in a fork's child it may stay locked.
        for found in list(self._at.values()):
            for bucket in list(found.values()):
                yield from list(bucket)
        for bucket in list(self._in_hand):
            yield from list(bucket)


@lru_cache(maxsize=64)
def grid(every: float) -> float:
    """The distance between two buckets in seconds: a power of two, so that sums are exact."""
    return ldexp(1.0, frexp(every / _PARTS)[1] - 1)


def _next_in_phase(due: float, every: float, sent: float) -> float:
    """The last instant, a whole number of periods after `due`, at which no renewal is late."""
    width = grid(every)
    period = every - every % width
    # Late is what comes more than an interval after `sent`, from which the last proof counts. At
    # least one period, because `due` is past.
    periods = max(1, floor((sent + every - due) / period))
    return due + periods * period


def _move(bucket: Bucket, other: Bucket) -> None:
    for ref in list(bucket):
        claim = ref()
        # Another thread may have planned it elsewhere meanwhile; it must not be due twice.
        if claim is not None and claim.bucket is bucket:
            other[ref] = None
            claim.bucket = other
            bucket.pop(ref, None)
