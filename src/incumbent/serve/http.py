"""An HTTP/1.1 server for a table of handlers: one daemon thread, one request a connection.

Whatever peers do, a probe is answered:

    accepted --> its request arrives --> a probe: answered, and needs no further place
                 (_READING)          --> another page: it takes the answer (_ANSWERS)
                                     --> it waits for a store, or follows a stream (_VIEWERS)

Each kind has places of its own. One connection too many ends the oldest whose request has not
arrived: a peer that sends half a head, or no body. A request that came with its connection, as a
probe's does, is read before it counts. One answer or viewer too many is refused. Peers that do
not send or read are dropped after `_TIMEOUT`, viewers after `_VIEWER_TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from email.parser import HeaderParser
from email.utils import formatdate
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, NamedTuple

from incumbent.errors import ConfigError
from incumbent.serve.gate import LONGEST_BODY, PageGate, checked_header, read_secrets
from incumbent.serve.pages import (
    OPEN_PATHS,
    TEXT,
    HttpRequest,
    Page,
    Pending,
    Routes,
    finished,
    headers_of,
)

_log = logging.getLogger("incumbent")

# Turns of the loop from accepting a connection to its handler: task, transport, handler.
_TURNS: Final = 4
# Turns of the loop after which what came with the connection is read.
_TO_READ: Final = 3
# Seconds for the head of a request to arrive and for the response to be taken.
_TIMEOUT: Final = 2.0
# About what other servers allow; a token and a cookie need far less.
_LONGEST_HEAD: Final = 8192
_READING: Final = 512
# Pages in memory: each may be large, and stays until the peer has taken it. Probes and refusals
# are small, and take no place.
_ANSWERS: Final = 16
_VIEWERS: Final = 1000
# Seconds for a handler that waits, and for a viewer to read the data that it gets.
_VIEWER_TIMEOUT: Final = 10.0
# Bytes that are written to a connection before waiting until it takes them.
_PIECE: Final = 65_536
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/@\s]*)):(?P<port>\d{1,5})"
)
_PROBES_ONLY: Final = (
    f"other hosts reach this address: without --token-file it serves {' and '.join(OPEN_PATHS)}"
    " alone\n"
)


class PageServer:
    """Serves `routes` at `listen`, HOST:PORT, until it is closed.

    `token_file`: the file with the token that every path but OPEN_PATHS requires. Without a file
    those paths are refused if other hosts can reach `listen`. `user_header`: the header in which a
    proxy names the user; without it no header is believed. Raises ConfigError for a setting that
    cannot work.
    """

    def __init__(
        self, routes: Routes, listen: str, token_file: str | None, user_header: str | None = None
    ) -> None:
        address = parse_address(listen)
        names = None if token_file is None else read_secrets(token_file)
        if user_header is not None and token_file is None:
            raise ConfigError("--user-header needs --token-file", name="user_header")
        user_header = "" if user_header is None else checked_header(user_header)
        closed = _PROBES_ONLY if names is None and not address.is_loopback else ""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = files if files > 0 else 4 * _VIEWERS
        self._reading: dict[asyncio.StreamWriter, None] = {}
        # No more than a share of the descriptors that this process may have: the rest is for its
        # stores.
        self._most_reading = min(_READING, files // 4)
        self._most_viewers = min(_VIEWERS, files // 2)
        self._answers = self._viewers = 0
        self._listener = _listen(address)
        host, port = self._listener.getsockname()[:2]
        self.url = Address(address.family, host, port).url
        # The name contains the port: browsers send cookies to all ports of a host.
        cookies = {
            f"incumbent-{port}={secrets.token_urlsafe(24)}".encode(): name
            for name in (names or {}).values()
        }
        self._gate = PageGate(routes, names, cookies, closed, user_header)
        here = closed.strip() or "everybody on this host may look; to act needs --token-file"
        named = "who has a token of --token-file may look and act"
        self.access = here if names is None else named
        """Who may look and act, in words."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: _log.debug("%s", context))
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="incumbent-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests, and drop the requests that are not answered yet."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._handle, sock=self._listener, limit=_LONGEST_HEAD)
        await self._closed.wait()
        # First let connections that were just accepted reach their handlers, which drop them: a
        # closed server would leave them open (asyncio.Server asserts that it is not closed).
        self._loop.remove_reader(self._listener)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(_TO_READ):
                await asyncio.sleep(0)
            with self._place_to_read(writer):
                async with asyncio.timeout(_TIMEOUT):
                    request = await _read(reader)
            await self._answer(writer, request)
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # The peer is gone, is too slow, never ends its head, or made room for another.
        finally:
            # In any case, and at once: a peer that takes nothing would keep the rest of an answer
            # in memory.
            writer.transport.abort()

    @contextmanager
    def _place_to_read(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        if len(self._reading) >= self._most_reading:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            # It wakes its handler, which ends by the error; its entry is gone already, so that
            # nobody picks it twice.
            oldest.transport.abort()
        self._reading[writer] = None
        try:
            yield
        finally:
            self._reading.pop(writer, None)

    async def _answer(self, writer: asyncio.StreamWriter, request: HttpRequest | Page) -> None:
        page = request if isinstance(request, Page) else self._gate.answer(request)
        asked = request if isinstance(request, HttpRequest) else HttpRequest("")
        if not isinstance(page, Page):
            if self._viewers < self._most_viewers:
                await self._show(writer, page, asked)
                return
            # A coroutine that is never awaited must be closed, or Python warns.
            page.close()
            page = Page(503, TEXT, "too many look at it already\n")
        takes_place = page.status == HTTPStatus.OK and asked.path not in OPEN_PATHS
        if takes_place and self._answers >= _ANSWERS:
            page = Page(503, TEXT, "too many have not taken their answer yet\n")
            takes_place = False
        # Counted before the first await: others are counted meanwhile.
        self._answers += takes_place
        try:
            async with asyncio.timeout(_TIMEOUT):
                page = page._replace(stream=None)
                await _send(writer, finished(page, asked), head_only=asked.method == "HEAD")
        finally:
            self._answers -= takes_place

    async def _show(
        self, writer: asyncio.StreamWriter, pending: Pending, asked: HttpRequest
    ) -> None:
        self._viewers += 1
        try:
            async with asyncio.timeout(_VIEWER_TIMEOUT):
                page = await pending
            await _send(writer, finished(page, asked), head_only=asked.method == "HEAD")
        finally:
            self._viewers -= 1


async def _read(reader: asyncio.StreamReader) -> HttpRequest | Page:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, _, rest = head.partition("\r\n")
    words = request_line.split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return Page(400, TEXT, "this is no HTTP/1.1 request\n")
    headers: dict[str, str] = {}
    for name, value in HeaderParser().parsestr(rest).items():
        key = name.lower()
        # One that came twice says nothing: the first may be the client's own, to which a proxy that
        # names its user only added.
        headers[key] = "" if key in headers else value
    if "transfer-encoding" in headers:
        return Page(411, TEXT, "a body needs Content-Length here\n")
    length = headers.get("content-length", "0")
    # The pattern first: a number of many thousand digits takes long to read.
    if not re.fullmatch(r"\d{1,9}", length, re.ASCII) or int(length) > LONGEST_BODY:
        return Page(413, TEXT, "the body is too long\n")
    body = (await reader.readexactly(int(length))).decode("utf-8", "replace")
    path, _, query = words[1].partition("?")
    return HttpRequest(path, query, words[0], headers, body)


async def _send(writer: asyncio.StreamWriter, page: Page, *, head_only: bool = False) -> None:
    body = page.body.encode() if isinstance(page.body, str) else page.body
    headers = {
        "Server": "incumbent",
        "Date": formatdate(usegmt=True),
        "Connection": "close",
        **headers_of(page, len(body)),
    }
    lines = [f"HTTP/1.1 {page.status} {HTTPStatus(page.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join((*lines, "", "")).encode("latin-1")
    await _deliver(writer, head if head_only else head + body)
    if page.stream is not None:
        async with aclosing(page.stream) as stream:
            async for more in stream:
                await _deliver(writer, more)
    writer.close()
    async with asyncio.timeout(_VIEWER_TIMEOUT):
        await writer.wait_closed()


async def _deliver(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write in pieces. Raises TimeoutError for a slow reader, before much is buffered for it."""
    for at in range(0, len(data), _PIECE):
        writer.write(data[at : at + _PIECE])
        async with asyncio.timeout(_VIEWER_TIMEOUT):
            await writer.drain()


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
    """Resolve HOST:PORT, [::1]:PORT or :PORT (the loopback address). Raises ConfigError."""
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


def _bad_listen(problem: str) -> ConfigError:
    return ConfigError(f"--listen {problem}", name="listen")
