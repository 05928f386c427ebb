"""The threads of a process: alarm threads act at planned instants, one runs users' callbacks.

An alarm is a sleep until an instant of `clock.now`; another thread can end it. On Linux it is
timerfd_create(2) on CLOCK_BOOTTIME, so that the end of a suspend is noticed at once; other systems
sleep on a queue.

The life of an alarm thread:

    wake --> starts --> plan --> sleep until `planned`, or `wake` --> act --+
    ^                   ^                                                   |
    |                   +---------------------------------------------------+
    +-- ends, by an error or because nothing is planned (ends_when_idle)

A caller notes what is new, and calls `wake` if that is due before `planned`. The thread writes
`planned`, and reads what is new after that. So one of the two sees what the other wrote, and no
lock is needed: the caller may be a finalizer or a signal handler.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol

from incumbent import clock
from incumbent.interrupts import is_from_signal, raise_if_from_signal
from incumbent.unpatched import start_bare_thread, start_thread, unpatched

_log = logging.getLogger("incumbent")

# -- the alarm -------------------------------------------------------------------------------------

# Linux's numbers, of time.h and sys/timerfd.h: Python has timerfd only from 3.13 on.
_CLOCK_BOOTTIME = 7
_ABSOLUTE = 1
# Seconds since boot that no machine reaches, but to which a timer can be set.
_FAR = 1e9
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class Alarm(Protocol):
    """A sleep that another thread can end; see the module."""

    def wait_until(self, instant: float) -> None:
        """Sleep until `instant` (inf: for ever) or until `wake`."""
        ...

    def wake(self) -> None:
        """End the present wait, or the next one at once; safe in signal handlers and finalizers."""
        ...


class _QueueAlarm:
    """An alarm on a queue: its `put` may interrupt any other use of it, unlike an Event's `set`."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = unpatched("queue", "SimpleQueue")()

    def wait_until(self, instant: float) -> None:
        left = instant - clock.now()
        with suppress(queue.Empty):
            # One wait takes all wakes of before: the plan that follows sees what each of them was
            # about.
            self._rings.get(timeout=None if left > threading.TIMEOUT_MAX else max(0.0, left))
            while True:
                self._rings.get_nowait()

    def wake(self) -> None:
        self._rings.put(None)


class _BoottimeAlarm:
    """An alarm on timerfd that releases the interpreter lock only once a wait: beside threads that
    burn CPU, getting it back costs some milliseconds a thread. So calls that cannot block keep it
    (PyDLL), and the timer is never read: setting it anew makes it unreadable. The descriptors are
    closed only when the alarm is collected, so that `wake` never writes to a reused number.
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
        # At once: if the next step fails, `__del__` closes it.
        self._ours.append(self._wake_fd)
        self._timer_fd = self._libc.timerfd_create(_CLOCK_BOOTTIME, _NONBLOCK_CLOEXEC)
        if self._timer_fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._ours.append(self._timer_fd)
        self._poll = unpatched("select", "poll")()
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
        # All zero disarms the timer, as "for ever" needs; an instant in the past must still fire.
        ns = 0 if instant == inf else int(min(max(instant, 0.0), _FAR) * 1e9) + 1
        spec = self._spec(0, 0, *divmod(ns, 1_000_000_000))
        if self._libc.timerfd_settime(self._timer_fd, _ABSOLUTE, self._byref(spec), None):
            raise OSError(self._errno(), "timerfd_settime failed")

    def wake(self) -> None:
        try:
            os.eventfd_write(self._wake_fd, 1)
        except OSError as error:
            raise_if_from_signal(error)
            self._disown()
            raise

    def _disown(self) -> None:
        """Forget the descriptors: other code closed them, and may have reused their numbers."""
        self._ours = []

    def __del__(self) -> None:
        # In a fork's child the numbers may be reused too: a daemon closes all open descriptors.
        if hasattr(self, "_ours") and self._process == os.getpid():  # making it may have failed
            for fd in self._ours:
                with suppress(OSError):
                    os.close(fd)


def make_alarm() -> Alarm:
    """Make the best alarm of this system."""
    try:
        return _BoottimeAlarm()
    except (ImportError, OSError, AttributeError) as error:
        raise_if_from_signal(error)
        # No timerfd or eventfd here: deadlines still hold, but a suspend is noticed later.
        return _QueueAlarm()


# -- the thread ------------------------------------------------------------------------------------

# Seconds until a thread that failed is started again; they double each time until it acts.
_PAUSE = 0.02
_PAUSE_MOST = 1.0


class AlarmThread:
    """A thread that sleeps until the instant that `plan` returns, then calls `act`, and so on.

    The first `wake` starts it. `ends_when_idle`: it ends when nothing is planned, until the next
    `wake`.
    """

    def __init__(
        self,
        name: str,
        plan: Callable[[], float],
        act: Callable[[], None],
        *,
        ends_when_idle: bool = False,
    ) -> None:
        self.name = name
        self._plan = plan
        self._act = act
        self.ends_when_idle = ends_when_idle
        self._absent = {True}
        """Not empty while there is no thread. The caller that removes the entry starts one."""
        self._woken = False
        """Whether `wake` was called since the thread last began to plan."""
        self._failures = 0
        self.alarm: Alarm | None = None
        self.planned = inf
        """The end of the present sleep, written by `plan`; earlier plans have to `wake`."""

    def wake(self) -> None:
        """Make the thread plan anew; from any thread, and in signal handlers. Never raises."""
        if sys.is_finalizing():
            # There is no thread to wake any more: the ttl ends what is owed now.
            return
        self._woken = True
        # Kept in a variable: the alarm of a thread that ends is closed at the last reference.
        alarm = self.alarm
        if alarm is not None:
            self._end_sleep(alarm)
        else:
            self._start()

    # -- one life ----------------------------------------------------------------------------

    def _start(self) -> None:
        started = False
        try:
            self._absent.pop()
        except KeyError:
            return  # Another caller starts it; the new thread plans all that was noted before.
        except BaseException:
            # A signal handler's, perhaps after the entry was removed. Two threads can be started
            # now; the one that is not `alarm`'s ends.
            self._absent.add(True)
            raise
        try:
            alarm = self.alarm = make_alarm()
            start_bare_thread(lambda: self._loop(alarm))
            started = True
        except RuntimeError as error:
            raise_if_from_signal(error)
            if "shutdown" not in str(error):
                _log.error("%s: no thread can be started: %s", self.name, error)
        finally:
            if not started:
                # The next caller of `wake` tries again.
                self._note_absence()

    def _end_sleep(self, alarm: Alarm) -> None:
        try:
            alarm.wake()
        except OSError as error:
            raise_if_from_signal(error)
            # Other code closed its descriptors: the thread that sleeps on them is replaced.
            _log.exception("%s: its alarm was closed by others; it starts again", self.name)
            if self.alarm is alarm:
                self._note_absence()
            self._start()

    def _loop(self, alarm: Alarm) -> None:
        try:
            while self.alarm is alarm:
                # Reset before the plan, which may miss what a later `wake` is about.
                self._woken = False
                until = self._plan()
                if until == inf and self.ends_when_idle:
                    break
                alarm.wait_until(until)
                self._act()
                # Only after it acted: a plan that fails each time must not be tried without a
                # pause.
                self._failures = 0
        except BaseException:  # noqa: BLE001 - whatever it was, leases depend on us
            _log.exception("%s ended by an error; it starts again", self.name)
            unpatched("time", "sleep")(min(_PAUSE_MOST, _PAUSE * 2**self._failures))
            self._failures += 1
            self._woken = True
        finally:
            self._end(alarm)

    def _end(self, alarm: Alarm) -> None:
        # Another thread has replaced this one otherwise, and its state must stay.
        if self.alarm is alarm:
            self._note_absence()
            # A `wake` after the last plan started no thread: start one now.
            if self._woken:
                self.wake()

    def _note_absence(self) -> None:
        # `planned` too: whatever is noted next is due before it, and wakes. The entry comes last,
        # because from then on another caller may start a thread.
        self.alarm, self.planned = None, inf
        self._absent.add(True)


def call_guarded(callback: Callable[[], None]) -> BaseException | None:
    """Call `callback` and log any exception, so that the callbacks after it are called too.

    Returns the exception of a signal handler, which is not the callback's: the caller raises it.
    """
    try:
        callback()
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the thread is not the user's
        # The interpreter's own handler of Ctrl-C is no Python code: only its class tells.
        if is_from_signal(error) or (isinstance(error, KeyboardInterrupt) and in_main_thread()):
            return error
        _log.exception("a callback failed")
    return None


def in_main_thread() -> bool:
    """Whether signal handlers may run in this thread."""
    return threading.current_thread() is threading.main_thread()


# -- callbacks -------------------------------------------------------------------------------------

# Seconds after which a callback that delays the others is reported.
_BUDGET = 1.0


class Notifier:
    """One thread for the callbacks of a process; the first callback starts it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the waiting callbacks; after a fork there is no thread either."""
        self._calls: queue.SimpleQueue[Callable[[], None]] = unpatched("queue", "SimpleQueue")()
        self._unfinished: deque[None] = deque()
        """An entry for each callback that waits or runs."""
        self._idle = [True]
        """Not empty while there is no thread. The caller that removes the entry starts one; a
        signal handler could find a lock taken."""

    @property
    def running(self) -> bool:
        """Whether the thread exists."""
        return not self._idle

    @property
    def busy(self) -> bool:
        """Whether a callback waits or runs."""
        return bool(self._unfinished)

    def call(self, callback: Callable[[], None]) -> None:
        """Have `callback` run soon; its exceptions are logged. Never raises."""
        # Before it is queued: else the callback could end first, and `busy` would say no meanwhile.
        self._unfinished.append(None)
        self._calls.put(callback)
        if self._idle:
            self._start()

    def _start(self) -> None:
        idle = self._idle
        try:
            idle.pop()
        except IndexError:
            return  # another thread was faster
        except BaseException:
            idle.append(True)
            raise
        try:
            start_thread(self._run, "incumbent-notifier")
        except BaseException as error:
            # The next `call` starts one. A signal handler's exception may have come after the
            # start: then there are two, which share the queue.
            idle.append(True)
            if not isinstance(error, RuntimeError) or is_from_signal(error):
                raise
            _log.error("callbacks wait, for no thread can be started: %s", error)

    def _run(self) -> None:
        # Kept: after `reset` in a fork's child these names mean its own.
        calls, unfinished = self._calls, self._unfinished
        while True:
            # In a frame of its own, so that no callback's objects live on until the next callback.
            self._call(calls.get())
            unfinished.popleft()

    @staticmethod
    def _call(callback: Callable[[], None]) -> None:
        started = clock.now()
        call_guarded(callback)
        took = clock.now() - started
        if took > _BUDGET:
            _log.warning("a callback took %.1f s and delayed those after it", took)


notifier = Notifier()


# -- the end of the interpreter --------------------------------------------------------------------

SERVICES: Final = frozenset(
    {
        *("incumbent-keeper", "incumbent-deadlines", "incumbent-notifier"),
        *("incumbent-store", "incumbent-dial", "incumbent-survey", "incumbent-sqlite-checkpoint"),
        *("incumbent-batch", "incumbent-login", "incumbent-watch"),
        *("incumbent-http", "incumbent-page", "incumbent-page-act"),
        *("incumbent-report", "incumbent-systemd", "incumbent-notify"),
        *("incumbent-cron", "incumbent-jobs", "incumbent-output", "incumbent-tail"),
    }
)
"""The names of our daemon threads that run none of the program's code, callbacks left out."""


def program_may_run() -> bool:
    """Whether code of the program may run until the very end, perhaps in the body of a lease.

    In a daemon thread, also one of ours, such as a job's; in a callback; or in a child process,
    which multiprocessing waits for at the exit.
    """
    if notifier.busy:
        return True
    daemons = (thread for thread in threading.enumerate() if thread.daemon)
    if any(thread.name not in SERVICES for thread in daemons):
        return True
    processes: Any = sys.modules.get("multiprocessing")
    return processes is not None and bool(processes.active_children())
