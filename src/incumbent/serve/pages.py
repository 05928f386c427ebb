"""The page of each path. Pure: a view in, a page out.

/readyz never asks whether this instance leads: a rolling update stops the old instance only when
the new one is ready, and the old one leads until then. /metrics is the text format 0.0.4 of
Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple, TypeAlias

from incumbent.durations import say_seconds
from incumbent.serve.situation import LOSSES, Situation, View

OPEN_PATHS: Final = ("/healthz", "/readyz")
"""Probes send no token, and these two reveal nothing but their yes or no."""
TEXT: Final = "text/plain; charset=utf-8"
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Question(NamedTuple):
    """A GET or HEAD of a path; `query`: what stands after its question mark."""

    path: str
    query: str = ""


class Page(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: str


Handler: TypeAlias = Callable[[Question], Page]
"""Answers one path, in the thread of the server, and does not block."""
Routes: TypeAlias = Mapping[str, Handler]
"""Handlers by path. Those of OPEN_PATHS are asked without a token."""


def routes_of(situation: Situation) -> dict[str, Handler]:
    """The pages about one instance, each of the instant at which it is asked for."""
    look = situation.look
    return {
        "/healthz": lambda _: healthz(look()),
        "/readyz": lambda _: readyz(look()),
        "/leader": lambda _: leader(look()),
        "/leaderz": lambda _: leaderz(look()),
        "/metrics": lambda _: metrics(look()),
    }


def answer(routes: Routes, question: Question) -> Page:
    """The page that was asked for; 404 if there is none."""
    handler = routes.get(question.path)
    if handler is None:
        return Page(404, TEXT, f"Not found. Pages: {', '.join(routes)}\n")
    return handler(question)


def healthz(view: View) -> Page:
    """Whether the main loop turns."""
    return _probe(view.healthy, "ok", _overdue(view))


def readyz(view: View) -> Page:
    """Whether this instance could do its part."""
    return _probe(view.ready, "ready", _not_ready(view))


def leader(view: View) -> Page:
    """Who leads, in JSON."""
    return Page(200, "application/json", json.dumps(_leader_facts(view)) + "\n")


def leaderz(view: View) -> Page:
    """Whether this instance leads."""
    return _probe(view.leading, f"leading, term {view.term}", "not leading")


def metrics(view: View) -> Page:
    """The numbers of this instance, for Prometheus."""
    return Page(200, _METRICS_TYPE, metrics_text(view, _package_version()))


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


# -- metrics -------------------------------------------------------------------------------------

_Labels = dict[str, str]
_Value = Callable[[View], float]

_METRICS: Final[tuple[tuple[str, str, _Value], ...]] = (
    ("leading", "1 while this instance holds the lease with a proof", lambda v: v.leading),
    ("term", "Present or last term of this instance, 0 before the first", lambda v: v.term),
    ("terms_total", "Terms that began here", lambda v: v.terms),
    ("lease_remaining_seconds", "How long the lease is proved", lambda v: v.proven_for),
    ("renewals_total", "Renewals that were proved", lambda v: v.renewals.renewals),
    ("renewal_failures_total", "Renewals without an answer", lambda v: v.renewals.failures),
    ("renewal_seconds", "Duration of the last renewal", lambda v: v.renewals.last_took),
    ("subscription_losses_total", "Lost subscriptions", lambda v: v.subscription_losses),
    ("restarts_total", "Commands that were started again", lambda v: v.restarts),
    ("store_up", "1 if the store answered the last request", lambda v: v.store_up),
)


def metrics_text(view: View, version: str) -> str:
    """All metrics of one instance; `version`: that of the package."""
    name = {"name": view.name}
    families = [_family(key, help_, [(name, value(view))]) for key, help_, value in _METRICS]
    # Every reason has a series before the first loss: rate() misses a series that starts with 1.
    reasons = sorted({*LOSSES, *view.losses})
    losses = [({**name, "reason": reason}, view.losses.get(reason, 0)) for reason in reasons]
    info = {**name, "version": version, "isolation": view.isolation}
    families.append(_family("terms_lost_total", "Terms that were lost, by reason", losses))
    families.append(_family("build_info", "Always 1; the labels name the build", [(info, 1)]))
    return "".join(families)


def _family(key: str, help_: str, samples: Iterable[tuple[_Labels, float]]) -> str:
    name = f"incumbent_{key}"
    kind = "counter" if name.endswith("_total") else "gauge"
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {_format(value)}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _format(value: float) -> str:
    # Integers in full: 1.7e+15 would lose the last digits of a term.
    return str(int(value)) if value == int(value) else repr(float(value))
