"""Our own exit codes, and the one line on stderr that always comes with them."""

from __future__ import annotations

import sys
from typing import Final

from incumbent.errors import ConfigError, LockError, Misuse, NotAcquired, StoreError

__all__ = [
    "BUSY",
    "CANNOT_START",
    "FAULT",
    "LOST",
    "OK",
    "TOO_LONG",
    "UNPROVED",
    "USAGE",
    "code_of",
    "say",
]

OK: Final = 0
USAGE: Final = 64
UNPROVED: Final = 69
BUSY: Final = 75
LOST: Final = 123
TOO_LONG: Final = 124
FAULT: Final = 125
CANNOT_START: Final = (126, 127)


def say(line: str) -> None:
    """One line for people, on stderr; a closed stderr is nobody's fault."""
    try:
        print(f"incumbent: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def code_of(error: Exception) -> int:
    """The exit code of an error that ends a command."""
    if isinstance(error, ConfigError | Misuse):
        return USAGE
    if isinstance(error, NotAcquired):
        return BUSY
    if isinstance(error, StoreError):
        return UNPROVED
    return LOST if isinstance(error, LockError) else FAULT
