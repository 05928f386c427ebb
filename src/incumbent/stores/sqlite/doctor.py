"""What `doctor` says of a file: (level, what, what to do). Nothing here waits."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Final

from incumbent.errors import ConfigError, StoreError
from incumbent.stores.findings import Finding, cannot_tell
from incumbent.stores.sqlite.connection import FileBusy
from incumbent.stores.sqlite.file import READ, SqliteFile
from incumbent.stores.sqlite.host import detect_here, file_system_of, is_doubtful

_LITTLE: Final = 64 << 20


def findings(file: SqliteFile) -> list[Finding]:
    """Look at the file, its disk and what this process runs in."""
    found = [_usable(file), _file_system(file.path), *_space(file.path)]
    where = detect_here()
    if where is not None:
        what = f"this process runs in {where}; a file excludes only those who share it"
        todo = "replicas need a network store (INCUMBENT_STORE=redis://host)"
        found.append(("warning", what, todo))
    return found


def _usable(file: SqliteFile) -> Finding:
    path = file.path
    try:
        (mode,) = file.transact(lambda db: db.execute("PRAGMA journal_mode").fetchone(), READ)
    except FileBusy:
        return ("warning", f"{path} is locked just now", f"try again; who: fuser {path}")
    except (StoreError, ConfigError) as error:
        return cannot_tell(f"{path} cannot be used", str(error))
    version = sqlite3.sqlite_version
    return ("ok", f"{path} can be used: SQLite {version}, journal mode {mode}", "")


def _file_system(path: Path) -> Finding:
    kind = file_system_of(path)
    if not is_doubtful(kind):
        return ("ok", f"{path} lies on {kind}", "")
    what = f"{path} lies on {kind or 'an unknown file system'}"
    return ("warning", what, "make sure that no other machine can mount it")


def _space(path: Path) -> list[Finding]:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return []
    level, todo = ("ok", "") if free > _LITTLE else ("warning", "free some")
    return [(level, f"{free >> 20} MiB are free beside {path.name}", todo)]
