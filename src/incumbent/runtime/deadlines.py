"""Calls the watchers of a lease at its deadline, in a thread that waits for nothing else.

The keeper's thread cannot do this: in a partition it is waiting for the store's answer just then.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import inf

from incumbent import clock
from incumbent.lease import IllegalInput, LeaseState
from incumbent.protocol.claim import Claim
from incumbent.runtime.threads import AlarmThread


class Deadlines:
    """Calls `tell` once or more with each lease that is lost. Leases are not kept alive."""

    def __init__(self, tell: Callable[[Claim], None]) -> None:
        self._tell = tell
        self._new: dict[weakref.ref[Claim], float] = {}
        """Leases not in the heap yet, with the seconds before the deadline at which each ends. Most
        leases are released before the thread wakes. Each operation on this dict is atomic."""
        self._places: list[tuple[float, int, float, weakref.ref[Claim]]] = []
        """A heap of the leases' ends. A renewal moves an end; that is noticed at the old end."""
        self._ahead: dict[weakref.ref[Claim], float] = {}
        """By lease: the seconds before the deadline in its only valid heap entry."""
        self._numbers = count()
        self.thread = AlarmThread("incumbent-deadlines", self._next, self._act, ends_when_idle=True)

    def watch(self, claim: Claim, ahead: float) -> None:
        """Call `tell` when `claim` runs out: at its deadline, or `ahead` seconds before."""
        self._new[claim.ref] = max(ahead, self._new.get(claim.ref, 0.0))
        # Write first, then compare; Keeper.arm says why.
        if claim.machine.deadline - ahead < self.thread.planned:
            self.thread.wake()

    def forget(self, claim: Claim) -> None:
        """Stop watching `claim`."""
        self._new.pop(claim.ref, None)

    # -- the thread: nothing else touches places -----------------------------------------------

    def _next(self) -> float:
        self.thread.planned = self._first()
        for ref in list(self._new):
            ahead, claim = self._new.pop(ref, 0.0), ref()
            if claim is not None:
                self._place(claim, ahead)
        self.thread.planned = self._first()
        return self.thread.planned

    def _first(self) -> float:
        return self._places[0][0] if self._places else inf

    def _place(self, claim: Claim, ahead: float) -> None:
        sooner = ahead > self._ahead.get(claim.ref, -1.0)
        if sooner and claim.machine.state in (LeaseState.HELD, LeaseState.LOST):
            self._ahead[claim.ref] = ahead
            place = (claim.machine.deadline - ahead, next(self._numbers), ahead, claim.ref)
            heapq.heappush(self._places, place)

    def _act(self) -> None:
        for claim, ahead in self._due(clock.now()):
            machine = claim.machine
            if machine.state is LeaseState.HELD:
                if clock.now() < machine.deadline - ahead:
                    self._place(claim, ahead)
                    continue
                # Another thread may be releasing the lease at this instant.
                with suppress(IllegalInput):
                    machine.expired()
            if machine.state is LeaseState.LOST:
                self._tell(claim)

    def _due(self, now: float) -> list[tuple[Claim, float]]:
        due = []
        while self._first() <= now:
            _, _, ahead, ref = heapq.heappop(self._places)
            if self._ahead.get(ref) != ahead:
                continue
            del self._ahead[ref]
            claim = ref()
            if claim is not None:
                due.append((claim, ahead))
        return due
