"""sqlite3's errors in the words of the contract, in this one place. Pure."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable

__all__ = ["FileBusy", "SpoiledFile", "is_busy", "translated"]


class FileBusy(Exception):
    """Somebody else writes just now: nothing was changed, and another try may succeed."""


class SpoiledFile(StoreUnavailable):
    """This process can prove nothing any more about the file it used."""


_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_CERTAIN: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, *_BUSY})
"""Failures of a COMMIT that leave no valid commit frame in the log."""

_ADVICE: Final = {
    sqlite3.SQLITE_FULL: ("its disk or quota is full: free some space", False),
    sqlite3.SQLITE_READONLY: (
        "it may not be written to: this user needs write permission on it, its -wal and its folder",
        True,
    ),
    sqlite3.SQLITE_PERM: ("this user may not open it", True),
    sqlite3.SQLITE_AUTH: ("this user may not open it", True),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened: look whether its folder exists and whether this user may write there",
        True,
    ),
    sqlite3.SQLITE_NOTADB: ("it is not a SQLite database: name another file", True),
    sqlite3.SQLITE_CORRUPT: (
        "it is damaged: stop everything that uses it, and move it away; a new one is made",
        True,
    ),
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether only another user of the file stood in the way."""
    return _code(error) in _BUSY


def translated(error: sqlite3.Error, path: Path, *, committing: bool) -> StoreError:
    """What the caller may conclude: OutcomeUnknown only if a COMMIT had begun."""
    code = _code(error)
    advice, permanent = _ADVICE.get(code, ("look at the disk and at the system's log", False))
    message = f"cannot use {path}: {error}; {advice}"
    if committing and code not in _CERTAIN:
        return OutcomeUnknown(f"{message}. Whether the last change was kept is not known")
    return StoreUnavailable(message, permanent=permanent)


def _code(error: sqlite3.Error) -> int:
    # The upper bits tell the kinds of one error apart (https://sqlite.org/rescode.html).
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
