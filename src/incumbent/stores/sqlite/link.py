"""One connection to the file, and whether that file is still the one the path names."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Container
from typing import Any, Final, TypeAlias

from incumbent.errors import StoreUnavailable
from incumbent.stores.sqlite import dialect, schema
from incumbent.stores.sqlite.host import Host
from incumbent.stores.sqlite.schema import State
from incumbent.stores.sqlite.trouble import FileBusy, SpoiledFile

__all__ = ["Link", "in_use_elsewhere", "read_state", "settle", "sweep"]

Execute: TypeAlias = "Callable[..., sqlite3.Cursor]"

_CHECK_LOG_EVERY: Final = 0.1
_SWEPT_AT_OPENING: Final = 32
_PAGE: Final = 1024  # a commit checks and writes whole pages: small ones halve its time here
_LOG_KEPT: Final = 2 << 20


class Link:
    """A connection that has one user at a time. `epoch` names the file and the host's boot.

    `os.stat` rather than `Path.stat`: it is called for every operation.
    """

    __slots__ = (
        "__weakref__",
        "_checked",
        "_cursor",
        "_log_identity",
        "_path",
        "committing",
        "connection",
        "durable",
        "epoch",
        "execute",
        "host",
        "identity",
        "log_bytes",
    )

    def __init__(self, path: str, host: Host) -> None:
        self._path = path
        found = os.stat(path)  # noqa: PTH116
        self.identity = (found.st_dev, found.st_ino)
        """Device and inode of the file."""
        self._log_identity: tuple[int, ...] = ()
        self._checked = 0.0
        self.host = host
        self.epoch = ""
        self.log_bytes = 0
        self.committing = False
        self.durable = False
        """Whether a commit waits until it is on the disk: else a power loss may take it back."""
        self.connection: sqlite3.Connection
        self._cursor: sqlite3.Cursor
        self.execute: Execute

    def connect(self, known: Container[str], *, alone: bool) -> None:
        """Open the file as it is now, and set right in it what another boot left.

        `known`: the epochs in which this process has used it; none of them can come back.
        `alone`: this process has no other connection, which would have set things right before.
        """
        self.connection = sqlite3.connect(
            self._path, timeout=0, isolation_level=None, check_same_thread=False
        )
        # One cursor, so that none is made for each statement: whoever executes reads all rows
        # it wants before it executes again.
        self._cursor = self.connection.cursor()
        self.execute = self._cursor.execute
        _prepare(self.execute, self._path)
        self.make_durable(False)
        # Without the write lock if it can be: a signal handler may be here in the middle of a
        # transaction of its own thread.
        state = None if alone else read_state(self.execute)
        if state is None or state.boot != self.host.boot_id or state.minor < schema.MINOR:
            state = settle(self, taken_over=lambda s: self._epoch_in(s) in known)
        self._log_identity = self._look_at_log()
        self.epoch = self._epoch_in(state)
        if self.moved():
            raise FileBusy

    def _epoch_in(self, state: State) -> str:
        device, inode = self.identity
        return f"{self.host.boot_id}:{device:x}:{inode:x}:{state.born}"

    def make_durable(self, durable: bool) -> None:
        """Set `durable` for the next transactions."""
        self.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self.durable = durable

    def moved(self) -> bool:
        """Whether the path names another file by now, or none."""
        try:
            found = os.stat(self._path)  # noqa: PTH116
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self.identity

    def torn(self, now: float) -> bool:
        """Whether the log or its index was removed under us, looked up ten times a second."""
        if now < self._checked + _CHECK_LOG_EVERY:
            return False
        self._checked = now
        try:
            return self._look_at_log() != self._log_identity
        except OSError:
            return True

    def _look_at_log(self) -> tuple[int, ...]:
        log = os.stat(self._path + "-wal")  # noqa: PTH116
        index = os.stat(self._path + "-shm")  # noqa: PTH116
        self.log_bytes = log.st_size
        return (log.st_dev, log.st_ino, index.st_dev, index.st_ino)

    def close(self) -> None:
        """Close the connection, and roll back what is open."""
        connection = getattr(self, "connection", None)
        if connection is None:
            return
        # A statement that was not read to its end would keep a closed connection, its transaction
        # and its lock alive (https://sqlite.org/c3ref/close.html, "zombie").
        cursor = getattr(self, "_cursor", None)
        if cursor is not None:
            cursor.close()
        connection.close()


def _prepare(execute: Execute, path: str) -> None:
    if _is_new(execute, path):
        execute(f"PRAGMA page_size = {_PAGE}")
    (mode,) = execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(
            f"cannot use {path}: its file system allows no write-ahead log (it stays in mode"
            f" {mode}); name a path on a local disk",
            permanent=True,
        )
    execute("PRAGMA wal_autocheckpoint = 0")  # a checkpoint syncs: upkeep does it, beside the work
    execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")


def _is_new(execute: Execute, path: str) -> bool:
    execute("BEGIN")  # one snapshot: somebody may be making the file just now
    (application,) = execute("PRAGMA application_id").fetchone()
    filled = execute("SELECT 1 FROM sqlite_master").fetchone()
    execute("ROLLBACK")
    if application == schema.APPLICATION_ID:
        return False
    if application or filled:
        raise StoreUnavailable(
            f"{path} is a database of another program: name a file for leases alone",
            permanent=True,
        )
    return True


def settle(
    link: Link, *, above: int = 0, taken_over: Callable[[State], bool] = lambda state: False
) -> State:
    """Make the file's state fit this boot, and see that enough tokens are reserved.

    Only a reservation waits for the disk, so the first try goes without. `taken_over` says
    whether the other boot that a state shows came while this process was using the file.
    """
    while True:
        link.execute("BEGIN IMMEDIATE")
        old = read_state(link.execute)
        if old is not None and old.boot != link.host.boot_id and taken_over(old):
            raise in_use_elsewhere()
        state = _settle(link, old, above)
        if state is not None:
            return state
        link.make_durable(True)


def in_use_elsewhere() -> SpoiledFile:
    """The file's boot id is not ours any more: two kernels use it, and neither sees the other."""
    return SpoiledFile(
        "the file is in use on another boot of this host, or on another host: a lease in a file"
        " excludes on one host only. Use a network store such as redis://host",
        permanent=True,
    )


def _settle(link: Link, old: State | None, above: int) -> State | None:
    execute, host = link.execute, link.host
    wall = host.wall()
    new = schema.settled(old, host.boot_id, wall, os.urandom(16).hex(), above=above)
    if not link.durable and (old is None or old.reserved != new.reserved):
        execute("ROLLBACK")
        return None
    _change(execute, old, new, host.now(), wall)
    execute("COMMIT")
    return new


def read_state(execute: Execute) -> State | None:
    """What the file says of itself, or None if it is new."""
    if not execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone():
        return None
    major, minor = execute(schema.READ_VERSION).fetchone()
    if major != schema.RECORD_FORMAT:
        (_, _, path) = execute("PRAGMA database_list").fetchone()
        raise StoreUnavailable(
            f"{path} has format {major}.{minor}, and this release of incumbent knows"
            f" {schema.RECORD_FORMAT}.x: use the release that wrote it, or name another file. Or"
            " stop every process that uses it and move it away: a new one is made, without the"
            " pauses, used slots and runs that it remembers",
            permanent=True,
        )
    return State(*execute(schema.READ_STATE).fetchone())


def _change(execute: Execute, old: State | None, new: State, now: float, wall: float) -> None:
    if old is None:
        execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    if old is None or old.minor < new.minor:
        for table in schema.TABLES:
            execute(table)
    if old is not None and old.boot != new.boot:
        for statement in schema.REBOOT:
            execute(statement, {"now": now, "wall": wall})
    execute(schema.WRITE_STATE, new)
    sweep(execute, now, wall, _SWEPT_AT_OPENING)


def sweep(execute: Execute, now: float, wall: float, limit: int) -> None:
    """Within a transaction: forget what is due among the next `limit` keys."""
    after, upto = execute(dialect.SWEEP_WINDOW, {"limit": limit - 1}).fetchone()
    window: dict[str, Any] = {
        "after": after,
        "upto": upto or dialect.SWEEP_END,
        "now": now,
        "wall": wall,
    }
    execute(dialect.SWEEP_SLOTS, window)
    forgotten = execute(dialect.SWEEP_LEASES, window).fetchall()
    for beside in dialect.SWEEP_BESIDE:
        execute(beside, window)
    highest = max((token for (token,) in forgotten), default=0)
    execute(dialect.SWEPT, (upto or "", highest))
