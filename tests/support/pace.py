"""How long this machine stood still: a bound in seconds is about us, not about a host that pauses.

A thread that only sleeps notes by how much it woke too late. Only upper bounds are stretched by it:
that nobody acts too early, and never two at once, is judged by the clock alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from incumbent import clock

# The very clock, whatever a test puts in its place.
now = clock.now

BUSY = 2.0
"""Seconds by which a busy machine may be late where a server, a process or a thread is asked."""
LONG, WOKEN = 30.0, 15.0
"""Seconds: a waiter that is not notified waits for the first, others less than the second."""

_EVERY = 0.02
_LATE = 0.05
"""Seconds by which a busy machine may wake a thread late; all above is standing still."""


class _Meter:
    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=1000)
        self._beat = now()
        threading.Thread(target=self._run, name="pace", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY)
            before, self._beat = self._beat, now()
            if self._beat - before - _EVERY > _LATE:
                self._gaps.append((before, self._beat))

    def forked(self) -> None:
        """In a child nobody counts: nothing is standing still there."""
        self._beat = inf

    def still(self, since: float) -> float:
        at = now()
        # It may not have come to it yet, after the very gap that is asked for.
        gaps = [*list(self._gaps), (self._beat, at)]
        return sum(
            max(0.0, min(end, at) - max(begin, since) - _EVERY)
            for begin, end in gaps
            if end > since and end - begin - _EVERY > _LATE
        )


_meter = _Meter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_meter.forked)


def stood_still(since: float) -> float:
    """Seconds, since that instant of `incumbent.clock`, in which nothing ran here."""
    return _meter.still(since)


def took(began: float) -> float:
    """Seconds since that instant of `incumbent.clock` in which this machine ran."""
    return now() - began - stood_still(began)


def lasted(began: float, least: float, most: float) -> bool:
    """Whether it took as long: `least` by the clock alone, `most` without what stood still."""
    return least <= now() - began and took(began) < most


@contextmanager
def in_time(seconds: float, *, late_at_most: float) -> Iterator[None]:
    """What is done within it has a deadline in so many seconds."""
    began = now()
    yield
    late = took(began) - seconds
    assert late <= late_at_most, f"{late:.3f} s after the deadline"
