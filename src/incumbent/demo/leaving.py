"""^C and TERM end the demo by an exception, which never comes while a process is being started.

Python drops what a signal handler raises inside a hook of fork, and `logging` has such a hook: it
would keep logging's lock, and the next fork would wait for it for ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Leaving"]


class Leaving:
    """How the demo is asked to leave. Signals reach the main thread alone."""

    def __init__(self) -> None:
        self._starting = False
        self._asked: int | None = None

    def listen(self) -> None:
        """From the main thread: raise KeyboardInterrupt at INT, and SystemExit at TERM."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            # Shells start what runs in the background with INT ignored.
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._note)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Whoever is asked to leave meanwhile leaves at the end of this."""
        main = threading.current_thread() is threading.main_thread()
        if not main:
            yield
            return
        self._starting = True
        try:
            yield
        finally:
            self._starting = False
            self._leave()

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._asked = signum
        if not self._starting:
            self._leave()

    def _leave(self) -> None:
        signum, self._asked = self._asked, None
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        if signum is not None:
            raise SystemExit(128 + signum)
