"""A view as Prometheus text, exposition format 0.0.4. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from incumbent.serve.situation import LOSSES, View

__all__ = ["CONTENT_TYPE", "metrics_text"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

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
