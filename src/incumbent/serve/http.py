"""The pages over HTTP, from daemon threads: one request a connection, everything bounded."""

from __future__ import annotations

import errno
import io
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from incumbent import clock
from incumbent.errors import ConfigError
from incumbent.serve.address import Address, authorized
from incumbent.serve.pages import OPEN_PATHS, Page

__all__ = ["PageServer"]

_log = logging.getLogger("incumbent")

_PATIENCE: Final = 2.0
"""Seconds for a whole request to arrive, and for the answer to be taken."""
_LONGEST_HEAD: Final = 8192
_AT_ONCE: Final = 16

Answer = Callable[[str], Page]


class PageServer:
    """Serves `answer(path)` at `address` until it is closed.

    `secret`: what all but the probes' paths ask for. Raises ConfigError if it cannot listen there.
    """

    def __init__(self, address: Address, answer: Answer, secret: str | None = None) -> None:
        try:
            self._server = _Server(address, answer, secret)
        except (OSError, OverflowError) as error:
            raise ConfigError(_cannot(address, error), name="listen") from error
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="incumbent-http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens, with the port that the system chose."""
        return self._server.listens_at.url

    def close(self) -> None:
        """Take no more requests; those on their way are not waited for."""
        os.close(self._wake_write)
        self._thread.join(_PATIENCE)
        os.close(self._wake_read)
        self._server.server_close()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while all(fd != self._wake_read for fd, _ in poll.poll()):
            self._server.handle_request()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    # The poll has said that there is one.
    timeout = 0

    def __init__(self, address: Address, answer: Answer, secret: str | None) -> None:
        self.address_family = address.family
        self.answer = answer
        self.secret = secret
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's own: it asks the DNS for this host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        host, port = self.server_address[:2]
        self.listens_at = Address(self.address_family, str(host), int(port))
        self.server_name, self.server_port = self.listens_at.host, self.listens_at.port
        # A peer that is gone between poll and accept must not stop the thread.
        self.socket.setblocking(False)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            request, peer = self.socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                # The connection stays in the backlog and would be polled again at once.
                time.sleep(0.1)
            raise
        request.settimeout(_PATIENCE)
        return request, peer

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address
        _log.debug("a request could not be answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """One request, then the end of the connection."""
        self.close_connection = True
        head = self._read_head()
        if head is None:
            return
        self.rfile.close()
        self.rfile = io.BufferedReader(io.BytesIO(head))
        self.raw_requestline = self.rfile.readline()
        with suppress(OSError):
            if self.parse_request():
                self._send(self._page())
            self.wfile.flush()

    def _read_head(self) -> bytes | None:
        """All up to the empty line; None if it does not come in time or is too long."""
        until, head = clock.now() + _PATIENCE, b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            left = until - clock.now()
            if left <= 0 or len(head) > _LONGEST_HEAD:
                return None
            try:
                self.connection.settimeout(left)
                more = self.connection.recv(4096)
            except OSError:
                return None
            if not more:
                return None
            head += more
        self.connection.settimeout(_PATIENCE)
        return head

    def _page(self) -> Page:
        if self.command not in ("GET", "HEAD"):
            return Page(405, "text/plain; charset=utf-8", "only GET and HEAD\n")
        path = self.path.partition("?")[0]
        given = self.headers.get("Authorization")
        if path not in OPEN_PATHS and not authorized(given, self.server.secret):
            return Page(401, "text/plain; charset=utf-8", "this needs the token of --token-file\n")
        return self.server.answer(path)

    def _send(self, page: Page) -> None:
        body = page.body.encode()
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        # An old answer of /leaderz would send a proxy to two leaders.
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        if page.status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if page.status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """The Server header: no versions for strangers."""
        return "incumbent"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Nothing: a probe a second is no news."""


def _cannot(address: Address, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"--listen {address.host}: port {address.port} is in use by another process; choose"
            " another, or 0 for a free one"
        )
    return f"--listen {address.host}: cannot listen on port {address.port} ({error})"
