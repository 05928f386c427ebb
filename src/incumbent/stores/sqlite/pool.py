"""The connections of one file in this process: each has one user at a time.

A signal handler or finaliser that comes in the middle of an operation finds its connection taken
and opens another. Whatever is interrupted in a transaction is closed, which rolls it back.

Forks. SQLite keeps a table of its POSIX locks in the process's memory. A child inherits the table
but not the locks, and then believes of a connection that it opens itself that the file is locked
already: its log can be deleted by others while it writes to it, and both sides lead. So all
connections are closed just before a fork. Where one is in use and does not come back in time, the
child finds the file spoiled and refuses it, and the inherited connection is never closed
(https://sqlite.org/howtocorrupt.html, 2.6).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from incumbent.stores.sqlite.filesystem import check_file_system
from incumbent.stores.sqlite.host import Host
from incumbent.stores.sqlite.link import Link
from incumbent.stores.sqlite.location import make_file
from incumbent.stores.sqlite.trouble import FileBusy, SpoiledFile

__all__ = ["Pool"]

_IDLE_KEPT: Final = 8
_FORK_WAITS: Final = 1.0

_spoiled: dict[tuple[int, int], str] = {}
"""Files, by device and inode, that this process must not open again, and why."""


class Pool:
    """A free list; `host` and `check_place` are handed in by tests."""

    def __init__(
        self,
        path: Path,
        host: Callable[[], Host],
        *,
        default: bool = False,
        check_place: Callable[[Path], None] = check_file_system,
    ) -> None:
        self.path = path
        self._host = host
        self._default = default
        self._check_place = check_place
        self._idle: list[Link] = []
        # Weak, so that a connection which an exception left without a user is collected.
        self._open: weakref.WeakSet[Link] = weakref.WeakSet()
        # Reentrant: a signal handler may open a connection while its thread is opening one.
        self._opening = threading.RLock()
        self._known: set[str] = set()
        self._process = os.getpid()
        _pools.add(self)

    def borrow(self, *, compare: bool = True) -> Link:
        """A connection to the file that the path names; its user alone may touch it.

        With `compare` it is the file that the path names now. Raises StoreUnavailable or
        ConfigError if the file cannot be used, sqlite3.Error or FileBusy if opening it failed.
        """
        if os.getpid() != self._process:
            self.forked()  # by code that runs no hooks
        idle = self._idle
        while idle:
            try:
                link = idle.pop()
            except IndexError:  # another thread was faster
                break
            if not compare or self._is_current(link):
                return link
        return self._another()

    def put_back(self, link: Link) -> None:
        """Free for the next user."""
        if len(self._idle) < _IDLE_KEPT:
            self._idle.append(link)
        else:
            self.discard(link)

    def discard(self, link: Link) -> None:
        """Close a connection that is in an unknown state."""
        self._open.discard(link)
        link.close()

    def close(self) -> None:
        """Close what nobody uses; a later operation opens the file again."""
        if os.getpid() != self._process:
            self.forked()
        while self._idle:
            try:
                self.discard(self._idle.pop())
            except IndexError:
                return

    def _another(self) -> Link:
        # Held also while the process forks, so that nothing is opened just then.
        with self._opening:
            self._check_place(self.path)
            make_file(self.path, default=self._default)
            link = self._link()
            _require_unspoiled(link.identity, self.path)
            # By identity: a connection to the file that stood here before is no company.
            alone = all(other.identity != link.identity for other in list(self._open))
            self._open.add(link)
            try:
                link.connect(self._known, alone=alone)
            except BaseException:
                self.discard(link)
                raise
            self._known.add(link.epoch)
            return link

    def _link(self) -> Link:
        try:
            return Link(str(self.path), self._host())
        except FileNotFoundError:  # somebody is replacing it
            raise FileBusy from None

    def _is_current(self, link: Link) -> bool:
        if link.moved():
            self._abandon(link)
            return False
        if link.torn(link.host.now()):
            _spoiled[link.identity] = (
                "its -wal or -shm file was removed while it was in use. Leave these files alone,"
                " keep the file out of folders that are cleaned by age, and restart this process"
            )
            self._abandon(link)
            _require_unspoiled(link.identity, self.path)
        return True

    def _abandon(self, link: Link) -> None:
        self._open.discard(link)
        _keep_for_ever(link)

    # -- forks -------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Close every connection; wait a moment for those in use."""
        until = time.monotonic() + _FORK_WAITS
        self._opening.acquire(timeout=_FORK_WAITS)
        self.close()
        while self._open and time.monotonic() < until:
            time.sleep(0.0005)
            self.close()

    def after_fork(self) -> None:
        """In the parent: connections may be opened again."""
        try:
            self._opening.release()
        except RuntimeError:
            pass  # it could not be had in time

    def forked(self) -> None:
        """In the child: nothing of the parent's is used, nor closed."""
        self._process = os.getpid()
        self._opening = threading.RLock()
        self._idle = []
        for link in list(self._open):
            _spoiled[link.identity] = (
                "this process was forked while a thread was using it. Run the work in a process"
                " that was started anew (multiprocessing's spawn, or subprocess)"
            )
            _keep_for_ever(link)
        self._open = weakref.WeakSet()


def _require_unspoiled(identity: tuple[int, int], path: Path) -> None:
    if identity in _spoiled:
        raise SpoiledFile(f"cannot use {path}: {_spoiled[identity]}", permanent=True)


def _keep_for_ever(link: Link) -> None:
    connection = getattr(link, "connection", None)
    if connection is None:
        return
    # Closing would act on files that are not the connection's own any more. A list would be
    # emptied at exit, and so close it after all; one more reference than there are never is.
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _before_fork() -> None:
    for pool in list(_pools):
        pool.before_fork()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.after_fork()


def _forked() -> None:
    for pool in list(_pools):
        pool.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)
