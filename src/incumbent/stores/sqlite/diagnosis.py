"""What `doctor` says of a file: (level, what, what to do)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Final, TypeAlias

from incumbent.errors import ConfigError, StoreError
from incumbent.stores.sqlite.core import Core
from incumbent.stores.sqlite.filesystem import UNKNOWN, file_system_of, is_doubtful
from incumbent.stores.sqlite.placement import detect_orchestrator
from incumbent.stores.sqlite.trouble import FileBusy

__all__ = ["findings"]

Finding: TypeAlias = "tuple[str, str, str]"

_LITTLE: Final = 64 << 20


def findings(path: Path, core: Core) -> list[Finding]:
    """Look at the file, its disk and what this process runs in; nothing here waits."""
    found = [_usable(path, core), _file_system(path), _space(path), _container()]
    return [finding for finding in found if finding is not None]


def _usable(path: Path, core: Core) -> Finding:
    try:
        mode = core.journal_mode()
    except FileBusy:
        return ("warning", f"{path} is locked just now", f"try again; who: fuser {path}")
    except (StoreError, ConfigError) as error:
        return ("error", f"{path} cannot be used", str(error))
    version = sqlite3.sqlite_version
    return ("ok", f"{path} can be used: SQLite {version}, journal mode {mode}", "")


def _file_system(path: Path) -> Finding:
    kind = file_system_of(path)
    if not is_doubtful(kind):
        return ("ok", f"{path} lies on {kind}", "")
    what = "an unknown file system" if kind == UNKNOWN else kind
    return ("warning", f"{path} lies on {what}", "make sure that no other machine can mount it")


def _space(path: Path) -> Finding | None:
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return None
    level = "ok" if free > _LITTLE else "warning"
    return (
        level,
        f"{free >> 20} MiB are free beside {path.name}",
        "" if level == "ok" else "free some",
    )


def _container() -> Finding | None:
    where = detect_orchestrator(os.environ, os.path.exists, lambda name: Path(name).read_text())
    if where is None:
        return None
    return (
        "warning",
        f"this process runs in {where}; a file excludes only those who share it",
        "replicas need a network store (INCUMBENT_STORE=redis://host)",
    )
