"""The page of each path. Pure: a page depends on a view alone.

/readyz never asks whether this instance leads: a rolling update stops the old instance only when
the new one is ready, and the old one leads until then.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeAlias

from incumbent import metrics
from incumbent.durations import say_seconds
from incumbent.serve.situation import InstanceView, Situation

OPEN_PATHS: Final = ("/healthz", "/readyz")
"""Paths that need no token: probes send none, and these pages reveal only a yes or no."""
STYLE: Final = "/page.css"
"""The path that the question for the token needs, so it needs no token either."""
JSON: Final = "application/json"
BELOW: Final = "/*"
"""The end of a route for all paths below it."""
TEXT: Final = "text/plain; charset=utf-8"
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class HttpRequest(NamedTuple):
    """A request for a path; `query`: the text after its question mark."""

    path: str
    query: str = ""
    method: str = "GET"
    headers: Mapping[str, str] = {}
    """Values by name in lower case."""
    body: str = ""
    trusted: bool = False
    """Whether the request came with the token, or with the cookie that stands for the token."""
    bearer: bool = False
    """Whether a program sent the token itself, which no foreign page can make a browser do."""
    who: str = ""
    """The name of the token, or the one that the proxy gave; "" if there is none."""

    @property
    def route(self) -> str:
        """The request's key in Routes."""
        return f"POST {self.path}" if self.method == "POST" else self.path

    @property
    def wants_json(self) -> bool:
        """Whether the answer is for a program."""
        accepted = self.headers.get("accept", "")
        return self.path.startswith("/api/") or (JSON in accepted and "text/html" not in accepted)


class Page(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: str | bytes
    headers: Mapping[str, str] = {}
    stream: AsyncGenerator[bytes, None] | None = None
    """Further parts of the body, until either side ends."""


Pending: TypeAlias = Coroutine[Any, Any, Page]
Handler: TypeAlias = Callable[[HttpRequest], "Page | Pending"]
"""Answers requests for one path. It runs in the server's thread, and must not block."""
Routes: TypeAlias = Mapping[str, Handler]
"""Handlers by path, by "POST /path", or by either with BELOW at its end. The paths in OPEN_PATHS
are served without a token."""


def routes_of(situation: Situation) -> dict[str, Handler]:
    """The pages about one instance; each shows the instant of its request."""
    view = situation.view
    return {
        "/healthz": lambda _: healthz(view()),
        "/readyz": lambda _: readyz(view()),
        "/leader": lambda _: leader(view()),
        "/leaderz": lambda _: leaderz(view()),
        "/metrics": lambda _: Page(200, _METRICS_TYPE, metrics.text(situation)),
    }


def answer(routes: Routes, request: HttpRequest) -> Page | Pending:
    """The page that was requested; 404 if there is none."""
    handler = routes.get(find_route(routes, request.route))
    if handler is None:
        pages = ", ".join(route for route in routes if route.startswith("/"))
        return Page(404, TEXT, f"Not found. Pages: {pages}\n")
    return handler(request)


def find_route(routes: Routes, wanted: str) -> str:
    """The route that serves `wanted`; "" if none does."""
    if wanted in routes:
        return wanted
    whole = (route for route in routes if route.endswith(BELOW))
    return next((route for route in whole if wanted.startswith(route[:-1])), "")


def problem(page: Page) -> Page:
    """The page, as JSON if it is a refusal (RFC 9457)."""
    if page.status < HTTPStatus.BAD_REQUEST:
        return page
    said = page.body if isinstance(page.body, str) else page.body.decode()
    title = HTTPStatus(page.status).phrase
    facts = {"title": title, "status": page.status, "detail": said.strip()}
    return page._replace(content_type="application/problem+json", body=json.dumps(facts) + "\n")


def finished(page: Page, request: HttpRequest) -> Page:
    """The page as it answers this request."""
    page = problem(page) if request.wants_json else page
    return page._replace(stream=None) if request.method == "HEAD" else page


def headers_of(page: Page, length: int) -> dict[str, str]:
    """The headers of a page whose body has `length` bytes."""
    return {
        "Content-Type": page.content_type,
        **({"Content-Length": str(length)} if page.stream is None else {}),
        # A proxy that caches /leaderz would send requests to two leaders.
        "Cache-Control": "no-store",
        **_HEADERS_OF.get(page.status, {}),
        **page.headers,
    }


_HEADERS_OF: Final = {401: {"WWW-Authenticate": "Bearer"}, 405: {"Allow": "GET, HEAD"}}


def healthz(view: InstanceView) -> Page:
    """A page that says whether the main loop turns."""
    return _probe(view.healthy, "ok", _overdue(view))


def readyz(view: InstanceView) -> Page:
    """A page that says whether this instance leads or could take over."""
    return _probe(view.ready, "ready", _not_ready(view))


def leader(view: InstanceView) -> Page:
    """The leader, the term and the role of this instance, in JSON."""
    return Page(200, JSON, json.dumps(_leader_facts(view)) + "\n")


def leaderz(view: InstanceView) -> Page:
    """A page that says whether this instance leads."""
    return _probe(view.leading, f"leading, term {view.term}", "not leading")


def _probe(good: bool, yes: str, no: str) -> Page:
    return Page(200 if good else 503, TEXT, f"{yes if good else no}\n")


def _overdue(view: InstanceView) -> str:
    return f"the main loop is overdue for {say_seconds(view.late)}"


def _not_ready(view: InstanceView) -> str:
    if view.role == "stopping":
        return "stopping"
    if not view.healthy:
        return _overdue(view)
    silence = view.unanswered_for
    since = "yet" if silence == float("inf") else f"for {say_seconds(silence)}"
    return f"no answer from the store {since}"


def _leader_facts(view: InstanceView) -> dict[str, Any]:
    until = datetime.fromtimestamp(view.wall + view.proven_for, UTC)
    return {
        "name": view.name,
        "holder": view.holder,
        "role": view.role,
        "leading": view.leading,
        "leader": view.leader,
        "term": view.term if view.leading else None,
        "proven_for": round(view.proven_for, 3),
        "proven_until": until.isoformat(timespec="milliseconds") if view.leading else None,
        "isolation": view.isolation,
    }
