"""What Linux offers beyond Python 3.11: timers on CLOCK_BOOTTIME, parent-death signals, pidfds.

Where the system has none of it (macOS) each function says so, and its caller does with less.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from incumbent import clock

if TYPE_CHECKING:
    import ctypes

__all__ = ["Waiter", "die_with_parent", "libc", "pidfds", "readable", "writable"]

_PR_SET_PDEATHSIG = 1
_CLOCK_BOOTTIME = 7
_ABSOLUTE = 1
_NANO = 1_000_000_000
_POLL_LONGEST = 86_400.0


@cache
def libc() -> ctypes.CDLL | None:
    """The C library, on Linux."""
    if sys.platform != "linux":
        return None
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> Callable[[], object] | None:
    """What the child calls after the fork, prepared before it: nothing is looked up in between.

    prctl(2), PR_SET_PDEATHSIG: KILL when the *thread* that forked ends. It is the child's own; the
    rest of its tree is the guard's business.
    """
    library = libc()
    if library is None:
        return None
    prctl, parent = library.prctl, os.getpid()

    def call() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # In a PID namespace of its own the parent is outside, and that is called 0.
        if os.getppid() not in (parent, 0):
            os._exit(128 + signal.SIGKILL)

    return call


class Waiter:
    """Waits for descriptors until an instant of `clock.now`; a suspend does not make it late."""

    def __init__(self) -> None:
        library = libc()
        flags = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
        self._timer_fd = -1 if library is None else library.timerfd_create(_CLOCK_BOOTTIME, flags)

    def wait(self, fds: Iterable[int], until: float) -> set[int]:
        """Return when one of `fds` is readable, with all that are, or at `until` (inf: never)."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        if self._timer_fd >= 0:
            self._arm(until)
            poll.register(self._timer_fd, select.POLLIN)
            return {fd for fd, _ in poll.poll()} - {self._timer_fd}
        timeout = min(_POLL_LONGEST, max(0.0, until - clock.now())) * 1000
        return {fd for fd, _ in poll.poll(timeout)}

    def _arm(self, until: float) -> None:
        import ctypes

        # All zero disarms, which is what "never" wants; an instant in the past still fires.
        ns = 0 if until == float("inf") else max(1, int(until * _NANO) + 1)
        spec = (ctypes.c_long * 4)(0, 0, *divmod(ns, _NANO))
        library = libc()
        if library is not None:
            library.timerfd_settime(self._timer_fd, _ABSOLUTE, ctypes.byref(spec), None)

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer_fd >= 0:
            os.close(self._timer_fd)
            self._timer_fd = -1


def pidfds(pids: Iterable[int]) -> list[int]:
    """Descriptors that become readable when a process ends; who is gone already has none."""
    found: list[int] = []
    for pid in pids:
        with suppress(OSError, AttributeError):
            found.append(os.pidfd_open(pid))
    return found


def readable(fd: int, within: float = 0.0) -> bool:
    """Whether `fd` becomes readable (a pidfd: its process ended) `within` seconds."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(within * 1000))


def writable(fd: int, within: float) -> bool:
    """Whether `fd` takes something `within` seconds, or says at once that it never will."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(within * 1000))
