"""A blocking connection: a socket that is written and read within a deadline."""

from __future__ import annotations

import os
import socket
from struct import Struct
from typing import Final

from incumbent import clock
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.dial import close_with, is_ready, wait_ready
from incumbent.net.pool import Broken, Ended
from incumbent.unpatched import unpatched

STALE_AFTER: Final = 0.1
"""A connection unused for more seconds is checked before it is trusted: one system call."""
# As much as a record of TLS holds.
_CHUNK: Final = 16_384
_GLANCE: Final = 0.01
"""Seconds that a plain system call waits. A longer wait uses poll, whose timeout goes on counting
when signals interrupt it; the kernel's own timeout would begin again each time."""
_TIMEVAL: Final = Struct("@ll").pack(0, int(_GLANCE * 1_000_000))
_WANTS: Final = {"SSLWantReadError": False, "SSLWantWriteError": True}
"""TLS errors by name (importing ssl takes 10 ms), with whether TLS must write first."""

_now = clock.now


class BlockingWire:
    """A blocking connection (see net.pool). `used`: when the present (or last) exchange began.

    The kernel's timeouts (SO_RCVTIMEO), set once, save a poll for each read. Sockets with TLS, and
    those that are not the standard library's, are non-blocking: gevent's would wait in the hub of
    one thread, and the keeper's thread uses them too.
    """

    closed = False
    """Always false: only `is_stale` notices that the server closed the connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        close_with(self, sock.close)
        self._send, self._recv = sock.send, sock.recv
        # Windows has these options too, but in another unit.
        if type(sock) is unpatched("socket", "socket") and os.name == "posix":
            sock.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL)
        else:
            sock.settimeout(0)
        self.used = _now()

    def __del__(self) -> None:
        if hasattr(self, "_sock"):  # making it may have failed
            self._sock.close()

    def close(self) -> None:
        """Release the descriptor. Writes nothing, so that a fork's child may do it too."""
        self._sock.close()

    def hang_up(self) -> None:
        """Wake the thread that waits on it, which then closes it. Writes nothing, even with TLS."""
        # If closed here, its number could be another connection's before that thread reads.
        try:
            # The plain socket's method: that of ssl drops the TLS state, which that thread uses.
            unpatched("socket", "socket").shutdown(self._sock, socket.SHUT_RDWR)
        except OSError as error:
            raise_if_from_signal(error)
        except TypeError as error:
            raise_if_from_signal(error)
            # gevent's TLS sockets are not of the system's socket class; closing must do.
            self._sock.close()

    def detach(self) -> None:
        """See net.pool.Connection."""
        self._sock.close()

    def is_stale(self, *, trust: bool) -> bool:
        """Whether the server closed it, or sent bytes that nobody asked for."""
        if trust and _now() - self.used < STALE_AFTER:
            return False
        return is_ready(self._sock, writing=False)

    def fileno(self) -> int:
        """The descriptor, for polling."""
        return self._sock.fileno()

    def send(self, request: bytes, until: float) -> None:
        """Send the whole request. Raises Broken."""
        # `used` was read just before, when the exchange began: another look at the clock would cost
        # more than it tells.
        if until <= self.used:
            raise Broken("no time is left", sent=False, late=True)
        try:
            sent = self._send(request)
        except (OSError, ValueError) as error:
            # A send that raises took no byte. TLS may have written part of a record, but no server
            # can read an unfinished one, so its request is not sent either.
            self._outlast(error, until, sent=False, writing=True)
            sent = 0
        if sent != len(request):
            self._send_rest(request, sent, until)

    def _send_rest(self, request: bytes, sent: int, until: float) -> None:
        while sent < len(request):
            # A server that takes a few bytes each time must not extend the deadline.
            if _now() >= until:
                raise Broken("it takes nothing more", sent=sent > 0, late=True)
            try:
                sent += self._send(request[sent:])
            except (OSError, ValueError) as error:
                self._outlast(error, until, sent=sent > 0, writing=True)

    def _outlast(self, error: Exception, until: float, *, sent: bool, writing: bool) -> None:
        """Wait until the call that `error` interrupted can go on. Raises Broken."""
        # ValueError: another thread closed a TLS socket.
        raise_if_from_signal(error)
        late = "it takes nothing more" if writing else "no answer in time"
        if type(error).__name__ in _WANTS:
            writing = _WANTS[type(error).__name__]
        elif type(error) is not BlockingIOError:
            raise Broken(str(error), sent=sent) from error
        if not wait_ready(self._sock, until, writing=writing):
            raise Broken(late, sent=sent, late=True) from error

    def receive(self, until: float) -> bytes:
        """The next bytes. Raises Broken, also at the end of the connection."""
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
        """As `receive`, for coroutines that both sides share: it blocks instead of suspending."""
        return self.receive(until)

    def glance(self) -> bytes:
        """The available bytes, without waiting; perhaps none. Raises Broken."""
        try:
            # No time to wait: where nothing is there `late` is raised, and no byte is lost by that.
            return self.receive(_now())
        except Broken as error:
            if error.late:
                return b""
            raise
