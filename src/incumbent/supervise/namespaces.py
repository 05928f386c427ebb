"""PID and mount namespaces: unshare(2), setns(2), mount(2), prctl(2). Linux only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from incumbent.supervise.kernel import libc

__all__ = ["entering", "name_process", "new_pid_namespace", "own_proc", "subreap"]

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_NEWPID: Final = 0x20000000
_NEWNS: Final = 0x00020000
_MS_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8
_MS_PRIVATE_ALL: Final = (1 << 18) | (1 << 14)


def _call(what: str, *arguments: object) -> None:
    library = libc()
    if library is None:
        raise OSError("there are no namespaces on this system")
    if getattr(library, what)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def name_process(name: str) -> None:
    """What ps(1) shows of this process, at most 15 letters."""
    _call("prctl", _PR_SET_NAME, name.encode(), 0, 0, 0)


def subreap() -> None:
    """From now on the orphans of our descendants become our children."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def new_pid_namespace(home: int) -> Iterator[None]:
    """Within it the first fork is the init of a new PID namespace; `home` is our own's descriptor.

    Raises OSError without CAP_SYS_ADMIN.
    """
    _call("unshare", _NEWPID)
    try:
        yield
    finally:
        # A thread that stays there can neither unshare again nor be joined by other threads.
        _call("setns", home, _NEWPID)


@contextmanager
def entering(namespace: int, home: int) -> Iterator[None]:
    """Within it this thread's forks are born in `namespace`; no thread can be started."""
    _call("setns", namespace, _NEWPID)
    try:
        yield
    finally:
        _call("setns", home, _NEWPID)


def own_proc() -> Callable[[], None]:
    """What gives the calling process its own mounts, with the /proc of its PID namespace.

    Prepared here, called between fork and exec: there it only makes system calls.
    """
    library = libc()
    if library is None:
        raise OSError("there are no namespaces on this system")
    unshare, mount = library.unshare, library.mount
    root, proc = ctypes.c_char_p(b"/"), ctypes.c_char_p(b"/proc")
    kind, none = ctypes.c_char_p(b"proc"), ctypes.c_char_p(None)
    private, safe = ctypes.c_ulong(_MS_PRIVATE_ALL), ctypes.c_ulong(_MS_NOSUID_NODEV_NOEXEC)

    def call() -> None:
        if (
            unshare(_NEWNS) != 0
            or mount(none, root, none, private, none) != 0
            or mount(kind, proc, kind, safe, none) != 0
        ):
            code = ctypes.get_errno()
            raise OSError(code, f"a /proc of its own: {os.strerror(code)}")

    return call
