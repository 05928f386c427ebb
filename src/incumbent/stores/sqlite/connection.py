"""One connection to the file: opening it, checking that the path still names the same file, and
translating sqlite3's errors to those of the contract."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.stores.sqlite import schema
from incumbent.stores.sqlite.host import Host
from incumbent.stores.sqlite.schema import State

Execute: TypeAlias = "Callable[..., sqlite3.Cursor]"

_CHECK_EVERY: Final = 0.1
_PAGE: Final = 1024  # a commit checks and writes whole pages: small pages halve its time
_LOG_KEPT: Final = 2 << 20

spoiled: dict[tuple[int, int], str] = {}
"""Files, by device and inode, that this process must not open again, with the reason."""

# -- errors ----------------------------------------------------------------------------------


class FileBusy(Exception):
    """Another connection is writing: nothing was changed, and another try may succeed."""


class SpoiledFile(StoreUnavailable):
    """This process cannot prove anything any more about the file it used."""


_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_CERTAIN: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY})
"""Failures of a COMMIT that leave no valid commit frame in the log; _BUSY is another."""

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


def translated(
    error: sqlite3.Error, path: Path, *, committing: bool = False
) -> FileBusy | StoreError:
    """The contract's exception for `error`; OutcomeUnknown only if a COMMIT had begun."""
    # The upper bits distinguish variants of one error (https://sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _BUSY:
        return FileBusy()
    advice, permanent = _ADVICE.get(code, ("look at the disk and at the system's log", False))
    message = f"cannot use {path}: {error}; {advice}"
    if committing and code not in _CERTAIN:
        return OutcomeUnknown(f"{message}. Whether the last change was kept is not known")
    return StoreUnavailable(message, permanent=permanent)


def in_use_elsewhere() -> SpoiledFile:
    """The error for a file whose boot id is no longer ours: two kernels use it unseen."""
    return SpoiledFile(
        "the file is in use on another boot of this host, or on another host: a lease in a file"
        " excludes on one host only. Use a network store such as redis://host",
        permanent=True,
    )


# -- the connection --------------------------------------------------------------------------


class SqliteConnection:
    """A connection that has one user at a time. `epoch` names the file and the host's boot.

    It calls `os.stat` rather than `Path.stat`, which is slower, for every operation.
    """

    def __init__(self, path: str, host: Host) -> None:
        self._path = path
        self.identity = _identity(path)
        """The device and inode of the file."""
        self._log_identity: tuple[int, ...] = ()
        self._checked = 0.0
        self.host = host
        self.epoch = ""
        self.boots = 0
        """The number of the host's boot, as rows have it."""
        self.log_bytes = 0
        self.durable = False
        """Whether a commit waits until it is on the disk; if not, a power loss may undo it."""
        self.raw: sqlite3.Connection
        self._cursor: sqlite3.Cursor
        self.execute: Execute
        # The last: `__del__` closes only what was made as a whole.
        self._process = os.getpid()

    def connect(self, known: Container[str]) -> None:
        """Open the present file, and update the state in it that another boot left.

        `known`: the epochs in which this process has used the file; none of them can come back.
        """
        self.raw = sqlite3.connect(
            self._path, timeout=0, isolation_level=None, check_same_thread=False
        )
        # One cursor, instead of one for each statement: each user reads all the rows it wants
        # before it executes the next statement.
        self._cursor = self.raw.cursor()
        self.execute = self._cursor.execute
        _prepare(self.execute, self._path)
        self.make_durable(False)
        state = _read_state(self.execute)
        # Without the write lock if possible: a signal handler may run this in the middle of a
        # transaction of its own thread.
        if state is None or state.boot != self.host.boot_id:
            state = self._update_state(known)
        self._log_identity = self._identify_log()
        self.epoch, self.boots = self._epoch_in(state), state.boots
        # Last: if the file was replaced while it was opened, the next try opens the new one.
        if self.moved():
            raise FileBusy

    def _update_state(self, known: Container[str]) -> State:
        self.make_durable(True)  # tokens are reserved
        self.execute("BEGIN IMMEDIATE")
        old = _read_state(self.execute)
        if old is not None and old.boot != self.host.boot_id and self._epoch_in(old) in known:
            raise in_use_elsewhere()  # the other boot came while this process used the file
        wall = self.host.wall()
        new = schema.state_of_boot(old, self.host.boot_id, wall, os.urandom(16).hex())
        if new != old:
            _change(self.execute, old, new)
        self.execute("COMMIT")
        return new

    def _epoch_in(self, state: State) -> str:
        device, inode = self.identity
        return f"{self.host.boot_id}:{device:x}:{inode:x}:{state.born}"

    @property
    def url(self) -> str:
        """The store's URL, for messages."""
        return f"sqlite://{self._path}"

    def make_durable(self, durable: bool) -> None:
        """Set `durable` for the next transactions."""
        self.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self.durable = durable

    def moved(self) -> bool:
        """Whether the path now names another file, or none."""
        try:
            return _identity(self._path) != self.identity
        except OSError as error:
            raise_if_from_signal(error)
            return True

    def is_due(self, now: float) -> bool:
        """Whether to check, ten times a second, what can change while the file stays the same."""
        if now < self._checked + _CHECK_EVERY:
            return False
        self._checked = now
        return True

    def has_our_format(self) -> bool:
        """Whether no other version has brought the file to another format."""
        try:
            return _format_in(self.execute) == schema.RECORD_FORMAT
        except sqlite3.Error:
            return False  # a new connection says why

    def torn(self) -> bool:
        """Whether the log or its index was removed, and the file was not."""
        if not self._log_identity or self.moved():
            return False
        try:
            return self._identify_log() != self._log_identity
        except OSError as error:
            raise_if_from_signal(error)
            return True

    def _identify_log(self) -> tuple[int, ...]:
        self.log_bytes = os.stat(self._path + "-wal").st_size  # noqa: PTH116
        return _identity(self._path + "-wal") + _identity(self._path + "-shm")

    def close(self) -> None:
        """Close the connection, and roll back an open transaction.

        Not if its log was removed: the last close copies the log over what others wrote since.
        """
        if self.torn():
            spoiled[self.identity] = (
                "its -wal or -shm file was removed while it was in use. Leave these files alone,"
                " keep the file out of folders that are cleaned by age, and restart this process"
            )
            with suppress(sqlite3.Error):
                self.raw.rollback()
            self.keep_for_ever()
            return
        self._log_identity = ()  # a last close removes the log
        # The cursor first: a statement that was not read to its end would keep a closed connection,
        # its transaction and its lock alive (https://sqlite.org/c3ref/close.html, "zombie").
        for part in ("_cursor", "raw"):
            if hasattr(self, part):  # opening it may have failed
                getattr(self, part).close()

    def __del__(self) -> None:
        # Python would close it too, from 3.13 on with a warning. Not in a child: see keep_for_ever.
        if hasattr(self, "_process") and os.getpid() == self._process:  # making it may have failed
            with suppress(sqlite3.ProgrammingError):  # it is closed
                self.close()

    def keep_for_ever(self) -> None:
        """Never close the connection: closing would act on files that it no longer owns."""
        if hasattr(self, "raw"):
            # A list would be emptied at exit, which would close it after all. An object with one
            # reference too many is never destroyed.
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.raw))
            self._process = 0  # `__del__` would close it, too


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116
    return (found.st_dev, found.st_ino)


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
    execute("PRAGMA wal_autocheckpoint = 0")  # a checkpoint syncs, so it runs in the background
    execute(f"PRAGMA journal_size_limit = {_LOG_KEPT}")


def _is_new(execute: Execute, path: str) -> bool:
    execute("BEGIN")  # one snapshot: another process may be making the file
    (application,) = execute("PRAGMA application_id").fetchone()
    filled = execute("SELECT 1 FROM sqlite_master").fetchone()
    execute("ROLLBACK")
    if application == schema.APPLICATION_ID:
        return False
    if application or filled:
        raise StoreUnavailable(
            f"{path} is a database of another program: name a file for leases alone", permanent=True
        )
    return True


def _format_in(execute: Execute) -> int:
    (found,) = execute("PRAGMA user_version").fetchone()
    return int(found)


def _read_state(execute: Execute) -> State | None:
    """The state that the file records, or None if the file is new."""
    if not execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone():
        return None
    found = _format_in(execute)
    if found != schema.RECORD_FORMAT:
        (_, _, path) = execute("PRAGMA database_list").fetchone()
        raise StoreUnavailable(
            f"{path} has format {found}, and this version of incumbent speaks format"
            f" {schema.RECORD_FORMAT}: use the version that wrote it, or name another file. Or"
            " stop every process that uses it and move it away: a new one is made, without the"
            " pauses, used slots and runs that it remembers",
            permanent=True,
        )
    return State(*execute(schema.SEE_STATE).fetchone())


def _change(execute: Execute, old: State | None, new: State) -> None:
    if old is None:
        execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        execute(f"PRAGMA user_version = {schema.RECORD_FORMAT}")
        for table in schema.TABLES:
            execute(table)
    execute(schema.WRITE_STATE, new)
