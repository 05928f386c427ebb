"""A thread's sleep until an instant of `clock.now`, which another thread can end.

Linux: timerfd_create(2) on CLOCK_BOOTTIME, so that the end of a suspend is noticed at once; other
systems sleep on a condition.
"""

from __future__ import annotations

import os
import select
import threading
from math import inf
from typing import Protocol

from incumbent import clock
from incumbent.unpatched import original

__all__ = ["Alarm", "make_alarm"]

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
        """End the present wait, or else the next one at once; safe in signal handlers."""
        ...

    def close(self) -> None:
        """Let go of descriptors."""
        ...


class _ConditionAlarm:
    def __init__(self) -> None:
        self._event = threading.Event()

    def wait_until(self, instant: float) -> None:
        left = instant - clock.now()
        self._event.wait(None if left > threading.TIMEOUT_MAX else max(0.0, left))
        self._event.clear()

    def wake(self) -> None:
        self._event.set()

    def close(self) -> None:
        """There is nothing to close."""


class _BoottimeAlarm:
    """Gives the interpreter away once a wait: beside threads that burn CPU each return costs some
    milliseconds a thread. So what cannot block is called without (PyDLL), and the timer, which
    setting it anew makes unreadable, is never read.
    """

    def __init__(self) -> None:
        import ctypes

        class Itimerspec(ctypes.Structure):
            _fields_ = tuple(
                (field, ctypes.c_long) for field in ("every_s", "every_ns", "first_s", "first_ns")
            )

        self._spec = Itimerspec
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._byref, self._errno = ctypes.byref, ctypes.get_errno
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timer_fd = self._libc.timerfd_create(_CLOCK_BOOTTIME, _NONBLOCK_CLOEXEC)
        if self._timer_fd < 0:
            os.close(self._wake_fd)
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._poll = original("select", "poll")()
        for fd in (self._wake_fd, self._timer_fd):
            self._poll.register(fd, select.POLLIN)

    def wait_until(self, instant: float) -> None:
        self._set(instant)
        for fd, _ in self._poll.poll():
            if fd == self._wake_fd:
                os.read(fd, 8)

    def _set(self, instant: float) -> None:
        # All zero would disarm the timer, which is what "for ever" wants; the past must still fire.
        ns = 0 if instant == inf else int(min(max(instant, 0.0), _FAR) * 1e9) + 1
        spec = self._spec(0, 0, *divmod(ns, 1_000_000_000))
        if self._libc.timerfd_settime(self._timer_fd, _ABSOLUTE, self._byref(spec), None):
            raise OSError(self._errno(), "timerfd_settime failed")

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        os.close(self._wake_fd)
        os.close(self._timer_fd)


def make_alarm() -> Alarm:
    """The best alarm of this system."""
    try:
        return _BoottimeAlarm()
    except (ImportError, OSError, AttributeError):
        # No timerfd or eventfd here: deadlines still hold, only suspends are noticed later.
        return _ConditionAlarm()
