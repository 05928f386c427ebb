"""The engine of `sqlite:`: its abilities, the file that a URL names, and findings for `doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from incumbent.errors import ConfigError, StoreError
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Capabilities
from incumbent.stores.findings import Finding, cannot_tell
from incumbent.stores.sqlite.host import (
    Host,
    check_file_system,
    detect_here,
    file_system_of,
    may_be_remote,
    this_host,
)

if TYPE_CHECKING:
    from incumbent.stores.sqlite.core import AsyncSqliteStore, SqliteStore


_FORMS: Final = (
    'write "sqlite:" for the file of this user, or "sqlite:///absolute/path.db" for one of your own'
)


class SqliteEngine:
    """The engine of `sqlite:`. It opens nothing before the first operation.

    Promises exclusion on one host. No take arrives late: the asking process carries it out itself,
    before it can give the claim up. A reboot ends every lease. Closings, slots and fields outlive
    it: the rest of a closing or slot is then counted once by the wall clock, so it ends early or
    late by as much as that clock was wrong, but never lasts longer than it was asked for.
    """

    capabilities = Capabilities(
        waits="poll",
        ttl_clock="boottime",
        queue=True,
        candidates=True,
        reservations=True,
        shared=True,
    )

    def __init__(
        self, path: Path, *, default: bool = False, host: Callable[[], Host] = this_host
    ) -> None:
        """`default`: make missing folders; `host` is an argument for tests."""
        check_file_system(path)
        self.path = path
        self.url = f"sqlite://{path}"
        self._default = default
        self._host = host
        self._store: SqliteStore | None = None
        self._async_store: AsyncSqliteStore | None = None

    def store(self) -> SqliteStore:
        # sqlite3 is imported here, not in a program that only names a store. Two threads that come
        # at once make two stores over one file, which does no harm.
        if self._store is None:
            from incumbent.stores.sqlite.core import SqliteStore
            from incumbent.stores.sqlite.file import SqliteFile

            file = SqliteFile(self.path, self._host, default=self._default)
            self._store = SqliteStore(file)
        return self._store

    def async_store(self) -> AsyncSqliteStore:
        if self._async_store is None:
            from incumbent.stores.sqlite.core import AsyncSqliteStore

            self._async_store = AsyncSqliteStore(self.store().file)
        return self._async_store

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        return findings(self.store(), until)


def open_sqlite(url: str, environ: Mapping[str, str] = os.environ) -> SqliteEngine:
    """The engine of `sqlite:` (this user's file) or `sqlite:///absolute/path`.

    Raises ConfigError for any other form, any option, or a network file system.
    """
    return SqliteEngine(path_of(url, environ), default=url == "sqlite:")


def path_of(url: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The absolute path that `url` names. Raises ConfigError for any other form or any option."""
    scheme, colon, rest = url.partition(":")
    place, mark, options = rest.partition("?")
    if scheme != "sqlite" or not colon:
        raise _refused(url, "is not a sqlite URL")
    if mark:
        option = options.partition("=")[0]
        raise _refused(url, f"has the option {option!r}, and this store knows none")
    if not place:
        return default_path(environ)
    if not place.startswith("//"):
        raise _refused(url, "has no // before its path")
    if not place.startswith("///"):
        raise _refused(url, f"names a host, {place[2:].partition('/')[0]!r}: a file is local")
    path = place[2:]
    if "%" in path:
        from urllib.parse import unquote

        path = unquote(path)
    if "\0" in path or path.endswith("/") or "#" in url:
        raise _refused(url, "does not name a file (a # in a path is written %23)")
    return Path(path)


def default_path(environ: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/incumbent/incumbent.db`, else below ~/.local/state (XDG Base Directory)."""
    state = environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):  # the specification says to ignore a relative one
        return Path(state, "incumbent", "incumbent.db")
    try:
        home = environ.get("HOME", "") or Path.home()
    except RuntimeError as error:
        raise ConfigError(
            "sqlite: has no place for its file: neither XDG_STATE_HOME nor HOME is set, and this"
            ' user has no home. Name the file: "sqlite:///absolute/path.db"',
            name="store",
        ) from error
    return Path(home, ".local", "state", "incumbent", "incumbent.db")


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(f"{url} {why}: {_FORMS}", name="store")


# -- findings for `doctor` -------------------------------------------------------------------------

_LITTLE: Final = 64 << 20
_A_PAGE: Final = 4096
"""Bytes; a write takes at least one page."""


def findings(store: SqliteStore, until: float) -> list[Finding]:
    """Examine the file, its disk, and whether this process runs in a container."""
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
    from sqlite3 import sqlite_version  # already loaded here

    return ("ok", f"{path} can be used: SQLite {sqlite_version}, journal mode {mode}", "")


def _file_system(path: Path) -> Finding:
    kind = file_system_of(path)
    if not may_be_remote(kind):
        return ("ok", f"{path} lies on {kind}", "")
    what = f"{path} lies on {kind or 'an unknown file system'}"
    return ("warning", what, "make sure that no other machine can mount it")


def _space(path: Path) -> list[Finding]:
    import shutil  # imported only here: it loads compressors, which costs start-up time

    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise_if_from_signal(error)
        return []
    if free < _A_PAGE:
        return [
            cannot_tell(f"the disk of {path.name} is full: perhaps it takes no writes", "free some")
        ]
    level, todo = ("ok", "") if free > _LITTLE else ("warning", "free some")
    return [(level, f"{free >> 20} MiB are free beside {path.name}", todo)]
