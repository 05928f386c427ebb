"""Our own exit codes, and the one line on stderr that always comes with them."""

from __future__ import annotations

import sys

from incumbent.errors import ConfigError, LockError, Misuse, NotAcquired, StoreError
from incumbent.supervise.codes import (
    BUSY,
    CANNOT_START,
    FAULT,
    LOST,
    OK,
    TOO_LONG,
    UNPROVED,
    USAGE,
)

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
    "fault_line",
    "say",
]


def say(line: str) -> None:
    """One line for people, on stderr; a closed stderr is nobody's fault."""
    try:
        # In one write: processes that share a stderr must not come between a line and its end.
        sys.stderr.write(f"incumbent: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def fault_line(error: Exception) -> str:
    """The message for an unexpected error."""
    whose = "the system refuses" if isinstance(error, OSError) else "a defect of incumbent"
    return f"{whose}: {type(error).__name__}: {error}"


def code_of(error: Exception) -> int:
    """The exit code of an error that ends a command."""
    if isinstance(error, ConfigError | Misuse):
        return USAGE
    if isinstance(error, NotAcquired):
        return BUSY
    if isinstance(error, StoreError):
        return UNPROVED
    return LOST if isinstance(error, LockError) else FAULT
