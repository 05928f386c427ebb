"""A thread's sleep until an instant of `clock.now`, which another thread can end.

Linux: timerfd_create(2) on CLOCK_BOOTTIME, so that the end of a suspend is noticed at once; other
systems sleep on a condition.
"""

from __future__ import annotations

import os
import queue
import select
import threading
from contextlib import suppress
from math import inf
from typing import Protocol

from incumbent import clock
from incumbent.unpatched import original

_CLOCK_BOOTTIME = 7
_ABSOLUTE = 1
_FAR = 1e9
"""Seconds since boot that no machine reaches, and that a timer can be set to."""
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class Alarm(Protocol):
    """See the module."""

    def wait_until(self, instant: float) -> None:
        """Sleep until `instant` (inf: for ever) or until `wake`."""
        ...

    def wake(self) -> None:
        """End the present wait, or else the next one at once; safe in signal handlers and
        finalizers.
        """
        ...


class _QueueAlarm:
    """On a queue whose `put` may interrupt any other use of it; that of an Event may not."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = original("queue", "SimpleQueue")()

    def wait_until(self, instant: float) -> None:
        left = instant - clock.now()
        with suppress(queue.Empty):
            self._rings.get(timeout=None if left > threading.TIMEOUT_MAX else max(0.0, left))
            while True:
                self._rings.get_nowait()

    def wake(self) -> None:
        self._rings.put(None)


class _BoottimeAlarm:
    """Gives the interpreter away once a wait: beside threads that burn CPU each return costs some
    milliseconds a thread. So what cannot block is called without (PyDLL), and the timer, which
    setting it anew makes unreadable, is never read. Its descriptors are closed once nobody has it,
    so that no number is written to that is another file's by then.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._ours: list[int] = []
        import ctypes

        class Itimerspec(ctypes.Structure):
            _fields_ = tuple(
                (field, ctypes.c_long) for field in ("every_s", "every_ns", "first_s", "first_ns")
            )

        self._spec = Itimerspec
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._byref, self._errno = ctypes.byref, ctypes.get_errno
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ours.append(self._wake_fd)
        self._timer_fd = self._libc.timerfd_create(_CLOCK_BOOTTIME, _NONBLOCK_CLOEXEC)
        if self._timer_fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._ours.append(self._timer_fd)
        self._poll = original("select", "poll")()
        for fd in self._ours:
            self._poll.register(fd, select.POLLIN)

    def wait_until(self, instant: float) -> None:
        try:
            self._set(instant)
            for fd, _ in self._poll.poll():
                if fd == self._wake_fd:
                    os.read(fd, 8)
        except OSError:
            self._disown()
            raise

    def _set(self, instant: float) -> None:
        # All zero would disarm the timer, which is what "for ever" wants; the past must still fire.
        ns = 0 if instant == inf else int(min(max(instant, 0.0), _FAR) * 1e9) + 1
        spec = self._spec(0, 0, *divmod(ns, 1_000_000_000))
        if self._libc.timerfd_settime(self._timer_fd, _ABSOLUTE, self._byref(spec), None):
            raise OSError(self._errno(), "timerfd_settime failed")

    def wake(self) -> None:
        try:
            os.eventfd_write(self._wake_fd, 1)
        except OSError:
            self._disown()
            raise

    def _disown(self) -> None:
        """Others closed them: the numbers may be theirs by now."""
        self._ours = []

    def __del__(self) -> None:
        # In the child of a fork the numbers may be others' too: a daemon closes all that are open.
        if self._process == os.getpid():
            for fd in self._ours:
                with suppress(OSError):
                    os.close(fd)


def make_alarm() -> Alarm:
    """The best alarm of this system."""
    try:
        return _BoottimeAlarm()
    except (ImportError, OSError, AttributeError):
        # No timerfd or eventfd here: deadlines still hold, only suspends are noticed later.
        return _QueueAlarm()
