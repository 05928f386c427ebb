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
    """Has the watchers of each lost lease called, once or more. Leases are not kept alive."""

    def __init__(self, call_watchers: Callable[[Claim], None]) -> None:
        self._call_watchers = call_watchers
        self._new: dict[weakref.ref[Claim], float] = {}
        """Leases that are not in the heap yet, with the seconds before its deadline at which each
        counts as ended. Most are released before the thread wakes. Each step on it is atomic."""
        self._heap: list[tuple[float, int, float, weakref.ref[Claim]]] = []
        """A heap of the leases' ends. A renewal moves an end; that is noticed at the old end."""
        self._ahead: dict[weakref.ref[Claim], float] = {}
        """By lease: the seconds before the deadline in its only valid entry; others are void."""
        self._numbers = count()
        self.thread = AlarmThread(
            "incumbent-deadlines", self._plan_sleep, self._act, ends_when_idle=True
        )

    def watch(self, claim: Claim, ahead: float) -> None:
        """Have the watchers called when `claim` runs out: `ahead` seconds before its deadline."""
        # The largest: the first watcher's instant is the one that matters, and `_act` calls them
        # all.
        self._new[claim.ref] = max(ahead, self._new.get(claim.ref, 0.0))
        # Write first, then compare; Keeper.arm says why.
        if claim.machine.deadline - ahead < self.thread.planned:
            self.thread.wake()

    def forget(self, claim: Claim) -> None:
        """Stop watching `claim`."""
        # Only here: an entry in the heap belongs to the thread, which finds the lease released at
        # its end.
        self._new.pop(claim.ref, None)

    # -- the thread: nothing else touches the heap ---------------------------------------------

    def _plan_sleep(self) -> float:
        # Written before `_new` is read: an earlier deadline that comes after it wakes the thread.
        self.thread.planned = self._first()
        for ref in list(self._new):
            # With a default: `forget` may have been faster. `_push` then finds it released.
            ahead, claim = self._new.pop(ref, 0.0), ref()
            if claim is not None:
                self._push(claim, ahead)
        self.thread.planned = self._first()
        return self.thread.planned

    def _first(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def _push(self, claim: Claim, ahead: float) -> None:
        sooner = ahead > self._ahead.get(claim.ref, -1.0)
        if sooner and claim.machine.state in (LeaseState.HELD, LeaseState.LOST):
            self._ahead[claim.ref] = ahead
            entry = (claim.machine.deadline - ahead, next(self._numbers), ahead, claim.ref)
            heapq.heappush(self._heap, entry)

    def _act(self) -> None:
        for claim, ahead in self._due(clock.now()):
            machine = claim.machine
            if machine.state is LeaseState.HELD:
                # Read anew for each: watchers of the one before may have taken long, and a renewal
                # arrived.
                if clock.now() < machine.deadline - ahead:
                    self._push(claim, ahead)
                    continue
                # Another thread may be releasing the lease at this instant.
                with suppress(IllegalInput):
                    machine.note_expired()
            if machine.state is LeaseState.LOST:
                self._call_watchers(claim)

    def _due(self, now: float) -> list[tuple[Claim, float]]:
        due = []
        while self._first() <= now:
            _, _, ahead, ref = heapq.heappop(self._heap)
            if self._ahead.get(ref) != ahead:
                continue  # void: an entry with an earlier end came after it
            del self._ahead[ref]
            claim = ref()
            if claim is not None:
                due.append((claim, ahead))
        return due
