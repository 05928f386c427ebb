"""An HTTP/1.1 server for a table of handlers: one daemon thread, one request a connection.

A slow or hostile peer occupies one of `_AT_ONCE` places for at most `_TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import socket
import stat
import threading
from email.parser import HeaderParser
from email.utils import formatdate
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from incumbent.errors import ConfigError
from incumbent.serve.pages import OPEN_PATHS, TEXT, Page, Question, Routes, answer

_log = logging.getLogger("incumbent")

_TIMEOUT: Final = 2.0
"""Seconds for the head of a request to arrive and for the response to be taken."""
_LONGEST_HEAD: Final = 8192
_AT_ONCE: Final = 16
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/@\s]*)):(?P<port>\d{1,5})"
)
_SHORTEST_TOKEN: Final = 16


class PageServer:
    """Serves `routes` at `listen`, HOST:PORT, until it is closed.

    `token_file`: the file with the token that every path but OPEN_PATHS asks for. Without one these
    paths are refused if other hosts can reach `listen`. Raises ConfigError for a setting that
    cannot work.
    """

    def __init__(self, routes: Routes, listen: str, token_file: str | None) -> None:
        address = parse_address(listen)
        self._secret = None if token_file is None else read_secret(token_file)
        self._probes_only = token_file is None and not address.is_loopback
        self._routes = routes
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
        method, (path, _, query) = words[0], words[1].partition("?")
        if method not in ("GET", "HEAD"):
            return Page(405, TEXT, "only GET and HEAD\n")
        authorization = HeaderParser().parsestr(headers)["Authorization"]
        if path not in OPEN_PATHS:
            if self._probes_only:
                return Page(403, TEXT, _PROBES_ONLY)
            if not authorized(authorization, self._secret):
                return Page(401, TEXT, "this needs the token of --token-file\n")
        return answer(self._routes, Question(path, query))


_PROBES_ONLY: Final = (
    f"other hosts reach this address: without --token-file it serves {' and '.join(OPEN_PATHS)}"
    " alone\n"
)
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


# -- settings --------------------------------------------------------------------------------------


class Address(NamedTuple):
    """A resolved address; port 0 lets the system choose."""

    family: int
    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL for a browser."""
        host = f"[{self.host}]" if self.family == socket.AF_INET6 else self.host
        return f"http://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether no other host can reach it."""
        return ip_address(self.host.partition("%")[0]).is_loopback


def parse_address(text: str) -> Address:
    """HOST:PORT, [::1]:PORT or :PORT (the loopback address). Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise _bad_listen(
            f"{text!r} is no address: use HOST:PORT, as 127.0.0.1:8080, [::1]:8080, or"
            " port 0 for a free one"
        )
    host = match["six"] or match["host"] or "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host, int(match["port"]), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise _bad_listen(f"{text!r}: the host cannot be resolved ({error})") from error
    return Address(family, str(where[0]), int(where[1]))


def read_secret(path: str) -> str:
    """The first line of a token file. Raises ConfigError, whose text never contains the token."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.readline(4096).rstrip(b"\r\n")
    except OSError as error:
        raise _bad_token(path, f"cannot be read ({error.strerror})") from None
    if mode & stat.S_IROTH:
        raise _bad_token(path, "can be read by everybody on this host: chmod o-rwx it")
    if len(line) < _SHORTEST_TOKEN:
        raise _bad_token(
            path, f"is too short: its first line needs at least {_SHORTEST_TOKEN} characters"
        )
    if not re.fullmatch(rb"[!-~]+", line):
        raise _bad_token(path, "has blanks or other than ASCII characters in its first line")
    return line.decode("ascii")


def authorized(header: str | None, secret: str | None) -> bool:
    """Whether the Authorization header contains `secret`; always, if `secret` is None."""
    if secret is None:
        return True
    scheme, _, token = (header or "").partition(" ")
    # compare_digest takes only bytes if there may be other than ASCII characters.
    same = hmac.compare_digest(token.strip().encode("utf-8", "replace"), secret.encode())
    return same and scheme.lower() == "bearer"


def _bad_listen(problem: str) -> ConfigError:
    return ConfigError(f"--listen {problem}", name="listen")


def _bad_token(path: str, problem: str) -> ConfigError:
    return ConfigError(f"--token-file {path} {problem}", name="token_file")
