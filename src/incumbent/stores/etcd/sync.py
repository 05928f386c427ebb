"""The blocking side: a socket driven directly, and operations that are carried out in one step."""

from __future__ import annotations

import os
import socket
import ssl
from struct import Struct
from typing import Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.dial import close_with, connect, is_ready, wait_ready
from incumbent.net.pool import Broken
from incumbent.stores.etcd.client import Client
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.errors import is_refusal_of_certificate
from incumbent.stores.loops import detach_in_child
from incumbent.stores.url import Endpoint
from incumbent.unpatched import original

_STALE_AFTER: Final = 0.1
"""A connection unused for longer is looked at before it is trusted: one system call."""
_CHUNK: Final = 65_536
_GLANCE: Final = 0.01
"""Seconds that a plain system call waits. Longer waits use poll, whose timeout goes on counting
while signals interrupt it; the kernel's own would begin again each time."""
_TIMEVAL: Final = Struct("@ll").pack(0, int(_GLANCE * 1_000_000))
_READ_LATER: Final = (BlockingIOError, ssl.SSLWantReadError)

_now = clock.now


class Wire:
    """One connection (see client.AnyWire), with one deadline for all of an exchange.

    `receive` blocks where others suspend.
    """

    __slots__ = ("__weakref__", "_sock", "used")

    closed = False
    """Nothing shows when a server closes it: see `is_stale`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        close_with(self, sock.close)
        if type(sock) is original("socket", "socket") and os.name == "posix":
            # The kernel's timeouts, set once, spare the poll that each look would cost.
            sock.setblocking(True)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL)
        self.used = _now()

    def __del__(self) -> None:
        self._sock.close()

    def close(self) -> None:
        """Let go, and wake a thread that waits on it. Writes nothing, also with TLS."""
        try:
            # Of a socket, and not of TLS: that would say good-bye.
            original("socket", "socket").shutdown(self._sock, socket.SHUT_RDWR)
        except (OSError, TypeError):
            # TypeError: gevent's TLS sockets are no sockets of the system; closing has to do.
            pass
        self._sock.close()

    def detach(self) -> None:
        """See net.pool.Connection."""
        self._sock.close()

    def is_stale(self, *, trust: bool) -> bool:
        """Whether the server closed it, or sent something that nobody asked for."""
        if trust and _now() - self.used < _STALE_AFTER:
            return False
        return is_ready(self._sock, writing=False)

    def send(self, request: bytes, until: float) -> None:
        """All of a request. Raises Broken."""
        if _now() >= until:
            raise Broken("no time is left", sent=False, late=True)
        sent = 0
        while sent < len(request):
            try:
                sent += self._sock.send(request[sent:] if sent else request)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
                reading = isinstance(error, ssl.SSLWantReadError)
                if not wait_ready(self._sock, until, writing=not reading):
                    raise Broken("it takes nothing more", sent=sent > 0, late=True) from error
            except (OSError, ValueError) as error:
                raise Broken(str(error), sent=sent > 0) from error

    async def receive(self, until: float) -> bytes:
        """Some bytes; none at the end of the connection. Raises Broken."""
        sock = self._sock
        while True:
            try:
                return sock.recv(_CHUNK)
            except (*_READ_LATER, ssl.SSLWantWriteError) as error:
                writing = isinstance(error, ssl.SSLWantWriteError)
                if not wait_ready(sock, until, writing=writing):
                    raise Broken("no answer in time", sent=True, late=True) from error
            except (OSError, ValueError) as error:
                sent = not is_refusal_of_certificate(str(error))
                raise Broken(str(error), sent=sent) from error


class BlockingClient(Client[Wire]):
    """See Client. Its coroutines never suspend; closing it ends the waits of all threads."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        detach_in_child(self)

    async def dial(self, endpoint: Endpoint, until: float) -> Wire:
        if _now() >= until:
            raise StoreUnavailable(f"{endpoint}: no time is left to connect")
        try:
            return Wire(connect(endpoint.host, endpoint.port, until, tls=self.site.tls))
        except OSError as error:
            raise self.site.cannot_connect(error, str(endpoint)) from error

    def detach(self) -> None:
        self.cluster.sessions.forget()
        super().detach()
