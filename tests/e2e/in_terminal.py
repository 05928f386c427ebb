"""Becomes a command with a terminal of its own: in_terminal.py TTY COMMAND..."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # A session leader without one gets the first terminal that it opens.
    terminal = os.open(sys.argv[1], os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(terminal, fd)
    os.execv(sys.argv[2], sys.argv[2:])
