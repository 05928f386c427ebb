"""The exit codes of a supervised command, and of every command of `incumbent`.

A file of its own, because `status` imports it but nothing else of supervision.
"""

from __future__ import annotations

from typing import Final

from incumbent.errors import ConfigError, LockError, Misuse, NotAcquired, StoreError

OK: Final = 0
# EX_USAGE, EX_UNAVAILABLE and EX_TEMPFAIL of sysexits.h.
USAGE: Final = 64
UNPROVED: Final = 69
BUSY: Final = 75
# Next to those that timeout(1) has for the same: 124 for too long, 125 for a fault of its own.
LOST: Final = 123
TOO_LONG: Final = 124
FAULT: Final = 125
CANNOT_START: Final = (126, 127)
"""The codes for a CMD that is not executable, and for one that is not found."""


def code_of(error: Exception) -> int:
    """The exit code for an error that ends a command."""
    if isinstance(error, ConfigError | Misuse):
        return USAGE
    if isinstance(error, NotAcquired):
        return BUSY
    if isinstance(error, StoreError):
        return UNPROVED
    return LOST if isinstance(error, LockError) else FAULT
