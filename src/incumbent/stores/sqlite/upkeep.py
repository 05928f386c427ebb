"""What waits for the disk or looks at many rows, done beside the operations.

A checkpoint syncs the log and the file. So the log is never checkpointed by the operation that
fills it: a thread that lives as long as the work does it. The first commit after a checkpoint syncs
the log's new header (https://sqlite.org/src/info/ff5be73dee); the sweep that follows at once takes
that upon itself, unless an operation comes in between: at most one for each `LOG_BYTES`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from incumbent.errors import ConfigError, StoreError
from incumbent.stores.sqlite.link import Link, sweep
from incumbent.stores.sqlite.pool import Pool
from incumbent.stores.sqlite.trouble import FileBusy

__all__ = ["LOG_BYTES", "Spawn", "Upkeep"]

LOG_BYTES: Final = 2 << 20
"""Bytes of the write-ahead log from which on it is copied into the file."""

_FORCED_FROM: Final = 4 * LOG_BYTES
_FORCED_TRIES: Final = 20
_SWEPT_AT_ONCE: Final = 1024

Spawn: TypeAlias = "Callable[[Callable[[], None]], object]"


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="incumbent-sqlite-upkeep", daemon=True).start()


class Upkeep:
    """One run at a time; `spawn` is handed in by tests."""

    def __init__(self, pool: Pool, spawn: Spawn = _in_background) -> None:
        self._pool = pool
        self._spawn = spawn
        self._running = threading.Lock()

    def due(self, link: Link) -> None:
        """The log has grown: have it copied and old records forgotten, soon."""
        log_bytes, link.log_bytes = link.log_bytes, 0
        if not self._running.acquire(blocking=False):
            return
        try:
            self._spawn(lambda: self._run(log_bytes))
        except RuntimeError:  # no thread to be had: the next operation asks again
            self._running.release()

    def _run(self, log_bytes: int) -> None:
        try:
            self._work(log_bytes)
        except (sqlite3.Error, StoreError, ConfigError, FileBusy):
            pass  # nobody waits for it; an operation that has the same trouble will say so
        finally:
            self._running.release()

    def _work(self, log_bytes: int) -> None:
        link = self._pool.borrow()
        try:
            _copy_log(link, log_bytes)
            link.execute("BEGIN IMMEDIATE")
            sweep(link.execute, link.host.now(), link.host.wall(), _SWEPT_AT_ONCE)
            link.execute("COMMIT")
        except BaseException:
            self._pool.discard(link)
            raise
        self._pool.put_back(link)


def _copy_log(link: Link, log_bytes: int) -> None:
    # PASSIVE holds nobody up, but under steady writing it never reaches the end of the log, which
    # then grows. Far beyond the limit the rest, which is little by now, is copied with the writers
    # held up; that needs an instant in which none of them writes.
    link.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    for _ in range(_FORCED_TRIES if log_bytes > _FORCED_FROM else 0):
        (busy, _, _) = link.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy:
            return
        time.sleep(0.0005)
