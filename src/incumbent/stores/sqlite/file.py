"""A process's use of the file: transactions, connections, forks, and cleaning up.

Each connection has one user at a time. A signal handler or finaliser that runs in the middle of an
operation finds the connection taken and opens another. A connection that is interrupted in a
transaction is closed, which rolls it back.

Forks. SQLite keeps a table of its POSIX locks in the process's memory. A child inherits the table
but not the locks. When it opens a connection, SQLite there takes the file for locked already; so
others can delete the log while the child writes to it, and both sides lead. Therefore all
connections are closed just before a fork. If one is in use and is not returned in time, the child
marks the file as spoiled and refuses it, and never closes the inherited connection
(https://sqlite.org/howtocorrupt.html, 2.6).

Cleaning up. A checkpoint syncs the log and the file, so the operation that fills the log does not
run it: a thread does, which ends with that work. The first commit after a checkpoint syncs the
log's new header (https://sqlite.org/src/info/ff5be73dee). That commit is the sweep's, which follows
at once, unless an operation comes in between: at most one for each `_LOG_BYTES`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from incumbent.errors import ConfigError, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.stores.polling import LOCAL, Looks
from incumbent.stores.sqlite.connection import (
    FileBusy,
    SpoiledFile,
    SqliteConnection,
    spoiled,
    translated,
)
from incumbent.stores.sqlite.host import Host, check_file_system, this_host
from incumbent.stores.sqlite.records import Records

T = TypeVar("T")
Spawn: TypeAlias = "Callable[[Callable[[], None]], object]"

_IDLE_KEPT: Final = 8
_FORK_WAITS: Final = 1.0

_LOG_BYTES: Final = 2 << 20
"""Bytes of the write-ahead log above which it is copied into the file."""

_FORCED_FROM: Final = 4 * _LOG_BYTES
_FORCED_TRIES: Final = 20
_SWEPT_AT_ONCE: Final = 1024
_SWEPT_AT_OPENING: Final = 32


class Mode(NamedTuple):
    """The statements that begin and end a transaction; `durable`: its commit waits for the disk.

    `compare`: first check that the path still names the file.
    """

    begin: str
    end: str
    durable: bool = False
    compare: bool = True


WRITE: Final = Mode("BEGIN IMMEDIATE", "COMMIT")
DURABLE: Final = Mode("BEGIN IMMEDIATE", "COMMIT", durable=True)
READ: Final = Mode("BEGIN", "ROLLBACK")
PROBE: Final = Mode("BEGIN IMMEDIATE", "ROLLBACK")
"""Lock the file as a take does, and change nothing."""
ONE_STATEMENT: Final = Mode("", "", compare=False)
"""A statement that is a transaction of its own, without checking the path: if the file has just
been removed, this change is lost just as the changes already in it are."""

SERIES: Final = Mode("", "")
"""A series of transactions, which begins and ends them itself."""


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="incumbent-sqlite-checkpoint", daemon=True).start()


class SqliteFile:
    """This process's connections to one file, and the looks of its waiters.

    `spawn` starts the clean-up in the background.
    """

    def __init__(
        self,
        path: Path,
        host: Callable[[], Host] = this_host,
        *,
        default: bool = False,
        spawn: Spawn = _in_background,
    ) -> None:
        """`default`: make missing folders; `host` and `spawn` are arguments for tests."""
        self.path = path
        self._host = host
        self._default = default
        self._spawn = spawn
        self._cleaning = threading.Lock()
        self._idle: list[SqliteConnection] = []
        # Weak, so that a connection is collected if an exception leaves it without a user.
        self._open: weakref.WeakSet[SqliteConnection] = weakref.WeakSet()
        # Reentrant: a signal handler may open a connection while its thread is opening one.
        self._opening = threading.RLock()
        self._known: set[str] = set()
        self._process = os.getpid()
        self.looks = Looks(LOCAL)
        _files.add(self)

    def transact(self, work: Callable[[SqliteConnection], T], mode: Mode = WRITE) -> T:
        """Do `work` once, in one transaction.

        Raises FileBusy if another connection is writing, StoreUnavailable or ConfigError if the
        file cannot be used, OutcomeUnknown if the disk fails during the commit.
        """
        begin, end, durable, compare = mode
        db = self.borrow(compare=compare)
        # A statement that is its own transaction may commit as soon as it runs.
        committing = not begin
        try:
            if db.durable is not durable:
                db.make_durable(durable)
            if begin:
                db.execute(begin)
            outcome = work(db)
            if begin:
                committing = mode is not READ
                db.execute(end)
        except sqlite3.Error as error:
            reason = translated(error, self.path, committing=committing)
            if isinstance(reason, FileBusy) and not db.raw.in_transaction:
                self.put_back(db)  # no transaction has begun, so the connection is still good
            else:
                self.discard(db)
            raise reason from error
        except BaseException:
            self.discard(db)
            raise
        self.put_back(db)
        if db.log_bytes > _LOG_BYTES:
            self._clean_up_soon(db)
        return outcome

    # -- connections -------------------------------------------------------------------------

    def borrow(self, *, compare: bool = True) -> SqliteConnection:
        """A connection to the file, for the caller alone.

        `compare`: check that the path still names this file. Raises as `transact`.
        """
        if os.getpid() != self._process:
            self.forked()  # the fork was made by code that runs no hooks
        idle = self._idle
        while idle:
            try:
                db = idle.pop()
            except IndexError:  # another thread was faster
                break
            if not compare or self._is_current(db):
                return db
        return self._open_another()

    def put_back(self, db: SqliteConnection) -> None:
        """Return a connection for the next user."""
        if len(self._idle) < _IDLE_KEPT:
            self._idle.append(db)
        else:
            self.discard(db)

    def discard(self, db: SqliteConnection) -> None:
        """Close a connection that is in an unknown state."""
        self._open.discard(db)
        db.close()

    def close(self) -> None:
        """Close the connections that are not in use; a later operation opens the file again."""
        if os.getpid() != self._process:
            self.forked()
        while self._idle:
            try:
                self.discard(self._idle.pop())
            except IndexError:
                return

    def _open_another(self) -> SqliteConnection:
        # This lock is also held during a fork, so that no connection is opened then.
        with self._opening:
            check_file_system(self.path)
            make_file(self.path, default=self._default)
            try:
                db = SqliteConnection(str(self.path), self._host())
            except FileNotFoundError:  # another process is replacing it
                raise FileBusy from None
            # Before it is opened: SQLite here may take the file for locked, although it is not.
            self._require_unspoiled(db)
            # Compared by identity: a connection to a former file at this path does not count.
            alone = all(other.identity != db.identity for other in list(self._open))
            # Before it is opened: a fork has to find each connection that may hold a lock.
            self._open.add(db)
            try:
                db.connect(self._known)
                if alone:
                    _sweep_if_idle(db)
            except BaseException as error:
                self.discard(db)
                if isinstance(error, sqlite3.Error):
                    raise translated(error, self.path) from error
                raise
            self._known.add(db.epoch)
            return db

    def _is_current(self, db: SqliteConnection) -> bool:
        if db.moved():
            self.discard(db)
            return False
        if not db.is_due(db.host.now()):
            return True
        if db.torn():
            self.discard(db)
            self._require_unspoiled(db)
        if db.has_our_format():
            return True
        self.discard(db)
        return False

    def _require_unspoiled(self, db: SqliteConnection) -> None:
        if db.identity in spoiled:
            why = spoiled[db.identity]
            raise SpoiledFile(f"cannot use {self.path}: {why}", permanent=True)

    # -- forks -------------------------------------------------------------------------------

    def before_fork(self, until: float) -> None:
        """Close every connection; wait until `until` (monotonic) for connections in use."""
        # Kept until the fork is over: nothing may be opened in between.
        self._opening.acquire(timeout=max(0.0, until - time.monotonic()))
        self.close()
        while self._open and time.monotonic() < until:
            time.sleep(0.0005)
            self.close()

    def after_fork(self) -> None:
        """In the parent, let connections be opened again."""
        try:
            self._opening.release()
        except RuntimeError:
            pass  # before_fork did not get the lock in time

    def forked(self) -> None:
        """In the child, abandon the parent's connections: they are neither used nor closed."""
        self._process = os.getpid()
        # New ones: those of the parent may be held by a thread that is not here.
        self._opening = threading.RLock()
        self._cleaning = threading.Lock()
        self._idle = []
        for db in list(self._open):
            spoiled[db.identity] = (
                "this process was forked while a thread was using it. Run the work in a process"
                " that was started anew (multiprocessing's spawn, or subprocess)"
            )
            db.keep_for_ever()
        self._open = weakref.WeakSet()
        self.looks.forget()

    # -- cleaning up -------------------------------------------------------------------------

    def _clean_up_soon(self, db: SqliteConnection) -> None:
        # Forgotten first, so that the next operation does not ask for the same again.
        log_bytes, db.log_bytes = db.log_bytes, 0
        if not self._cleaning.acquire(blocking=False):
            return
        try:
            self._spawn(lambda: self._clean_up(log_bytes))
        except RuntimeError as error:  # no thread can be started: the next operation tries again
            self._cleaning.release()
            raise_if_from_signal(error)

    def _clean_up(self, log_bytes: int) -> None:
        def work(db: SqliteConnection) -> None:
            _copy_log(db, log_bytes)
            db.execute("BEGIN IMMEDIATE")
            Records(db).sweep(_SWEPT_AT_ONCE)
            db.execute("COMMIT")

        try:
            self.transact(work, SERIES)
        except (StoreError, ConfigError, FileBusy):
            pass  # nobody waits for this; an operation with the same trouble reports it
        finally:
            self._cleaning.release()


def _sweep_if_idle(db: SqliteConnection) -> None:
    # A program that runs for a moment never fills the log, so it sweeps when it opens the file.
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return
        raise
    Records(db).sweep(_SWEPT_AT_OPENING)
    db.execute("COMMIT")


def _copy_log(db: SqliteConnection, log_bytes: int) -> None:
    # PASSIVE blocks no writer, but under steady writing it never reaches the end of the log, which
    # then grows. Far beyond the limit, TRUNCATE copies the rest, which is little by now, and blocks
    # the writers meanwhile; it needs an instant in which none of them writes.
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    for _ in range(_FORCED_TRIES if log_bytes > _FORCED_FROM else 0):
        (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy:
            return
        time.sleep(0.0005)


def make_file(path: Path, *, default: bool) -> None:
    """Create the file, for its owner only, unless it exists; with `default` also its folders.

    Raises StoreUnavailable with the cause; permanent unless the cause may pass by itself.
    """
    try:
        if default:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never open an existing file: closing it again would drop every POSIX lock that this
        # process holds on it (https://sqlite.org/howtocorrupt.html, 2.2).
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            why = "it is a folder: name a file in it"
            raise StoreUnavailable(f"cannot create {path}: {why}", permanent=True) from None
    except OSError as error:
        raise_if_from_signal(error)
        code, text = error.errno or 0, error.strerror or ""
        denied = f"user {os.geteuid()} may not write to {path.parent}"
        lasting = {
            errno.ENOTDIR: f"{path.parent} is not a folder",
            errno.EACCES: denied,
            errno.EPERM: denied,
            errno.EROFS: text,
        }
        if code == errno.ENOENT:
            # Only in this case, because a folder without permission cannot be examined.
            lasting[code] = f"its folder does not exist: mkdir -p -m 700 {path.parent}"
            if path.parent.is_dir():  # such as /proc
                lasting[code] = f"no files can be created in {path.parent}"
        why, permanent = lasting.get(code, text), code in lasting
        raise StoreUnavailable(f"cannot create {path}: {why}", permanent=permanent) from error


_files: weakref.WeakSet[SqliteFile] = weakref.WeakSet()


def _for_each(act: Callable[[SqliteFile], None]) -> Callable[[], None]:
    def hook() -> None:
        for file in list(_files):
            act(file)

    return hook


def _before_fork() -> None:
    until = time.monotonic() + _FORK_WAITS  # of all files together
    for file in list(_files):
        file.before_fork(until)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_for_each(SqliteFile.after_fork),
        after_in_child=_for_each(SqliteFile.forked),
    )
