"""The only clock of this host for deadlines: it keeps counting during suspend.

Linux: CLOCK_BOOTTIME (clock_gettime(2)). macOS: CLOCK_MONOTONIC of clock_gettime, which counts
sleep there, unlike `time.monotonic`. Elsewhere `time.monotonic`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial


def _clock() -> Callable[[], float]:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


# A partial, because an operation reads the clock several times, and a Python function around it
# would double the cost.
now = _clock()
"""Seconds since boot, suspend included."""

wall = time.time
"""Seconds since 1970, for records and display: no deadline depends on it."""
