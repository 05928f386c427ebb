"""Exit codes: what a supervised command, and every command of `incumbent`, ends with.

A file of its own, because `status` loads it too, and nothing else of supervision.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BUSY", "CANNOT_START", "FAULT", "LOST", "OK", "TOO_LONG", "UNPROVED", "USAGE"]

OK: Final = 0
USAGE: Final = 64
UNPROVED: Final = 69
BUSY: Final = 75
LOST: Final = 123
TOO_LONG: Final = 124
FAULT: Final = 125
CANNOT_START: Final = (126, 127)
"""Of CMD: not executable, not found."""
