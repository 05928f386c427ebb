"""The page as an ASGI application, for the user's own FastAPI, Starlette, Django or server.

    request --> who is it? --> PageGate --> a page                  --> one response
                (`who`)                 a coroutine of PageSite  --> one response, or a stream

Nothing blocks the loop: PageSite reads the store in a thread of its own, and acts in others. A
PageSite belongs to one event loop, so each loop that asks has its own; it begins with the loop's
first request, so that no lifespan is needed.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing, suppress
from ipaddress import ip_address
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from incumbent.page.site import PageSite
from incumbent.serve.gate import LONGEST_BODY, PageGate, checked_header, name_of, read_secrets
from incumbent.serve.pages import TEXT, HttpRequest, Page, finished, headers_of
from incumbent.stores.names import make_key
from incumbent.stores.url import open_engine, store_url

__all__ = ["PageApp"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Who: TypeAlias = Callable[[Scope], "str | Awaitable[str | None] | None"]

_VIEWERS: Final = 1000
_VIEWER_TIMEOUT: Final = 10.0
"""Seconds for a handler that waits, and for a viewer to take the data that it gets."""
_STREAM_MOST: Final = 20.0
"""Seconds of one stream; the browser comes back by itself. Servers that shut down wait for it."""
_CLOSED: Final = (
    "other hosts reach this address: PageApp says with who= or token_file= who may look\n"
)


class PageApp:
    """The page and `/api/v1` about a namespace of a store.

    `store`: its URL, or INCUMBENT_STORE. `who`: returns the name of the user for an ASGI scope, and
    None for one who may neither look nor act; it may be a coroutine function, and must not block.
    Or the name of a header in which a proxy, which alone can reach the port, names the user.
    `token_file`: as for `incumbent serve`. Without both, only requests that reach the server at a
    loopback address are answered, and nobody may act. Raises ConfigError for what cannot work.

    >>> app = PageApp("memory:", who=lambda scope: scope["session"].get("user"))
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        namespace: str = "default",
        who: str | Who | None = None,
        token_file: str | None = None,
    ) -> None:
        make_key(namespace, "x")
        self._url, self._namespace = store_url(store), namespace
        # Raise errors of the URL here: later the page could only show them.
        open_engine(self._url)
        self._names = {} if token_file is None else read_secrets(token_file)
        self._who = _of_header(checked_header(who)) if isinstance(who, str) else who
        self._guarded = who is not None or token_file is not None
        # All processes of a server must know each other's cookies and forms. Browsers are kept from
        # acting for pages of others by the origin of a request, so the key of forms is no secret.
        self._cookies: dict[bytes, str] = {}
        for token, name in self._names.items():
            value = hmac.digest(token.encode(), b"incumbent cookie", "sha256").hex()
            self._cookies[f"incumbent-{value[:8]}={value[8:]}".encode()] = name
        self._key = hmac.digest(b"".join([self._url.encode(), *self._cookies]), b"form", "sha256")
        self._sites: dict[asyncio.AbstractEventLoop, tuple[PageSite, PageGate]] = {}
        self._viewers = 0

    def close(self) -> None:
        """Stop reading the store; a later request begins anew. A lifespan's end does it, too."""
        for loop in list(self._sites):
            self._sites.pop(loop)[0].close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http":
            raise RuntimeError(f"the page does not speak {scope['type']}")
        elif (request := await _read(scope, receive)) is not None:
            page = request if isinstance(request, Page) else await self._page(scope, request)
            asked = request if isinstance(request, HttpRequest) else HttpRequest("/")
            await self._respond(finished(page, asked), asked.method == "HEAD", receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _page(self, scope: Scope, request: HttpRequest) -> Page:
        if request.path == "":
            # Links are relative to the path with a slash.
            where = scope["root_path"].rstrip("/").rpartition("/")[2]
            return Page(308, TEXT, "", {"Location": f"{quote(where)}/"})
        if not (self._guarded or _is_local(scope)):
            return Page(403, TEXT, _CLOSED)
        user = await self._user(scope)
        page = self._gate_of_loop().answer(request, user)
        if isinstance(page, Page):
            return page
        if self._viewers >= _VIEWERS:
            page.close()
            return Page(503, TEXT, "too many look at it already\n")
        self._viewers += 1
        try:
            async with asyncio.timeout(_VIEWER_TIMEOUT):
                return await page
        except TimeoutError:
            return Page(503, TEXT, "the store gives no answer\n")
        finally:
            self._viewers -= 1

    async def _user(self, scope: Scope) -> str | None:
        if self._who is None:
            return None
        user = self._who(scope)
        user = await user if inspect.isawaitable(user) else user
        if user is not None and not isinstance(user, str):
            raise TypeError(f"who: a name or None, not {type(user).__name__}")
        return name_of(user or "") or None

    def _gate_of_loop(self) -> PageGate:
        # A loop that has ended runs no shutdown of its own: without this its thread would read on.
        for loop in [one for one in self._sites if one.is_closed()]:
            self._sites.pop(loop)[0].close()
        loop = asyncio.get_running_loop()
        if loop not in self._sites:
            site = PageSite(self._url, self._namespace, self._key)
            names = self._names if self._guarded else None
            self._sites[loop] = (site, PageGate(site.routes(), names, self._cookies))
        return self._sites[loop][1]

    # -- the response ------------------------------------------------------------------------------

    async def _respond(self, page: Page, head: bool, receive: Receive, send: Send) -> None:
        body = page.body.encode() if isinstance(page.body, str) else page.body
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in headers_of(page, len(body)).items()
        ]
        more = page.stream is not None
        # A client that left is told of by an error of `send` in some servers.
        with suppress(OSError):
            await send({"type": "http.response.start", "status": page.status, "headers": headers})
            body = b"" if head else body
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if page.stream is not None:
                await self._follow(page.stream, receive, send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(
        self, stream: AsyncGenerator[bytes, None], receive: Receive, send: Send
    ) -> None:
        """Send the stream until it is long enough, or the client leaves or takes nothing."""
        self._viewers += 1
        # Two tasks: a server tells by `receive` alone that a client left who takes nothing.
        passing = asyncio.create_task(_pass_on(stream, send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait(
                (passing, leaving), timeout=_STREAM_MOST, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._viewers -= 1
            leaving.cancel()
            passing.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            # Awaited after the cancellation: the stream's clean-up says that nobody follows any
            # more.
            (error,) = await asyncio.gather(passing, return_exceptions=True)
        if isinstance(error, Exception):
            raise error


async def _pass_on(stream: AsyncGenerator[bytes, None], send: Send) -> None:
    async with aclosing(stream):
        async for more in stream:
            async with asyncio.timeout(_VIEWER_TIMEOUT):
                await send({"type": "http.response.body", "body": more, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(scope: Scope, receive: Receive) -> HttpRequest | Page | None:
    """The request, or the refusal of its body; None if the client is gone before its end."""
    body, more = b"", scope["method"] == "POST"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > LONGEST_BODY:
            return Page(413, TEXT, "the body is too long\n")
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    query = scope.get("query_string", b"").decode("latin-1")
    text = body.decode("utf-8", "replace")
    return HttpRequest(_path_of(scope), query, scope["method"], headers, text)


def _path_of(scope: Scope) -> str:
    """The path below that of the application, escaped; "" for that one without a slash."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    # Servers and frameworks that follow the newer ASGI have the root in the path, too.
    if root and (path == root or path.startswith(f"{root}/")):
        path = path.removeprefix(root)
    return quote(path)


def _of_header(name: str) -> Who:
    """Who the proxy says it is; nobody if the header came twice, as one may be the client's."""
    wanted = name.encode()

    def who(scope: Scope) -> str | None:
        found = [value for header, value in scope["headers"] if header == wanted]
        return found[0].decode("latin-1") if len(found) == 1 else None

    return who


def _is_local(scope: Scope) -> bool:
    """Whether the request reached the server at a loopback address."""
    host, _ = scope.get("server") or ("", None)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
