"""The paths of the page: documents, the stream of changes, and an operator's wish."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from ipaddress import ip_address
from secrets import token_bytes
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from incumbent import clock
from incumbent.cron.fleet import CONTROL, Trigger, is_job_name
from incumbent.errors import ConfigError, LockError
from incumbent.model import ABSENT, Key
from incumbent.page import api
from incumbent.page.documents import LONGEST, WISHES, detail, page
from incumbent.page.editions import EditionWatch, in_thread
from incumbent.page.snapshot import SnapshotReader
from incumbent.page.view import WINDOWS, View
from incumbent.rules.notices import BREAK, PAUSE, RESIGN, encode_pause, notice_to
from incumbent.runtime.link import link_for
from incumbent.serve.pages import JSON, STYLE, TEXT, Handler, HttpRequest, Page, Pending
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
    """The page about a namespace of a store, for one listener.

    `key`: of its forms, if several processes answer at one address.
    """

    def __init__(self, store: str, namespace: str, key: bytes = b"") -> None:
        self._namespace = namespace
        self._reader = SnapshotReader(store, namespace)
        self._watch = EditionWatch(self._reader)
        self._key = key or token_bytes(16)

    def close(self) -> None:
        """Stop reading the store."""
        self._watch.close()

    def routes(self) -> dict[str, Handler]:
        """The handlers of the pages, and of the wishes, which need the token."""
        return {
            "/": _if_asked_here(self._page),
            "/name": _if_asked_here(self._detail),
            "/events": _if_asked_here(self._events),
            STYLE: lambda _: _file("page.css", "text/css; charset=utf-8"),
            "/page.js": lambda _: _file("page.js", "text/javascript; charset=utf-8"),
            "POST /act": self._act,
            api.DESCRIPTION: lambda _: _file("openapi.json", JSON),
            f"{api.BASE}/*": _if_asked_here(self._api),
            f"POST {api.BASE}/*": self._act_by_path,
        }

    # -- looking -----------------------------------------------------------------------------------

    async def _page(self, request: HttpRequest, given: Mapping[str, str]) -> Page:
        view = View.of({**given, "name": ""})
        edition = await self._watch.newest(view)
        if request.wants_json:
            return _answer(api.whole(edition.reading, view, clock.wall()))
        name = f"{self._watch.boot}-{edition.number}"
        html = page(edition.snapshot, edition.blocks, view, edition.read, name)
        return Page(200, _HTML, html, _HEADERS)

    async def _detail(self, request: HttpRequest, given: Mapping[str, str]) -> Page:
        view = View.of({"window": LONGEST, "name": given.get("name", "")})
        # After a wish the page must show its effect: read the store again.
        edition = await self._watch.newest(view, anew="done" in given)
        if request.wants_json:
            return _answer(api.one(edition.reading, view.name, clock.wall()))
        permit = self._permit() if request.trusted else ""
        number = f"{self._watch.boot}-{edition.number}"
        both = (edition.snapshot, edition.blocks)
        html = detail(*both, view, edition.read, number, permit, given.get("done", ""))
        if html is None:
            return Page(404, TEXT, "nothing is known of this name\n", _HEADERS)
        return Page(200, _HTML, html, _HEADERS)

    async def _api(self, request: HttpRequest, given: Mapping[str, str]) -> Page:
        if mistake := api.mistake_in(parse_qsl(request.query, keep_blank_values=True)):
            return Page(400, TEXT, f"{mistake}\n", _HEADERS)
        edition = await self._watch.newest(View())
        found = api.look(edition.reading, request.path, given, clock.wall())
        if found is not None and "permit" in given and request.trusted:
            found["permit"] = self._permit()
        return _answer(found)

    async def _events(self, request: HttpRequest, given: Mapping[str, str]) -> Page:
        if given.get("window", "1h") not in WINDOWS:
            return Page(404, TEXT, "no such window\n", _HEADERS)
        view = View.of(given)
        last = request.headers.get("last-event-id", given.get("since", ""))
        boot, _, number = last.partition("-")
        known = number.isascii() and number.isdecimal() and boot == self._watch.boot
        # Cut: Python refuses to read a number of many thousand digits.
        stream = self._stream(view, int(number[:18]) if known else 0)
        return Page(200, "text/event-stream", "retry: 2000\n\n", _HEADERS, stream)

    async def _stream(self, view: View, since: int) -> AsyncGenerator[bytes, None]:
        async for edition in self._watch.follow(view, since):
            id_ = f"id: {self._watch.boot}-{edition.number}\n".encode()
            yield id_ + b"data: " + edition.patch(since) + b"\n\n"
            since = edition.number

    # -- doing -------------------------------------------------------------------------------------

    def _permit(self) -> str:
        return hmac.digest(self._key, b"permit", "sha256").hex()

    async def _act(self, request: HttpRequest) -> Page:
        given = _given(request)
        done = await self._wish(request, given.get("name", ""), given.get("wish", ""), given)
        if done.status != HTTPStatus.ACCEPTED or request.wants_json:
            return done
        where = "name?" + urlencode({"name": given["name"], "done": given["wish"]})
        return Page(303, TEXT, "", {**_HEADERS, "Location": where})

    async def _act_by_path(self, request: HttpRequest) -> Page:
        table, name, wish = api.parts_of(request.path)
        # Whoever writes a reason into the query means it: better no wish than one without it.
        given = None if request.query else _given_in_json(request)
        return await self._wish(request, name, wish, given, table)

    async def _wish(
        self,
        request: HttpRequest,
        name: str,
        wish: str,
        given: Mapping[str, str] | None,
        table: str = "",
    ) -> Page:
        """Do what is asked; `given`: the fields, or None if the body is not what it should be."""
        permit = (given or {}).get("permit", "").encode("utf-8", "replace")
        # Before the store is asked for anything: a foreign page must not learn what there is.
        if not (request.bearer or hmac.compare_digest(permit, self._permit().encode())):
            return Page(403, TEXT, "open the page of this name anew\n", _HEADERS)
        if refusal := await self._mistake(name, wish, given, table):
            return refusal
        given = given or {}
        # Without control characters: operators read it on terminals, which would obey them.
        reason = "".join(filter(str.isprintable, given.get("reason", "")))[:_REASON_MOST]
        page_of = f"the page at {os.uname().nodename}"
        who = f"{request.who} by {page_of}" if request.who else page_of
        try:
            key = make_key(self._namespace, name)
            await in_thread(lambda: self._do(key, wish, reason, who))
        except ConfigError as error:
            return Page(400, TEXT, f"{error}\n", _HEADERS)
        except LockError as error:
            return Page(503, TEXT, f"not done, or not known: {error}\n", _HEADERS)
        asked = {"name": name, "asked": wish, "who": who, "reason": reason}
        return Page(202, JSON, json.dumps(asked) + "\n", _HEADERS)

    async def _mistake(
        self, name: str, wish: str, given: Mapping[str, str] | None, table: str
    ) -> Page | None:
        """The refusal of a wish that makes no sense."""
        if given is None:
            text = 'without a query, the body is a JSON object: {} or {"reason": "..."}\n'
            return Page(400, TEXT, text, _HEADERS)
        if wish not in WISHES or not is_job_name(name):
            return Page(400, TEXT, f"wish is one of {', '.join(WISHES)}; name is a lease or job\n")
        if table == "jobs" or (table and wish == "trigger"):
            edition = await self._watch.newest(View())
            if table != "jobs" or api.one(edition.reading, name, clock.wall(), table) is None:
                return Page(404, TEXT, f"there is no job {name!r}\n", _HEADERS)
        return None

    def _do(self, key: Key, wish: str, reason: str, who: str) -> None:
        store, until = link_for(self._reader.client).store, clock.now() + _WITHIN
        if wish == "pause":
            value = encode_pause(who=who, reason=reason, when=clock.wall())
            # Only if there is none: who paused it first, and why, stays on record.
            store.put(key, PAUSE, value, ABSENT, until)
        elif wish == "unpause":
            store.put(key, PAUSE, None, None, until)
        elif wish in ("resign", "break"):
            if holdings := store.read(key, until).holdings:
                last = max(holdings, key=lambda holding: holding.token)
                kind = BREAK if wish == "break" else ""
                notice = notice_to(last, who=who, reason=reason, kind=kind)
                store.put(key, RESIGN, notice, None, until)
        elif wish == "trigger":
            trigger = Trigger(os.urandom(4).hex(), key.name, clock.wall(), who, reason)
            store.put(Key(key.namespace, CONTROL), trigger.field, trigger.value, None, until)


def _given(request: HttpRequest) -> dict[str, str]:
    """The fields of a form, or of a body in JSON."""
    if JSON in request.headers.get("content-type", ""):
        return _given_in_json(request) or {}
    return dict(parse_qsl(request.body))


def _given_in_json(request: HttpRequest) -> dict[str, str] | None:
    """The texts of a wish, whatever type the body is said to have; None if it is another thing."""
    try:
        found = json.loads(request.body or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not set(found) <= {"reason", "permit", "name", "wish"}:
        return None
    return found if all(isinstance(value, str) for value in found.values()) else None


def _answer(found: dict[str, Any] | None) -> Page:
    if found is None:
        return Page(404, TEXT, "nothing is known of this; see openapi.json\n", _HEADERS)
    return Page(200, JSON, api.encode(found), _HEADERS)


def _if_asked_here(look: Callable[[HttpRequest, Mapping[str, str]], Pending]) -> Handler:
    """A handler that calls `look` with the query, if the request names a permitted host."""

    def handler(request: HttpRequest) -> Page | Pending:
        if not _is_asked_here(request):
            return Page(403, TEXT, "ask for it by its address, or as localhost\n")
        return look(request, dict(parse_qsl(request.query)))

    return handler


def _is_asked_here(request: HttpRequest) -> bool:
    """Whether the Host is allowed: without a token only localhost or an IP (no DNS rebinding)."""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        return request.trusted or host == "localhost" or bool(ip_address(host))
    except ValueError:
        return False


@cache
def _file(name: str, kind: str) -> Page:
    return Page(200, kind, files("incumbent.page").joinpath(name).read_bytes(), _HEADERS)
