"""What `doctor` says of a file: (level, what, what to do)."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Final

from incumbent.errors import ConfigError, StoreError
from incumbent.stores.findings import Finding, cannot_tell
from incumbent.stores.sqlite.host import detect_here, file_system_of, is_doubtful
from incumbent.stores.sqlite.retry import SqliteStore

_LITTLE: Final = 64 << 20
_A_PAGE: Final = 4096
"""Bytes: a write takes one at least."""


def findings(store: SqliteStore, until: float) -> list[Finding]:
    """Look at the file, its disk and what this process runs in."""
    path = store.file.path
    found = [_usable(store, until), _file_system(path), *_space(path)]
    where = detect_here()
    if where is not None:
        what = f"this process runs in {where}; a file excludes only those who share it"
        todo = "replicas need a network store (INCUMBENT_STORE=redis://host)"
        found.append(("warning", what, todo))
    return found


def _usable(store: SqliteStore, until: float) -> Finding:
    path = store.file.path
    try:
        mode = store.probe(until)
    except (StoreError, ConfigError) as error:
        return cannot_tell(str(error), "look at the file, or name another")
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
    if free < _A_PAGE:
        return [
            cannot_tell(f"the disk of {path.name} is full: perhaps it takes no writes", "free some")
        ]
    level, todo = ("ok", "") if free > _LITTLE else ("warning", "free some")
    return [(level, f"{free >> 20} MiB are free beside {path.name}", todo)]
