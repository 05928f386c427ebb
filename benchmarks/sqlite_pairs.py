"""One uncontended acquire and release on this host; the unit is filelock's FileLock."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from filelock import FileLock

from benchmarks.harness import Contender, Row, compare
from incumbent import Lock

__all__ = ["sqlite_rows"]


def sqlite_rows(turns: int, pairs: int) -> list[Row]:
    """Blocking, on one core."""
    with tempfile.TemporaryDirectory() as folder:
        file_lock = FileLock(Path(folder, "file.lock"))
        ours = Lock("pair", store=f"sqlite://{folder}/incumbent.db", ttl=15)
        database = _bare_database(Path(folder, "bare.db"))

        def filelock() -> None:
            file_lock.acquire()
            file_lock.release()

        def incumbent_lock() -> None:
            ours.acquire().release()

        def bare_wal() -> None:
            database.execute("insert into lease values ('pair', 'claim')")
            database.execute("delete from lease where name = 'pair'")

        return compare(
            [
                Contender("filelock FileLock", filelock),
                Contender("incumbent Lock: fenced, renewed", incumbent_lock, 1.0),
                Contender("bare INSERT + DELETE in WAL mode", bare_wal),
            ],
            turns,
            pairs,
        )


def _bare_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = normal")
    database.execute("create table lease (name text primary key, claim text) without rowid")
    return database
