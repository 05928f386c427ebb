"""Job control: signals to the supervisor, and the foreground of the terminal.

A signal ends the wait for the lease, or is passed on to CMD while CMD runs. The handlers only note
it; `signal.set_wakeup_fd` makes the poll return, whichever thread the kernel picked.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, Self

FORWARDED: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_OF_THE_TERMINAL: Final = (signal.SIGTSTP, signal.SIGCONT)
_STDIN: Final = 0

_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Interrupted(BaseException):
    """A signal ended the wait for the lease. Not an Exception: nothing may go on after it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Signals:
    """This process's signal handlers, as long as the context lasts. Only in the main thread.

    A signal that was ignored before stays ignored, for CMD too: that is how nohup(1) works.
    """

    def __init__(self) -> None:
        self._pending: deque[int] = deque()
        self._before: dict[int, _Handler] = {}
        self._raising = False

    def __enter__(self) -> Self:
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)
        # Before the handlers: a signal that is noted has to end the poll. A full pipe ends it as
        # well.
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for signum in FORWARDED:
            self._handle(signum)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        # First: `wake` of another thread must not write to a number that is used again.
        write_fd, self._write_fd = self._write_fd, -1
        os.close(self.fd)
        os.close(write_fd)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """A context in which the first signal raises Interrupted; later signals are only noted."""
        self._raising = True
        try:
            self._raise_if_any()
            yield
        finally:
            self._raising = False

    def watch_the_job(self) -> None:
        """From now on also note the end or stop of CMD, and our own ^Z and `fg`."""
        if signal.SIGCHLD in self._before:
            return
        for signum in _OF_THE_TERMINAL:
            self._handle(signum)
        # Set even if SIGCHLD was ignored before: the kernel would keep no exit code then.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._note)

    def take(self) -> list[int]:
        """The signals since the last call, oldest first."""
        # Emptied first: a signal that comes in between makes the next poll return at once.
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)
        # As many as there are now: handlers may append while this runs.
        return [self._pending.popleft() for _ in range(len(self._pending))]

    def wake(self) -> None:
        """Make the poll return; from any thread."""
        if self._write_fd >= 0:
            with suppress(OSError):
                os.write(self._write_fd, b"\0")

    def _handle(self, signum: int) -> None:
        if signal.getsignal(signum) != signal.SIG_IGN:
            self._before[signum] = signal.signal(signum, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._pending.append(signum)
        self._raise_if_any()

    def _raise_if_any(self) -> None:
        if self._raising and self._pending:
            self._raising = False
            raise Interrupted(self._pending.popleft())


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, which it loses by a hang-up.

    The kernel takes the terminal away before it sends SIGHUP: tty_ioctl(4), TIOCNOTTY.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Terminal:
    """The terminal on standard input; our process group is in its foreground."""

    def __init__(self) -> None:
        self._ours = os.getpgrp()

    def give(self, group: int) -> None:
        """Put `group` in the foreground: it can read, and gets ^C and ^Z."""
        # tcsetpgrp(3) from the background stops the caller, unless it blocks SIGTTOU.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        try:
            with suppress(OSError):
                os.tcsetpgrp(_STDIN, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def take_back(self) -> None:
        """Put our group in the foreground again."""
        self.give(self._ours)


def find_terminal() -> Terminal | None:
    """The terminal, if we are in its foreground; None in the background or for redirected input."""
    try:
        return Terminal() if os.tcgetpgrp(_STDIN) == os.getpgrp() else None
    except OSError:
        return None
