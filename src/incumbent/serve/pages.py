"""The page of each path. Pure: a view in, a page out.

/readyz never asks whether this instance leads: a rolling update stops the old instance only when
the new one is ready, and the old one leads until then.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

from incumbent.durations import say_seconds
from incumbent.serve.metrics import CONTENT_TYPE, metrics_text
from incumbent.serve.situation import View

__all__ = ["OPEN_PATHS", "PATHS", "TEXT", "Page", "answer"]

OPEN_PATHS: Final = ("/healthz", "/readyz")
"""Probes send no token, and these two reveal nothing but their yes or no."""
PATHS: Final = (*OPEN_PATHS, "/leader", "/leaderz", "/metrics")
TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: str


def answer(path: str, view: View) -> Page:
    """The page of `path`; 404 if there is none."""
    match path:
        case "/healthz":
            return _probe(view.healthy, "ok", _overdue(view))
        case "/readyz":
            return _probe(view.ready, "ready", _not_ready(view))
        case "/leader":
            return Page(200, "application/json", json.dumps(_leader_facts(view)) + "\n")
        case "/leaderz":
            return _probe(view.leading, f"leading, term {view.term}", "not leading")
        case "/metrics":
            return Page(200, CONTENT_TYPE, metrics_text(view, _package_version()))
        case _:
            return Page(404, TEXT, f"Not found. Pages: {', '.join(PATHS)}\n")


def _probe(good: bool, yes: str, no: str) -> Page:
    return Page(200 if good else 503, TEXT, f"{yes if good else no}\n")


def _overdue(view: View) -> str:
    return f"the main loop is overdue for {say_seconds(view.late)}"


def _not_ready(view: View) -> str:
    if view.role == "stopping":
        return "stopping"
    if not view.healthy:
        return _overdue(view)
    silence = view.unanswered_for
    since = "yet" if silence == float("inf") else f"for {say_seconds(silence)}"
    return f"no answer from the store {since}"


def _leader_facts(view: View) -> dict[str, Any]:
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


@cache
def _package_version() -> str:
    try:
        return version("incumbent")
    except PackageNotFoundError:
        return "unknown"
