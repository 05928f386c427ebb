"""`sqlite:` as an engine: what it can do, and where its file is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from incumbent.model import Capabilities
from incumbent.stores.sqlite.filesystem import check_file_system
from incumbent.stores.sqlite.location import path_of

if TYPE_CHECKING:
    from incumbent.stores.sqlite.aio import AsyncSqliteStore
    from incumbent.stores.sqlite.core import Core
    from incumbent.stores.sqlite.host import Host
    from incumbent.stores.sqlite.store import SqliteStore

__all__ = ["SqliteEngine", "open_sqlite"]


class SqliteEngine:
    """See stores.base.Engine. Nothing is opened before the first operation.

    Promises exclusion on one host. No take arrives late: the process that asks carries it out,
    before it can give the claim up. A reboot ends every lease. Closings, slots and fields outlive
    it: what is left of a closing or a slot is then counted once by the wall clock, so it ends
    early or late by as much as that clock was wrong, but never lasts longer than it was asked for.
    """

    capabilities = Capabilities(
        waits="poll",
        ttl_clock="boottime",
        native_async=False,
        queue=True,
        candidates=True,
        reservations=True,
    )

    def __init__(
        self,
        path: Path,
        *,
        default: bool = False,
        host: Callable[[], Host] | None = None,
        check_place: Callable[[Path], None] = check_file_system,
    ) -> None:
        """`default` lets missing folders be made; `host` and `check_place` are for tests."""
        check_place(path)
        self.path = path
        self.url = f"sqlite://{path}"
        self._default = default
        self._host = host
        self._check_place = check_place
        self._made: tuple[Core, SqliteStore] | None = None
        self._async: AsyncSqliteStore | None = None

    def store(self) -> SqliteStore:
        """See Engine.store."""
        return self._make()[1]

    def async_store(self) -> AsyncSqliteStore:
        """See Engine.async_store."""
        if self._async is None:
            from incumbent.stores.sqlite.aio import AsyncSqliteStore

            self._async = AsyncSqliteStore(self._make()[0])
        return self._async

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose."""
        from incumbent.stores.sqlite.diagnosis import findings

        return findings(self.path, self._make()[0])

    def _make(self) -> tuple[Core, SqliteStore]:
        # sqlite3 is loaded here, not by whoever only names a store. Two threads that come at once
        # would make two stores over one file, which is as good as one.
        if self._made is None:
            from incumbent.stores.sqlite.core import Core
            from incumbent.stores.sqlite.host import this_host
            from incumbent.stores.sqlite.pool import Pool
            from incumbent.stores.sqlite.store import SqliteStore
            from incumbent.stores.sqlite.upkeep import Upkeep

            pool = Pool(
                self.path,
                self._host or this_host,
                default=self._default,
                check_place=self._check_place,
            )
            core = Core(pool, Upkeep(pool))
            self._made = (core, SqliteStore(core))
        return self._made


def open_sqlite(url: str, environ: Mapping[str, str] = os.environ) -> SqliteEngine:
    """The engine of `sqlite:` (this user's file) or `sqlite:///absolute/path`.

    Raises ConfigError for another form, for any option, and for a network file system.
    """
    return SqliteEngine(path_of(url, environ), default=url == "sqlite:")
