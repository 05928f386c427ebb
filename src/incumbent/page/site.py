"""The paths of the page: documents, the stream of changes, and an operator's wish."""

from __future__ import annotations

import asyncio
import hmac
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from importlib.resources import files
from ipaddress import ip_address
from secrets import token_bytes
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from incumbent import clock
from incumbent.cron.fleet import CONTROL, Trigger, is_job_name
from incumbent.errors import ConfigError, LockError
from incumbent.model import ABSENT, Key
from incumbent.page.documents import DEFAULT_WINDOW, WINDOWS, WISHES, detail, page
from incumbent.page.editions import EditionWatch
from incumbent.page.snapshot import SnapshotReader
from incumbent.rules.notices import PAUSE, RESIGN, encode_pause, notice_to
from incumbent.runtime.link import link_for
from incumbent.serve.pages import TEXT, Handler, HttpRequest, Page, Pending
from incumbent.stores.names import make_key

_HTML: Final = "text/html; charset=utf-8"
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
        " img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_WITHIN: Final = 2.0
_REASON_MOST: Final = 200


class PageSite:
    """The page about a namespace of a store, for one listener."""

    def __init__(self, store: str, namespace: str) -> None:
        self._namespace = namespace
        self._reader = SnapshotReader(store, namespace)
        self._watch = EditionWatch(self._reader)
        self._key = token_bytes(16)

    def close(self) -> None:
        """Stop reading the store."""
        self._watch.close()

    def routes(self) -> dict[str, Handler]:
        """The handlers of the pages, and of the wishes, which need the token."""
        return {
            "/": _if_asked_here(self._page),
            "/name": _if_asked_here(self._detail),
            "/events": _if_asked_here(self._events),
            "/page.css": lambda _: _file("page.css", "text/css; charset=utf-8"),
            "/page.js": lambda _: _file("page.js", "text/javascript; charset=utf-8"),
            "POST /act": self._act,
        }

    # -- looking -----------------------------------------------------------------------------------

    async def _page(self, _: HttpRequest, given: Mapping[str, str]) -> Page:
        window = given.get("window", DEFAULT_WINDOW)
        window = window if window in WINDOWS else DEFAULT_WINDOW
        edition = await self._watch.newest(window)
        name = f"{self._watch.boot}-{edition.number}"
        search = given.get("q", "")[:200]
        html = page(edition.snapshot, edition.blocks, window, search, edition.read, name)
        return Page(200, _HTML, html, _HEADERS)

    async def _detail(self, request: HttpRequest, given: Mapping[str, str]) -> Page:
        # After a wish the page must show its effect: read the store again.
        edition = await self._watch.newest(DEFAULT_WINDOW, 0.0 if "done" in given else 1.0)
        permit = self._permit() if request.trusted else ""
        name, done = given.get("name", ""), given.get("done", "")
        html = detail(edition.snapshot, edition.blocks, name, permit, done)
        if html is None:
            return Page(404, TEXT, "nothing is known of this name\n", _HEADERS)
        return Page(200, _HTML, html, _HEADERS)

    async def _events(self, request: HttpRequest, given: Mapping[str, str]) -> Page:
        window = given.get("window", "")
        if window not in WINDOWS:
            return Page(404, TEXT, "no such window\n", _HEADERS)
        last = request.headers.get("last-event-id", given.get("since", ""))
        boot, _, number = last.partition("-")
        known = number.isascii() and number.isdecimal() and boot == self._watch.boot
        stream = self._stream(window, int(number[:18]) if known else 0)
        return Page(200, "text/event-stream", "retry: 2000\n\n", _HEADERS, stream)

    async def _stream(self, window: str, since: int) -> AsyncGenerator[bytes, None]:
        async for edition in self._watch.follow(window, since):
            id_ = f"id: {self._watch.boot}-{edition.number}\n".encode()
            yield id_ + b"data: " + edition.patch(since) + b"\n\n"
            since = edition.number

    # -- doing -------------------------------------------------------------------------------------

    def _permit(self) -> str:
        return hmac.digest(self._key, b"permit", "sha256").hex()

    async def _act(self, request: HttpRequest) -> Page:
        given = dict(parse_qsl(request.body))
        permit = given.get("permit", "").encode()
        if not (request.bearer or hmac.compare_digest(permit, self._permit().encode())):
            return Page(403, TEXT, "open the page of this name anew\n", _HEADERS)
        name, wish = given.get("name", ""), given.get("wish", "")
        reason = "".join(filter(str.isprintable, given.get("reason", "")))[:_REASON_MOST]
        if wish not in WISHES or not is_job_name(name):
            return Page(400, TEXT, f"wish is one of {', '.join(WISHES)}; name is a lease or job\n")
        try:
            key = make_key(self._namespace, name)
            await _in_thread(lambda: self._do(key, wish, reason))
        except ConfigError as error:
            return Page(400, TEXT, f"{error}\n", _HEADERS)
        except LockError as error:
            return Page(503, TEXT, f"not done, or not known: {error}\n", _HEADERS)
        where = "/name?" + urlencode({"name": name, "done": wish})
        return Page(303, TEXT, "", {**_HEADERS, "Location": where})

    def _do(self, key: Key, wish: str, reason: str) -> None:
        store, until = link_for(self._reader.client).store, clock.now() + _WITHIN
        who = f"the page at {os.uname().nodename}"
        if wish == "pause":
            value = encode_pause(who=who, reason=reason, when=clock.wall())
            store.put(key, PAUSE, value, ABSENT, until)
        elif wish == "unpause":
            store.put(key, PAUSE, None, None, until)
        elif wish == "resign":
            if holdings := store.read(key, until).holdings:
                last = max(holdings, key=lambda holding: holding.token)
                store.put(key, RESIGN, notice_to(last, who=who, reason=reason), None, until)
        elif wish == "trigger":
            trigger = Trigger(os.urandom(4).hex(), key.name, clock.wall(), who, reason)
            store.put(Key(key.namespace, CONTROL), trigger.field, trigger.value, None, until)


def _if_asked_here(look: Callable[[HttpRequest, Mapping[str, str]], Pending]) -> Handler:
    """A handler that calls `look` with the query, if the request names a permitted host."""

    def handler(request: HttpRequest) -> Page | Pending:
        if not _is_asked_here(request):
            return Page(403, TEXT, "ask for it by its address, or as localhost\n")
        return look(request, dict(parse_qsl(request.query)))

    return handler


def _is_asked_here(request: HttpRequest) -> bool:
    """Whether the Host is allowed: without a token only localhost or an IP (no DNS rebinding)."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if request.trusted or host == "localhost":
        return True
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


@cache
def _file(name: str, kind: str) -> Page:
    return Page(200, kind, files("incumbent.page").joinpath(name).read_bytes(), _HEADERS)


async def _in_thread(call: Callable[[], None]) -> None:
    """Run `call` in a daemon thread, so that a silent store cannot delay the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            call()
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is awaited
            error = caught
        try:
            loop.call_soon_threadsafe(tell, error)
        except RuntimeError:
            pass  # The listener is closed.

    threading.Thread(target=run, name="incumbent-page-act", daemon=True).start()
    await done
