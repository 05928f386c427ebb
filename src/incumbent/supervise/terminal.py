"""Whose terminal it is: CMD's group while it runs, ours when it is stopped or gone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

__all__ = ["Terminal", "find_terminal"]

_STDIN = 0


class Terminal:
    """The terminal on standard input, of which our process group is the foreground."""

    def __init__(self) -> None:
        self._ours = os.getpgrp()

    def give(self, group: int) -> None:
        """Make `group` the foreground: it reads, and ^C and ^Z go to it."""
        # tcsetpgrp(3) from the background stops the caller, unless it blocks SIGTTOU.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        try:
            with suppress(OSError):
                os.tcsetpgrp(_STDIN, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def take_back(self) -> None:
        """Make our group the foreground again."""
        self.give(self._ours)


def find_terminal() -> Terminal | None:
    """The terminal that is ours to give: none for background jobs and redirected input."""
    try:
        return Terminal() if os.tcgetpgrp(_STDIN) == os.getpgrp() else None
    except OSError:
        return None
