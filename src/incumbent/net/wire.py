"""A blocking connection: a socket that is written and read within a deadline."""

from __future__ import annotations

import os
import socket
from struct import Struct
from typing import Final

from incumbent import clock
from incumbent.net.dial import close_with, is_ready, wait_ready
from incumbent.net.pool import Broken, Ended
from incumbent.unpatched import original

STALE_AFTER: Final = 0.1
"""A connection unused for longer is looked at before it is trusted: one system call."""
_CHUNK: Final = 16_384
_GLANCE: Final = 0.01
"""Seconds that a plain system call waits. What takes longer is waited for with poll, whose timeout
goes on counting while signals interrupt it; the kernel's own would begin again each time."""
_TIMEVAL: Final = Struct("@ll").pack(0, int(_GLANCE * 1_000_000))
_WANTS: Final = {"SSLWantReadError": False, "SSLWantWriteError": True}
"""Errors of TLS by name (importing ssl takes 10 ms): whether it has to write first."""

_now = clock.now


class BlockingWire:
    """See net.pool.Connection. `used`: when the present (or last) exchange began.

    The kernel's timeouts (SO_RCVTIMEO), set once, spare the poll that each look would cost. With
    TLS, and where they are not the standard library's, sockets do not block: gevent's would wait in
    the hub of one thread, and the keeper's thread uses them too.
    """

    closed = False
    """It is not told when a server closes it: see `is_stale`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        close_with(self, sock.close)
        self._send, self._recv = sock.send, sock.recv
        # Windows has these options too, and counts them in another unit.
        if type(sock) is original("socket", "socket") and os.name == "posix":
            sock.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL)
        else:
            sock.settimeout(0)
        self.used = _now()

    def __del__(self) -> None:
        self._sock.close()

    def close(self) -> None:
        """Give the descriptor back. Writes nothing, so that a fork's child may do it too."""
        self._sock.close()

    def hang_up(self) -> None:
        """Wake the thread that waits for it, which closes it. Writes nothing, also with TLS."""
        # Closed here, its number could lead to another connection before that thread reads.
        try:
            # Of a socket, and not of TLS: that would say good-bye.
            original("socket", "socket").shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            pass
        except TypeError:
            # gevent's TLS sockets are no sockets of the system; closing has to do.
            self._sock.close()

    def detach(self) -> None:
        """See net.pool.Connection."""
        self._sock.close()

    def is_stale(self, *, trust: bool) -> bool:
        """Whether the server closed it, or sent something that nobody asked for."""
        if trust and _now() - self.used < STALE_AFTER:
            return False
        return is_ready(self._sock, writing=False)

    def fileno(self) -> int:
        """The descriptor, to be waited for."""
        return self._sock.fileno()

    def send(self, request: bytes, until: float) -> None:
        """All of a request. Raises Broken."""
        if until <= self.used:
            raise Broken("no time is left", sent=False, late=True)
        try:
            sent = self._send(request)
        except (OSError, ValueError) as error:
            self._outlast(error, until, sent=False, writing=True)
            sent = 0
        if sent != len(request):
            self._send_rest(request, sent, until)

    def _send_rest(self, request: bytes, sent: int, until: float) -> None:
        while sent < len(request):
            # One that takes a little each time must not keep us for longer.
            if _now() >= until:
                raise Broken("it takes nothing more", sent=sent > 0, late=True)
            try:
                sent += self._send(request[sent:])
            except (OSError, ValueError) as error:
                self._outlast(error, until, sent=sent > 0, writing=True)

    def _outlast(self, error: Exception, until: float, *, sent: bool, writing: bool) -> None:
        """Wait until what `error` interrupted can go on. Raises Broken."""
        # ValueError: another thread closed one with TLS.
        late = "it takes nothing more" if writing else "no answer in time"
        if type(error).__name__ in _WANTS:
            writing = _WANTS[type(error).__name__]
        elif not isinstance(error, BlockingIOError):
            raise Broken(str(error), sent=sent) from error
        if not wait_ready(self._sock, until, writing=writing):
            raise Broken(late, sent=sent, late=True) from error

    def receive(self, until: float) -> bytes:
        """Some bytes. Raises Broken, also at the end of the connection."""
        while True:
            try:
                data = self._recv(_CHUNK)
            except (OSError, ValueError) as error:
                self._outlast(error, until, sent=True, writing=False)
            else:
                if data:
                    return data
                raise Ended

    async def more(self, until: float) -> bytes:
        """The same for what is written once for both sides: it blocks where others suspend."""
        return self.receive(until)

    def glance(self) -> bytes:
        """What is there, without waiting; perhaps nothing. Raises Broken."""
        try:
            return self.receive(_now())
        except Broken as error:
            if error.late:
                return b""
            raise
