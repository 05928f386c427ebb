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
    from pathlib import Path

__all__ = ["Waiter", "die_with_parent", "group_members", "pidfds"]

_PR_SET_PDEATHSIG = 1
_CLOCK_BOOTTIME = 7
_ABSOLUTE = 1
_NANO = 1_000_000_000
_POLL_LONGEST = 86_400.0


@cache
def _libc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> Callable[[], object] | None:
    """What the child calls after the fork, prepared before it: nothing is looked up in between.

    prctl(2), PR_SET_PDEATHSIG: KILL when the *thread* that forked ends. It is the child's own; the
    rest of its group is the guard's business.
    """
    libc = _libc()
    if libc is None:
        return None
    prctl, parent = libc.prctl, os.getpid()

    def call() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)

    return call


class Waiter:
    """Waits for descriptors until an instant of `clock.now`; a suspend does not make it late."""

    def __init__(self) -> None:
        libc = _libc()
        flags = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
        self._timer_fd = -1 if libc is None else libc.timerfd_create(_CLOCK_BOOTTIME, flags)

    def wait(self, fds: Iterable[int], until: float) -> None:
        """Return when one of `fds` is readable, or at `until` (inf: never)."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        if self._timer_fd >= 0:
            self._arm(until)
            poll.register(self._timer_fd, select.POLLIN)
            poll.poll()
        else:
            poll.poll(min(_POLL_LONGEST, max(0.0, until - clock.now())) * 1000)

    def _arm(self, until: float) -> None:
        import ctypes

        # All zero disarms, which is what "never" wants; an instant in the past still fires.
        ns = 0 if until == float("inf") else max(1, int(until * _NANO) + 1)
        spec = (ctypes.c_long * 4)(0, 0, *divmod(ns, _NANO))
        libc = _libc()
        if libc is not None:
            libc.timerfd_settime(self._timer_fd, _ABSOLUTE, ctypes.byref(spec), None)

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer_fd >= 0:
            os.close(self._timer_fd)
            self._timer_fd = -1


def group_members(group: int) -> list[int] | None:
    """The living processes of a process group; None where the system does not list them."""
    # Not at the top: only a command that leaves something behind needs it.
    from pathlib import Path

    stats = list(Path("/proc").glob("[0-9]*/stat"))
    return [int(stat.parent.name) for stat in stats if _lives_in(stat, group)] if stats else None


def _lives_in(stat: Path, group: int) -> bool:
    try:
        # The name may hold blanks and brackets; what follows its last bracket is regular.
        state, _parent, pgrp = stat.read_bytes().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(pgrp) == group and state not in (b"Z", b"X")


def pidfds(pids: Iterable[int]) -> list[int]:
    """Descriptors that become readable when a process ends; who is gone already has none."""
    found: list[int] = []
    for pid in pids:
        with suppress(OSError, AttributeError):
            found.append(os.pidfd_open(pid))
    return found
