"""One blocking connection: a socket driven directly.

Between the caller and the socket stand one packed request and hiredis.
"""

from __future__ import annotations

import os
import socket
from struct import Struct
from typing import Any, Final, TypeVar

import hiredis

from incumbent import clock
from incumbent.net.dial import close_with, is_ready, wait_ready
from incumbent.stores.redis.errors import Broken
from incumbent.stores.redis.incarnation import Acquaintance
from incumbent.stores.redis.resp import Program, as_eval
from incumbent.unpatched import original

__all__ = ["STALE_AFTER", "Wire"]

T = TypeVar("T")

STALE_AFTER: Final = 0.1
"""A connection unused for longer is looked at before it is trusted: one system call."""
_CHUNK: Final = 16_384
_GLANCE: Final = 0.01
"""Seconds that a plain system call waits. What takes longer is waited for with poll, whose timeout
goes on counting while signals interrupt it; the kernel's own would begin again each time."""
_TIMEVAL: Final = Struct("@ll").pack(0, int(_GLANCE * 1_000_000))
_CLOSED: Final = "the server closed the connection"
_NOT_YET: Final = (BlockingIOError, TimeoutError)

_now = clock.now


class Wire(Acquaintance):
    """See exchange.AnyWire. `next` blocks where others suspend; `ask` and `read` are no coroutines.

    The kernel's timeouts (SO_RCVTIMEO), set once, spare the poll that Python's would cost each
    time. TLS, and sockets that are not the standard library's (gevent), keep Python's.
    """

    __slots__ = (
        "__weakref__",
        "_feed",
        "_gets",
        "_recv",
        "_send",
        "_sock",
        "used",
    )

    closed = False
    """It is not told when a server closes it: see `is_stale`."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        reader = hiredis.Reader()
        self._sock = sock
        close_with(self, sock.close)
        self._send, self._recv = sock.send, sock.recv
        self._feed, self._gets = reader.feed, reader.gets
        if _is_plain(sock):
            sock.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL)
        else:
            sock.settimeout(_GLANCE)
        self.used = _now()

    def __del__(self) -> None:
        self._sock.close()

    def close(self) -> None:
        """Give the descriptor back. Writes nothing, so that a fork's child may do it too."""
        self._sock.close()

    detach = close

    def is_stale(self, *, trust: bool) -> bool:
        """Whether the server closed it, or sent something that nobody asked for."""
        if trust and _now() - self.used < STALE_AFTER:
            return False
        return is_ready(self._sock, writing=False)

    def ask(self, request: bytes, until: float) -> Any:
        """One request, one answer. Raises Broken."""
        # `send` and `read` written out: each call saved here is half a percent of an exchange.
        if until <= self.used:
            raise Broken("no time is left", sent=False, late=True)
        try:
            sent = self._send(request)
        except OSError as error:
            sent = _none_sent(error)
        if sent != len(request):
            self._send_rest(request, sent, until)
        try:
            data = self._recv(_CHUNK)
        except OSError as error:
            data = self._recv_later(error, until)
        if not data:
            raise Broken(_CLOSED, sent=True)
        self._feed(data)
        answer = self._gets()
        if answer is False:
            answer = self.read(until)
        if type(answer) is hiredis.ReplyError and str(answer).startswith("NOSCRIPT"):
            return self.ask(as_eval(request), until)
        return answer

    def send(self, request: bytes, until: float) -> None:
        """A request whose answer is read by `next`. Raises Broken."""
        if until <= self.used:
            raise Broken("no time is left", sent=False, late=True)
        try:
            sent = self._send(request)
        except OSError as error:
            sent = _none_sent(error)
        if sent != len(request):
            self._send_rest(request, sent, until)

    def carry_out(self, program: Program[T], until: float) -> T:
        """As exchange.carry_out, without a coroutine."""
        replies: Any = None
        try:
            while True:
                step = program.send(replies)
                try:
                    if step.answers == 1:
                        replies = [self.ask(step.payload, until)]
                    else:
                        self.send(step.payload, until)
                        replies = [self.read(until) for _ in range(step.answers)]
                except Broken as error:
                    error.sent = error.sent or replies is not None
                    raise
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Requests that leave together, and their answers. Raises Broken."""
        self.send(payload, until)
        return [self.read(until) for _ in range(answers)]

    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""
        return self.read(until)

    def read(self, until: float) -> Any:
        """The same at once."""
        # hiredis says False where an answer is not complete; no answer in RESP 2 is a bool.
        while (answer := self._gets()) is False:
            try:
                data = self._recv(_CHUNK)
            except OSError as error:
                data = self._recv_later(error, until)
            if not data:
                raise Broken(_CLOSED, sent=True)
            self._feed(data)
        return answer

    def fileno(self) -> int:
        """The descriptor, to be waited for."""
        return self._sock.fileno()

    def buffered(self) -> Any:
        """A message that has been read already, or False."""
        return self._gets()

    def fill(self) -> None:
        """Read what there is, without waiting for a whole message. Raises Broken."""
        try:
            data = self._recv(_CHUNK)
        except _NOT_YET:
            return
        except OSError as error:
            raise Broken(str(error), sent=True) from error
        if not data:
            raise Broken(_CLOSED, sent=True)
        self._feed(data)

    def _send_rest(self, request: bytes, sent: int, until: float) -> None:
        while sent < len(request):
            if not wait_ready(self._sock, until, writing=True):
                raise Broken("it takes nothing more", sent=sent > 0, late=True)
            try:
                sent += self._send(request[sent:])
            except _NOT_YET:
                pass
            except OSError as error:
                raise Broken(str(error), sent=sent > 0) from error

    def _recv_later(self, error: OSError, until: float) -> bytes:
        """Go on after a glance that brought nothing."""
        while isinstance(error, _NOT_YET):
            if not wait_ready(self._sock, until, writing=False):
                raise Broken("no answer in time", sent=True, late=True) from error
            try:
                return self._recv(_CHUNK)
            except OSError as again:
                error = again
        raise Broken(str(error), sent=True) from error


def _is_plain(sock: socket.socket) -> bool:
    # Windows has these options too, and counts them in another unit.
    return type(sock) is original("socket", "socket") and os.name == "posix"


def _none_sent(error: OSError) -> int:
    if isinstance(error, _NOT_YET):
        return 0
    raise Broken(str(error), sent=False) from error
