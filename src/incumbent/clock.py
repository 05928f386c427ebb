"""The one clock of this host that deadlines are counted on: it goes on during suspend.

Linux: CLOCK_BOOTTIME (clock_gettime(2)). macOS: CLOCK_MONOTONIC, which counts sleep there.
Elsewhere `time.monotonic`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

__all__ = ["now", "wall"]

# Bound here once: it is asked several times an operation, and a function of ours would cost as much
# again as the clock.
now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds since boot, suspend included."""

wall = time.time
"""Seconds since 1970, for people only: no deadline is ever counted on it."""
