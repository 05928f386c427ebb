"""Linux features that Python 3.11 lacks: timers on CLOCK_BOOTTIME, pidfds, prctl(2), namespaces.

On systems without them (macOS) each function reports that, and its caller does with less. ctypes is
imported only in functions that need it: it is heavy, and most processes never need it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Final

from incumbent import clock

if TYPE_CHECKING:
    import ctypes


# Of linux/prctl.h, linux/sched.h, linux/mount.h and sys/timerfd.h: Python 3.11 names none of them.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_NEWPID: Final = 0x20000000
_NEWNS: Final = 0x00020000
_MS_NOSUID_NODEV_NOEXEC: Final = 2 | 4 | 8
_MS_PRIVATE_ALL: Final = (1 << 18) | (1 << 14)
_CLOCK_BOOTTIME: Final = 7
_TFD_TIMER_ABSTIME: Final = 1
_NANO: Final = 1_000_000_000
_POLL_LONGEST: Final = 86_400.0


@cache
def libc() -> ctypes.CDLL | None:
    """The C library on Linux, else None."""
    if sys.platform != "linux":
        return None
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError."""
    library = libc()
    if library is None:
        raise OSError(f"{function}: only on Linux")
    if getattr(library, function)(*arguments) != 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")


# -- this process --------------------------------------------------------------------------------


def die_with_parent(signum: int = signal.SIGKILL) -> Callable[[], object] | None:
    """A function for the child to call; prepared before the fork, so it only makes system calls.

    prctl(2), PR_SET_PDEATHSIG: the child gets `signum` when the *thread* that forked it ends. Its
    descendants do not; the guard takes care of them. None if the system does not have it.
    """
    library = libc()
    if library is None:
        return None
    prctl, parent = library.prctl, os.getpid()

    def call() -> None:
        # Set first, then asked who the parent is: one that ended before this sends no signal.
        prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
        # In a PID namespace of its own, the child sees its parent outside as 0.
        if os.getppid() not in (parent, 0):
            os._exit(128 + signum)

    return call


def name_process(name: str) -> None:
    """Set the name that ps(1) shows for this process, at most 15 letters."""
    _call("prctl", _PR_SET_NAME, name.encode(), 0, 0, 0)


def become_subreaper() -> None:
    """Make orphaned descendants our children from now on."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# -- waiting -------------------------------------------------------------------------------------


class DescriptorWaiter:
    """Waits for descriptors until an instant of `clock.now`; a suspend does not make it late."""

    def __init__(self) -> None:
        library = libc()
        flags = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
        self._timer_fd = -1 if library is None else library.timerfd_create(_CLOCK_BOOTTIME, flags)

    def wait(self, fds: Iterable[int], until: float) -> set[int]:
        """Wait until one of `fds` is readable, or `until` (inf: no end); returns the readable."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        if self._timer_fd >= 0:
            # Set anew each time, and never read: setting it makes it unreadable again.
            self._arm(until)
            poll.register(self._timer_fd, select.POLLIN)
            return {fd for fd, _ in poll.poll()} - {self._timer_fd}
        # poll(2) counts in an int of milliseconds; one that returns too soon is called again.
        timeout = min(_POLL_LONGEST, max(0.0, until - clock.now())) * 1000
        return {fd for fd, _ in poll.poll(timeout)}

    def _arm(self, until: float) -> None:
        import ctypes

        # All zero disarms the timer, which means "never"; an instant in the past must still fire.
        ns = 0 if until == float("inf") else max(1, int(until * _NANO) + 1)
        spec = (ctypes.c_long * 4)(0, 0, *divmod(ns, _NANO))
        library = libc()
        if library is not None:
            library.timerfd_settime(self._timer_fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def close(self) -> None:
        """Close the timer."""
        if self._timer_fd >= 0:
            os.close(self._timer_fd)
            self._timer_fd = -1


def pidfds(pids: Iterable[int]) -> list[int]:
    """A pidfd for each process, readable when that ends; none for a process that has ended."""
    found: list[int] = []
    for pid in pids:
        with suppress(OSError, AttributeError):
            found.append(os.pidfd_open(pid))
    return found


def readable(fd: int, within: float = 0.0) -> bool:
    """Whether `fd` becomes readable (a pidfd: its process ends) `within` seconds."""
    return _polled(fd, select.POLLIN, within)


def writable(fd: int, within: float) -> bool:
    """Whether `fd` becomes writable `within` seconds, or is known to stay unwritable."""
    return _polled(fd, select.POLLOUT, within)


def _polled(fd: int, event: int, within: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(0.0, within) * 1000))


# -- namespaces: unshare(2), setns(2), mount(2) --------------------------------------------------


@contextmanager
def pid_namespace(own_namespace: int, namespace: int = -1) -> Iterator[None]:
    """A context in which this thread forks into `namespace`, and can start no thread.

    Without `namespace`, the first fork is the init of a new one. `own_namespace`: the descriptor of
    the one to come back to. Raises OSError without CAP_SYS_ADMIN.
    """
    if namespace < 0:
        _call("unshare", _NEWPID)
    else:
        _call("setns", namespace, _NEWPID)
    try:
        yield
    finally:
        # A thread that stays there can neither unshare again nor start other threads.
        _call("setns", own_namespace, _NEWPID)


def own_proc() -> Callable[[], None]:
    """A function that gives its process mounts of its own, with the /proc of its PID namespace.

    It is prepared here, so that it only makes system calls when called between fork and exec.
    """
    import ctypes

    library = libc()
    if library is None:
        raise OSError("there are no namespaces on this system")
    unshare, mount = library.unshare, library.mount
    root, proc = ctypes.c_char_p(b"/"), ctypes.c_char_p(b"/proc")
    kind, none = ctypes.c_char_p(b"proc"), ctypes.c_char_p(None)
    private, safe = ctypes.c_ulong(_MS_PRIVATE_ALL), ctypes.c_ulong(_MS_NOSUID_NODEV_NOEXEC)

    def call() -> None:
        if (
            # Private before /proc is mounted: a mount that is shared would replace the host's.
            unshare(_NEWNS) != 0
            or mount(none, root, none, private, none) != 0
            or mount(kind, proc, kind, safe, none) != 0
        ):
            code = ctypes.get_errno()
            raise OSError(code, f"a /proc of its own: {os.strerror(code)}")

    return call


# -- the processes of this host, read from /proc ---------------------------------------------------

# Zombies do not count unless a docstring says so: they hold nothing and do nothing.


def send(pids: Iterable[int], signum: int) -> None:
    """Send a signal to the processes that still exist and that this user may signal."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - read for every process
        return file.read()


def _living() -> Iterator[tuple[int, int]]:
    """Yield (pid, parent's pid) of each process; none if the system does not list them."""
    pids: list[int] = []
    with suppress(OSError):
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208
    for pid in pids:
        with suppress(OSError, ValueError):
            # The name may contain blanks and brackets; the text after its last bracket is regular.
            state, parent = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                yield pid, int(parent)


def descendants(ancestor: int, but: Iterable[int] = ()) -> list[int]:
    """The living descendants of `ancestor`, without `but` and their descendants."""
    below: dict[int, list[int]] = {}
    for pid, parent in _living():
        below.setdefault(parent, []).append(pid)
    found: list[int] = []
    spared, open_ = set(but), [ancestor]
    while open_:
        new = [pid for pid in below.get(open_.pop(), ()) if pid not in spared]
        found += new
        open_ += new
    return found


def children(parent: int = 0) -> list[int] | None:
    """The direct children of a main thread (0: ours), including zombies; None if not listed.

    Orphans become children of the main thread of their new parent. The list may miss a child while
    others end, but it is never empty while there are children (proc(5)).
    """
    pid = parent or os.getpid()
    try:
        return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:
        return None


def below(ancestor: int) -> list[int]:
    """Descendants, including zombies, without reading every process. OSError if not listed."""
    found: list[int] = []
    open_ = [ancestor]
    while open_:
        new = _children_of_all_threads(open_.pop())
        found += new
        open_ += new
    return found


def _children_of_all_threads(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:
        # A process that has ended has no children. Otherwise this system does not list them.
        if os.path.exists(f"/proc/{pid}/stat"):  # noqa: PTH110
            raise
    return found


def namespace_members(inode: int) -> list[int]:
    """The living processes whose PID namespace has this inode number."""
    found: list[int] = []
    for pid, _ in _living():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/pid").st_ino == inode:  # noqa: PTH116
                found.append(pid)
    return found


def marked(mark: bytes) -> list[int]:
    """The living processes, without ours, that were started with `mark` in the environment."""
    found: list[int] = []
    for pid, _ in _living():
        with suppress(OSError):
            if pid != os.getpid() and mark in _read(f"/proc/{pid}/environ").split(b"\0"):
                found.append(pid)
    return found
