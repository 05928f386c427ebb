"""The one clock of this host that deadlines are counted on: it goes on during suspend.

Linux: CLOCK_BOOTTIME (clock_gettime(2)). macOS: CLOCK_MONOTONIC, which counts sleep there.
Elsewhere `time.monotonic`.
"""

from __future__ import annotations

import time

__all__ = ["now", "wall"]

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds since boot, suspend included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - not Linux
    now = time.monotonic

wall = time.time
"""Seconds since 1970, for people only: no deadline is ever counted on it."""
