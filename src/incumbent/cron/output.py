"""What a command writes: passed on line by line, and its end kept for the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable

_AT_ONCE = 65_536
_LONGEST_LINE = 2048


class Output:
    """Reads the command's standard output and error, served by its supervision.

    `most`: bytes that are kept. `on_line` hears every line; it must neither block nor raise.
    """

    def __init__(self, most: int = 0, on_line: Callable[[str], None] = lambda _: None) -> None:
        self.fd, self._writing = os.pipe()
        os.set_blocking(self.fd, False)
        self._most = most
        self._on_line = on_line
        self._tail = b""
        self._line = b""

    def serve(self, most: int, on_line: Callable[[str], None]) -> None:
        """From now on for this run: see the class."""
        self._most, self._on_line = most, on_line

    def become_stdout(self) -> None:
        """From now on what this process and its children write comes here."""
        for fd in (1, 2):
            os.dup2(self._writing, fd)
        os.close(self._writing)
        self._writing = -1

    def ready(self) -> None:
        """Take what came, one portion: a command that floods must not keep others waiting."""
        self._take()

    def _take(self) -> bool:
        try:
            data = os.read(self.fd, _AT_ONCE)
        except BlockingIOError:
            return False
        if self._most:
            self._tail = (self._tail + data)[-self._most :]
        self._pass_on(data)
        return True

    def drain(self) -> None:
        """Take all that is there, within reason, once the command has ended."""
        for _ in range(16):
            if not self._take():
                break
        if self._line:
            self._pass_on(b"\n")

    def close(self) -> None:
        """Nobody writes any more; nothing is read."""
        for fd in (self.fd, self._writing):
            if fd >= 0:
                os.close(fd)

    def tail(self) -> str:
        """The end of what was written; what is no UTF-8 is replaced."""
        return self._tail.decode("utf-8", "replace").strip("\n\ufffd")

    def clear(self) -> None:
        """Another attempt begins."""
        self._tail = b""

    def _pass_on(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        while len(self._line) > _LONGEST_LINE:
            lines.append(self._line[:_LONGEST_LINE])
            self._line = self._line[_LONGEST_LINE:]
        for line in lines:
            self._on_line(line[:_LONGEST_LINE].decode("utf-8", "replace"))
