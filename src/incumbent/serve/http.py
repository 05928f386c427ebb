"""An HTTP/1.1 server for the pages: one daemon thread, one request a connection.

A slow or hostile peer occupies one of `_AT_ONCE` places for at most `_TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from email.parser import HeaderParser
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from incumbent.errors import ConfigError
from incumbent.serve.address import Address, authorized, parse_address, read_secret
from incumbent.serve.pages import OPEN_PATHS, TEXT, Page, answer
from incumbent.serve.situation import Situation

__all__ = ["PageServer"]

_log = logging.getLogger("incumbent")

_TIMEOUT: Final = 2.0
"""Seconds for the head of a request to arrive and for the response to be taken."""
_LONGEST_HEAD: Final = 8192
_AT_ONCE: Final = 16


class PageServer:
    """Serves the pages of `situation` at `listen`, HOST:PORT, until it is closed.

    `token_file`: the file with the token that every path but OPEN_PATHS asks for. Raises
    ConfigError for a setting that cannot work.
    """

    def __init__(self, situation: Situation, listen: str, token_file: str | None) -> None:
        address = parse_address(listen, guarded=token_file is not None)
        self._secret = None if token_file is None else read_secret(token_file)
        self._situation = situation
        self._open = 0
        self._listener = _listen(address)
        host, port = self._listener.getsockname()[:2]
        self.url = Address(address.family, host, port).url
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: _log.debug("%s", context))
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="incumbent-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests, and drop those that are not answered yet."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._handle, sock=self._listener, limit=_LONGEST_HEAD)
        await self._closed.wait()
        server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _AT_ONCE:
                async with asyncio.timeout(_TIMEOUT):
                    writer.write(self._respond(await reader.readuntil(b"\r\n\r\n")))
                    writer.close()
                    await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # The peer is gone, is too slow, or never ends its head.
        finally:
            self._open -= 1
            writer.transport.abort()

    def _respond(self, head: bytes) -> bytes:
        page = self._page(*head.decode("latin-1").split("\r\n", 1))
        lines = [f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}"]
        body = page.body.encode()
        headers = {
            "Server": "incumbent",
            "Date": formatdate(usegmt=True),
            "Content-Type": page.content_type,
            "Content-Length": len(body),
            # A proxy with an old answer of /leaderz would send requests to two leaders.
            "Cache-Control": "no-store",
            "Connection": "close",
            **_HEADERS_OF.get(page.status, {}),
        }
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if head.startswith(b"HEAD "):
            body = b""
        return "\r\n".join((*lines, "", "")).encode("latin-1") + body

    def _page(self, request_line: str, headers: str) -> Page:
        words = request_line.split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Page(400, TEXT, "this is no HTTP/1.1 request\n")
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return Page(405, TEXT, "only GET and HEAD\n")
        authorization = HeaderParser().parsestr(headers)["Authorization"]
        if path not in OPEN_PATHS and not authorized(authorization, self._secret):
            return Page(401, TEXT, "this needs the token of --token-file\n")
        return answer(path, self._situation.look())


_HEADERS_OF: Final = {401: {"WWW-Authenticate": "Bearer"}, 405: {"Allow": "GET, HEAD"}}


def _listen(address: Address) -> socket.socket:
    six = address.family == socket.AF_INET6
    try:
        return socket.create_server(
            (address.host, address.port),
            family=address.family,
            dualstack_ipv6=six and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise ConfigError(
            f"--listen {address.host}: cannot listen on port {address.port} ({error.strerror});"
            " port 0 takes a free one",
            name="listen",
        ) from error
