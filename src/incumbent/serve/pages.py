"""What each path answers. Pure: a view in, a page out.

/readyz never asks who leads: a rolling update waits for the new instance to be ready, and the old
one would lead until then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from incumbent.durations import say_seconds
from incumbent.serve.metrics import CONTENT_TYPE, metrics_text
from incumbent.serve.situation import View

__all__ = ["OPEN_PATHS", "PATHS", "Page", "answer", "leader_facts", "say_instant", "summary"]

OPEN_PATHS: Final = ("/healthz", "/readyz")
"""Probes send no token, and these two tell a stranger nothing."""

_TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: str


def answer(path: str, view: View, version: str) -> Page:
    """The page of `path`; 404 for one that there is not."""
    if path == "/metrics":
        return Page(200, CONTENT_TYPE, metrics_text(view, version))
    page = _PAGES.get(path)
    if page is None:
        return Page(404, _TEXT, f"there are {', '.join(PATHS)}\n")
    return page(view)


def leader_facts(view: View) -> dict[str, Any]:
    """What /leader says; `proven_for` in seconds, `proven_until` on the wall clock for people."""
    return {
        "name": view.name,
        "holder": view.holder,
        "role": view.role,
        "leading": view.leading,
        "leader": view.leader,
        "term": view.term if view.leading else None,
        "proven_for": round(view.proven_for, 3),
        "proven_until": say_instant(view.wall + view.proven_for) if view.leading else None,
        "isolation": view.isolation,
    }


def say_instant(wall: float) -> str:
    """Seconds since 1970 as UTC text with milliseconds."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


def summary(view: View) -> str:
    """The situation in one line."""
    if view.role == "stopping":
        return f"stopping; {view.name} is still held" if view.leading else "stopping"
    if view.leading:
        return f"leading {view.name}, term {view.term}"
    if not view.store_up and view.role != "starting":
        return "no leader here: the store gives no answer"
    return _WORDS.get(view.role, view.role) + (f", led by {view.leader}" if view.leader else "")


_WORDS: Final = {
    "standby": "standing by",
    "leading": "the lease is no longer proved, the work is being stopped",
    "backing_off": "standing again soon",
    "ended": "the term ended",
}


def _healthz(view: View) -> Page:
    if view.healthy:
        return Page(200, _TEXT, "ok\n")
    return Page(503, _TEXT, f"the main loop is overdue for {say_seconds(view.late)}\n")


def _readyz(view: View) -> Page:
    if view.ready:
        return Page(200, _TEXT, "ready\n")
    if view.role == "stopping":
        return Page(503, _TEXT, "stopping\n")
    if not view.healthy:
        return _healthz(view)
    return Page(503, _TEXT, f"no answer from the store {_since(view)}\n")


def _since(view: View) -> str:
    if view.unheard_for == float("inf"):
        return "yet"
    return f"for {say_seconds(view.unheard_for)}"


def _leader(view: View) -> Page:
    return Page(200, "application/json", json.dumps(leader_facts(view)) + "\n")


def _leaderz(view: View) -> Page:
    if view.leading:
        return Page(200, _TEXT, f"leading, term {view.term}\n")
    return Page(503, _TEXT, "not leading\n")


_PAGES: Final[dict[str, Callable[[View], Page]]] = {
    "/healthz": _healthz,
    "/readyz": _readyz,
    "/leader": _leader,
    "/leaderz": _leaderz,
}
PATHS: Final = (*_PAGES, "/metrics")
