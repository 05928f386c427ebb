"""The one clock of this host that deadlines are counted on: it goes on during suspend.

Linux: CLOCK_BOOTTIME (clock_gettime(2)). macOS: clock_gettime's CLOCK_MONOTONIC, which
counts sleep there, as `time.monotonic` does not. Elsewhere `time.monotonic`.
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


# A partial, for it is asked several times an operation, and a function of ours would cost as much
# again as the clock.
now = _clock()
"""Seconds since boot, suspend included."""

wall = time.time
"""Seconds since 1970, for people only: no deadline is ever counted on it."""
