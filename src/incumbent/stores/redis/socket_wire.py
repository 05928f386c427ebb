"""One blocking connection: a socket driven directly.

Between the caller and the socket stand one packed request and hiredis; redis-py only makes the
connection.
"""

from __future__ import annotations

import select
import socket
from struct import Struct
from typing import Any, Final, TypeVar

import hiredis

from incumbent import clock
from incumbent.stores.redis.errors import Broken
from incumbent.stores.redis.wire import Program, as_eval

__all__ = ["LISTEN_SLICE", "Wire"]

T = TypeVar("T")

LISTEN_SLICE: Final = 60.0
"""Seconds that a listener sleeps in one system call."""

_CHUNK: Final = 16_384
_SLICE: Final = 0.25
"""Seconds that one system call may wait; then the clock is asked again."""
_SEND_SLICE: Final = 0.03
_TIMEVAL: Final = Struct("@ll")
_NO_TIME: Final = (BlockingIOError, TimeoutError)

_now = clock.now


class Wire:
    """One connection. `used`: when the present (or last) exchange began; `born`: see server.Facts.

    The kernel's own timeouts (SO_RCVTIMEO) spare the poll and ioctl that Python's would cost each
    time. TLS, and sockets that are not the standard library's (gevent), keep Python's.
    """

    __slots__ = (
        "__weakref__",
        "_feed",
        "_gets",
        "_limit",
        "_plain",
        "_recv",
        "_send",
        "_sock",
        "born",
        "epoch",
        "used",
    )

    def __init__(self, sock: socket.socket) -> None:
        reader = hiredis.Reader()
        self._sock = sock
        self._send, self._recv = sock.send, sock.recv
        self._feed, self._gets = reader.feed, reader.gets
        self._plain = type(sock) is socket.socket and type(sock).__module__ == "socket"
        if self._plain:
            sock.settimeout(None)
            self._set_timeout(socket.SO_SNDTIMEO, _SEND_SLICE)
        self._limit = 0.0
        self._set_limit(_SLICE)
        self.epoch = ""
        self.born = 0.0
        self.used = _now()

    def __del__(self) -> None:
        self._sock.close()

    def close(self) -> None:
        """Give the descriptor back. Writes nothing, so that a fork's child may do it too."""
        self._sock.close()

    def is_stale(self) -> bool:
        """Whether the server closed it, or sent something that nobody asked for."""
        if not self._plain:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            return bool(poll.poll(0))
        try:
            self._recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def ask(self, request: bytes, until: float) -> Any:
        """One request, one answer. Raises Broken."""
        self._begin(request, until)
        self._feed(self._receive(until))
        answer = self._gets()
        # hiredis says False where an answer is not complete; no answer in RESP 2 is a bool.
        while answer is False:
            self._feed(self._receive(until))
            answer = self._gets()
        if type(answer) is hiredis.ReplyError and str(answer).startswith("NOSCRIPT"):
            return self.ask(as_eval(request), until)
        return answer

    def run(self, program: Program[T], until: float) -> T:
        """Carry a program out."""
        answers = None
        try:
            while True:
                step = program.send(answers)  # type: ignore[arg-type]  # None begins
                answers = self._ask_all(step.payload, step.answers, until)
        except StopIteration as end:
            result: T = end.value
            return result

    def _ask_all(self, payload: bytes, count: int, until: float) -> list[Any]:
        if count == 1:
            return [self.ask(payload, until)]
        self._begin(payload, until)
        return [self.next(until) for _ in range(count)]

    def next(self, until: float, most: float = _SLICE) -> Any:
        """The next answer or message."""
        while (answer := self._gets()) is False:
            self._feed(self._receive(until, most))
        return answer

    def send(self, request: bytes, until: float) -> None:
        """A request whose answer is read later."""
        self._begin(request, until)

    def _begin(self, request: bytes, until: float) -> None:
        left = until - self.used
        if left < self._limit:
            if left <= 0:
                raise Broken("no time is left", sent=False, late=True)
            self._set_limit(left)
        try:
            sent = self._send(request)
        except _NO_TIME:
            sent = 0
        except OSError as error:
            raise Broken(str(error), sent=False) from error
        if sent != len(request):
            self._send_rest(request, sent, until)

    def _send_rest(self, request: bytes, sent: int, until: float) -> None:
        while sent < len(request):
            if _now() >= until:
                raise Broken("it takes nothing more", sent=sent > 0, late=True)
            try:
                sent += self._send(request[sent:])
            except _NO_TIME:
                pass
            except OSError as error:
                raise Broken(str(error), sent=sent > 0) from error

    def _receive(self, until: float, most: float = _SLICE) -> bytes:
        while True:
            try:
                data = self._recv(_CHUNK)
            except _NO_TIME as error:
                left = until - _now()
                if left <= 0:
                    raise Broken("no answer in time", sent=True, late=True) from error
                self._set_limit(min(left, most))
            except OSError as error:
                raise Broken(str(error), sent=True) from error
            else:
                if data:
                    return data
                raise Broken("the server closed the connection", sent=True)

    def _set_limit(self, seconds: float) -> None:
        self._limit = seconds = max(0.001, seconds)
        if self._plain:
            self._set_timeout(socket.SO_RCVTIMEO, seconds)
        else:
            self._sock.settimeout(seconds)

    def _set_timeout(self, option: int, seconds: float) -> None:
        whole = int(seconds)
        value = _TIMEVAL.pack(whole, int((seconds - whole) * 1_000_000))
        self._sock.setsockopt(socket.SOL_SOCKET, option, value)
