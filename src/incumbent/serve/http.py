"""An HTTP/1.1 server for a table of handlers: one daemon thread, one request a connection.

Whatever peers do, a probe is answered:

    accepted --> its request arrives --> a probe: answered, and needs no further place
                 (_READING)          --> another page: it takes the answer (_ANSWERS)
                                     --> it waits for a store, or follows a stream (_VIEWERS)

Each kind has places of its own. One connection too many ends the oldest whose request has not
arrived: a peer that sends half a head, or no body. A request that came with its connection, as a
probe's does, is read before it counts. One answer or viewer too many is refused. Peers that do
not send or read are dropped after `_TIMEOUT`, viewers after `_PATIENCE`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import resource
import secrets
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from email.parser import HeaderParser
from email.utils import formatdate
from html import escape
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from incumbent.errors import ConfigError
from incumbent.printable import printable
from incumbent.serve.pages import (
    OPEN_PATHS,
    STYLE,
    TEXT,
    HttpRequest,
    Page,
    Pending,
    Routes,
    answer,
    find_route,
    problem,
)

_log = logging.getLogger("incumbent")

_TURNS: Final = 4
"""Turns of the loop from accepting a connection to its handler: task, transport, handler."""
_TO_READ: Final = 3
"""Turns of the loop after which what came with the connection is read."""
_TIMEOUT: Final = 2.0
"""Seconds for the head of a request to arrive and for the response to be taken."""
_LONGEST_HEAD: Final = 8192
_READING: Final = 512
_ANSWERS: Final = 16
"""Pages in memory: each may be large, and stays until the peer has taken it. Probes and refusals
are small, and take no place."""
_VIEWERS: Final = 1000
_PATIENCE: Final = 10.0
"""Seconds for a handler that waits, and for a viewer to read the data that it gets."""
_PIECE: Final = 65_536
"""Bytes that are written to a connection before waiting until it takes them."""
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/@\s]*)):(?P<port>\d{1,5})"
)
_SHORTEST_TOKEN: Final = 16


class PageServer:
    """Serves `routes` at `listen`, HOST:PORT, until it is closed.

    `token_file`: the file with the token that every path but OPEN_PATHS requires. Without a file
    those paths are refused if other hosts can reach `listen`. `user_header`: the header in which a
    proxy names the user; without it no header is believed. Raises ConfigError for a setting that
    cannot work.
    """

    def __init__(
        self,
        routes: Routes,
        listen: str,
        token_file: str | None,
        user_header: str | None = None,
    ) -> None:
        address = parse_address(listen)
        self._names = None if token_file is None else read_secrets(token_file)
        self._user_header = _checked_header(user_header, token_file)
        self._probes_only = token_file is None and not address.is_loopback
        self._routes = routes
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = files if files > 0 else 4 * _VIEWERS
        self._reading: dict[asyncio.StreamWriter, None] = {}
        self._most_reading, self._most_viewers = (
            min(_READING, files // 4),
            min(_VIEWERS, files // 2),
        )
        self._answers = self._viewers = 0
        self._listener = _listen(address)
        host, port = self._listener.getsockname()[:2]
        self.url = Address(address.family, host, port).url
        # The name contains the port: browsers send cookies to all ports of a host.
        names = (self._names or {}).values()
        self._cookies = {
            f"incumbent-{port}={secrets.token_urlsafe(24)}".encode(): name for name in names
        }
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: _log.debug("%s", context))
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="incumbent-http", daemon=True)
        self._thread.start()

    @property
    def access(self) -> str:
        """Who may look and act, in words."""
        if self._names is not None:
            return "who has a token of --token-file may look and act"
        here = "everybody on this host may look; to act needs --token-file"
        return _PROBES_ONLY.strip() if self._probes_only else here

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
            writer.transport.abort()

    @contextmanager
    def _place_to_read(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        if len(self._reading) >= self._most_reading:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            oldest.transport.abort()
        self._reading[writer] = None
        try:
            yield
        finally:
            self._reading.pop(writer, None)

    async def _answer(self, writer: asyncio.StreamWriter, request: HttpRequest | Page) -> None:
        page = request if isinstance(request, Page) else self._page(request)
        head_only = isinstance(request, HttpRequest) and request.method == "HEAD"
        for_program = isinstance(request, HttpRequest) and request.wants_json
        if not isinstance(page, Page):
            if self._viewers < self._most_viewers:
                await self._show(writer, page, head_only, for_program)
                return
            page.close()
            page = Page(503, TEXT, "too many look at it already\n")
        takes_place = page.status == HTTPStatus.OK and not _is_probe(request)
        if takes_place and self._answers >= _ANSWERS:
            page = Page(503, TEXT, "too many have not taken their answer yet\n")
            takes_place = False
        page = problem(page) if for_program else page
        self._answers += takes_place
        try:
            async with asyncio.timeout(_TIMEOUT):
                await _send(writer, page._replace(stream=None), head_only=head_only)
        finally:
            self._answers -= takes_place

    async def _show(
        self, writer: asyncio.StreamWriter, pending: Pending, head_only: bool, for_program: bool
    ) -> None:
        self._viewers += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                page = await pending
            page = problem(page) if for_program else page
            page = page._replace(stream=None) if head_only else page
            await _send(writer, page, head_only=head_only)
        finally:
            self._viewers -= 1

    def _page(self, request: HttpRequest) -> Page | Pending:
        found = find_route(self._routes, request.route)
        post = request.method == "POST" and (found or request.route == _LOGIN)
        if not post and request.method not in ("GET", "HEAD"):
            return Page(405, TEXT, "only GET and HEAD\n")
        if request.path in OPEN_PATHS:
            return answer(self._routes, request)
        sent = authorized(request.headers.get("authorization"), self._names)
        refused = self._refused(request, sent)
        if refused is not None:
            return refused
        if request.route == _LOGIN:
            return self._login(request)
        bearer = sent is not None and not _is_of_a_browser(request)
        who = printable(request.headers.get(self._user_header, "")).strip()[:_NAME_MOST]
        who = who or sent or self._name_by_cookie(request) or ""
        trusted = self._names is not None
        return answer(self._routes, request._replace(trusted=trusted, bearer=bearer, who=who))

    def _refused(self, request: HttpRequest, sent: str | None) -> Page | None:
        """`sent`: the name of the token that came with the request, see `authorized`."""
        if self._probes_only:
            return Page(403, TEXT, _PROBES_ONLY)
        # A proxy may add the token to whatever a browser sends, for pages of others too.
        by_program = sent is not None and not _is_of_a_browser(request)
        post = request.method == "POST"
        if post and (self._names is None or not (by_program or _is_from_here(request))):
            return Page(403, TEXT, "this needs the token, and comes from a page of ours\n")
        if sent is not None or request.route in (_LOGIN, STYLE):
            return None
        return None if self._name_by_cookie(request) is not None else self._unauthorized(request)

    # -- browsers: a cookie stands for the token ---------------------------------------------------

    def _name_by_cookie(self, request: HttpRequest) -> str | None:
        given = request.headers.get("cookie", "").encode("latin-1", "replace").split(b";")
        for cookie, name in self._cookies.items():
            if any(hmac.compare_digest(one.strip(), cookie) for one in given):
                return name
        return None

    def _login(self, request: HttpRequest) -> Page:
        given = dict(parse_qsl(request.body))
        name = authorized(f"Bearer {given.get('token', '')}", self._names)
        if name is None:
            return self._unauthorized(request)
        cookie = next(cookie for cookie, whose in self._cookies.items() if whose == name).decode()
        cookie = f"{cookie}; HttpOnly; SameSite=Strict; Path=/"
        # Relative, because a proxy may serve us below a path of its own.
        view = given.get("view", "")
        where = f"./{view if _VIEW.fullmatch(view) else ''}"
        return Page(303, TEXT, "", {"Location": where, "Set-Cookie": cookie})

    def _unauthorized(self, request: HttpRequest) -> Page:
        if "/" in self._routes and "text/html" in request.headers.get("accept", ""):
            view = request.path[1:] + (f"?{request.query}" if request.query else "")
            if request.route == _LOGIN:
                view = dict(parse_qsl(request.body)).get("view", "")
            wrong = "This is not the token. " if request.route == _LOGIN else ""
            asked = _ASK.format(view=escape(view), wrong=wrong)
            return Page(401, "text/html; charset=utf-8", asked, _ASK_HEADERS)
        return Page(401, TEXT, _UNAUTHORIZED)


_LOGIN: Final = "POST /login"
_ASK: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>incumbent</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
    '<link rel="stylesheet" href="page.css"><main class="ask"><h1>incumbent</h1>'
    '<form method="post" action="login"><input type="hidden" name="view" value="{view}">'
    '<p role="status" class="bad">{wrong}</p><label>The token, from the file of --token-file:'
    ' <input type="password" name="token" autocomplete="current-password" required></label>'
    " <button>Look</button></form></main></html>"
)
_ASK_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}
_VIEW: Final = re.compile(r"(?:name)?(?:\?[\w.%&=+*~-]*)?", re.ASCII)
"""The pages to which the token leads back."""
_NAME_MOST: Final = 64
_UNAUTHORIZED: Final = (
    "this needs a token from the file that this server got as --token-file, in the header"
    " `Authorization: Bearer TOKEN`; a browser asks for it at /\n"
)
_PROBES_ONLY: Final = (
    f"other hosts reach this address: without --token-file it serves {' and '.join(OPEN_PATHS)}"
    " alone\n"
)
_HEADERS_OF: Final = {401: {"WWW-Authenticate": "Bearer"}, 405: {"Allow": "GET, HEAD"}}


def _is_from_here(request: HttpRequest) -> bool:
    """Whether a form of our own sent the request: browsers name the origin of a POST.

    Behind a proxy the Host may be another. There Sec-Fetch-Site tells, which no script can set.
    """
    if request.headers.get("sec-fetch-site") == "same-origin":
        return True
    origin = urlsplit(request.headers.get("origin", "")).netloc
    return bool(origin) and origin == request.headers.get("host")


def _is_of_a_browser(request: HttpRequest) -> bool:
    return bool({"origin", "sec-fetch-site"} & request.headers.keys())


def _is_probe(request: HttpRequest | Page) -> bool:
    return isinstance(request, HttpRequest) and request.path in OPEN_PATHS


async def _read(reader: asyncio.StreamReader) -> HttpRequest | Page:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, _, rest = head.partition("\r\n")
    words = request_line.split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return Page(400, TEXT, "this is no HTTP/1.1 request\n")
    headers: dict[str, str] = {}
    for name, value in HeaderParser().parsestr(rest).items():
        headers.setdefault(name.lower(), value)
    length = headers.get("content-length", "0")
    if not re.fullmatch(r"\d{1,4}", length, re.ASCII):
        return Page(413, TEXT, "the body is too long\n")
    body = (await reader.readexactly(int(length))).decode("utf-8", "replace")
    path, _, query = words[1].partition("?")
    return HttpRequest(path, query, words[0], headers, body)


async def _send(writer: asyncio.StreamWriter, page: Page, *, head_only: bool = False) -> None:
    body = page.body.encode() if isinstance(page.body, str) else page.body
    headers = {
        "Server": "incumbent",
        "Date": formatdate(usegmt=True),
        "Content-Type": page.content_type,
        **({"Content-Length": len(body)} if page.stream is None else {}),
        # A proxy that caches /leaderz would send requests to two leaders.
        "Cache-Control": "no-store",
        "Connection": "close",
        **_HEADERS_OF.get(page.status, {}),
        **page.headers,
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
    async with asyncio.timeout(_PATIENCE):
        await writer.wait_closed()


async def _deliver(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write in pieces. Raises TimeoutError for a slow reader, before much is buffered for it."""
    for at in range(0, len(data), _PIECE):
        writer.write(data[at : at + _PIECE])
        async with asyncio.timeout(_PATIENCE):
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


def read_secrets(path: str) -> dict[str, str]:
    """The names in a token file by their tokens.

    The first line is the token, whose name is "". If it is NAME:TOKEN, each line is. Raises
    ConfigError, whose text never contains a token.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read(_LONGEST_FILE).splitlines()
    except OSError as error:
        raise _bad_token(path, f"cannot be read ({error.strerror})") from None
    if mode & stat.S_IROTH:
        raise _bad_token(path, "can be read by everybody on this host: chmod o-rwx it")
    found: dict[str, str] = {}
    named = bool(lines and _NAMED.fullmatch(lines[0]))
    for number, line in enumerate(lines if named else lines[:1] or [b""], 1):
        if not line and named:
            continue
        match = _NAMED.fullmatch(line) if named else None
        if named and match is None:
            raise _bad_token(path, f"has no NAME:TOKEN in line {number}, as in its first line")
        name, token = (match["name"].decode(), match["token"]) if match else ("", line)
        where = f"line {number}" if number > 1 else "first line"
        if len(token) < _SHORTEST_TOKEN:
            least = f"at least {_SHORTEST_TOKEN} characters"
            raise _bad_token(path, f"is too short: its {where} needs {least} in the token")
        if not re.fullmatch(rb"[!-~]+", token):
            raise _bad_token(path, f"has blanks or other than ASCII characters in its {where}")
        if token.decode() in found:
            raise _bad_token(path, f"has the token of {found[token.decode()]} in its {where} again")
        found[token.decode()] = name
        # Who copies the whole line means the same.
        found[line.decode()] = name
    return found


_LONGEST_FILE: Final = 65_536
_NAMED: Final = re.compile(rb"(?P<name>[A-Za-z0-9][\w.@+-]{0,63}):(?P<token>.*)")


def authorized(header: str | None, names: Mapping[str, str] | None) -> str | None:
    """The name of the token in the Authorization header, or None; "" if `names` is None.

    `names`: see `read_secrets`.
    """
    if names is None:
        return ""
    scheme, _, token = (header or "").partition(" ")
    # compare_digest takes texts only if they are ASCII, so compare bytes.
    given, found = token.strip().encode("utf-8", "replace"), None
    for secret, name in names.items():
        if hmac.compare_digest(given, secret.encode()) and scheme.lower() == "bearer":
            found = name
    return found


def _checked_header(name: str | None, token_file: str | None) -> str:
    if name is None:
        return ""
    if token_file is None:
        raise ConfigError("--user-header needs --token-file", name="user_header")
    if not re.fullmatch(r"[A-Za-z0-9-]+", name, re.ASCII):
        raise ConfigError(f"--user-header {name!r} is no name of a header", name="user_header")
    return name.lower()


def _bad_listen(problem: str) -> ConfigError:
    return ConfigError(f"--listen {problem}", name="listen")


def _bad_token(path: str, problem: str) -> ConfigError:
    return ConfigError(f"--token-file {path} {problem}", name="token_file")
