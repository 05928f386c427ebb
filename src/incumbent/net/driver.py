"""A socket for drivers that only block: it keeps the deadline of a whole exchange.

A driver's own sockets count a timeout for each piece of an answer, so that a slow peer extends it,
and resolve names without one.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from incumbent import clock
from incumbent.net.dial import wrap_tls
from incumbent.net.wire import BlockingWire

if TYPE_CHECKING:
    import ssl


class DriverSocket(BlockingWire):
    """What a driver takes for a socket, and for the file that it reads. Raises Broken.

    `until`: the deadline of what is sent and read next.
    """

    def __init__(self, sock: socket.socket, until: float) -> None:
        super().__init__(sock)
        self.plain, self.until = sock, until
        self._read = bytearray()

    def begin(self, until: float) -> None:
        """Begin an exchange that ends at `until`."""
        self.until, self.used = until, clock.now()

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: `until` counts."""

    def makefile(self, mode: str) -> DriverSocket:
        return self

    def sendall(self, data: bytes) -> None:
        self.send(data, self.until)

    def read(self, size: int) -> bytes:
        while len(self._read) < size:
            self._read += self.receive(self.until)
        found = bytes(self._read[:size])
        del self._read[:size]
        return found


class Upgrade:
    """What a driver takes for a TLS context; `upgraded` is the socket that it made."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.upgraded: DriverSocket | None = None

    def wrap_socket(self, sock: DriverSocket, server_hostname: str) -> DriverSocket:
        """The socket with TLS. Raises OSError, Broken."""
        sock.plain.settimeout(0)
        plain = wrap_tls(self._context, sock.plain, server_hostname, sock.until)
        self.upgraded = DriverSocket(plain, sock.until)
        return self.upgraded
