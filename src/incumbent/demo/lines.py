"""A server of lines on a unix socket, which ends with its standard input."""

from __future__ import annotations

import selectors
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

__all__ = ["LineServer"]

Said: TypeAlias = "Callable[[int, str], str]"
Ended: TypeAlias = "Callable[[int], None]"

_AT_ONCE: Final = 65536


class LineServer:
    """`said(number, line)` is called for each line of a connection and returns the answer;

    `ended(number)` once nobody has the other end of that connection any more.
    """

    def __init__(self, path: str, said: Said, ended: Ended) -> None:
        self._said, self._ended = said, ended
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._open: dict[int, socket.socket] = {}
        self._begun: dict[int, bytes] = {}
        self._count = 0

    def serve(self) -> None:
        """Until standard input ends: nobody sends anything through it."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)

    def catch_up(self) -> None:
        """Handle what has arrived on every connection until now, and every end."""
        for number in list(self._open):
            self._read(number)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        self._count += 1
        self._open[self._count] = connection
        self._selector.register(connection, selectors.EVENT_READ, self._count)

    def _read(self, number: int) -> None:
        while number in self._open:
            try:
                data = self._open[number].recv(_AT_ONCE)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._close(number)
                return
            *whole, rest = (self._begun.pop(number, b"") + data).split(b"\n")
            self._begun[number] = rest
            for line in whole:
                self._answer(number, self._said(number, line.decode()))

    def _answer(self, number: int, answer: str) -> None:
        if answer and number in self._open:
            with suppress(OSError):
                self._open[number].sendall(answer.encode() + b"\n")

    def _close(self, number: int) -> None:
        connection = self._open.pop(number)
        self._selector.unregister(connection)
        connection.close()
        self._ended(number)
