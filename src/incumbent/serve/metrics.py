"""A view as Prometheus text, exposition format 0.0.4. Pure.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from incumbent.serve.situation import LOSSES, View

__all__ = ["CONTENT_TYPE", "metrics_text"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_Labels = dict[str, str]
_Samples = Iterable[tuple[_Labels, float]]


def metrics_text(view: View, version: str) -> str:
    """All metrics of one instance; `version`: that of the package."""
    return "".join(
        line
        for name, kind, words, samples in _families(view, version)
        for line in _family(f"incumbent_{name}", kind, words, samples)
    )


def _families(view: View, version: str) -> Iterator[tuple[str, str, str, _Samples]]:
    def one(value: float) -> _Samples:
        return [({"name": view.name}, value)]

    yield (
        "leading",
        "gauge",
        "1 while this instance holds the lease with a proof",
        one(view.leading),
    )
    yield (
        "term",
        "gauge",
        "Present or last term of this instance, 0 before the first",
        one(view.term),
    )
    yield "terms_total", "counter", "Terms that began here", one(view.terms)
    yield "terms_lost_total", "counter", "Terms that were lost, by reason", _losses(view)
    yield (
        "lease_remaining_seconds",
        "gauge",
        "For how long the lease is proved, 0 when it is not",
        one(view.proven_for),
    )
    yield "renewals_total", "counter", "Renewals that were proved", one(view.renewals)
    yield (
        "renewal_failures_total",
        "counter",
        "Renewals that brought no proof",
        one(view.renewal_failures),
    )
    yield "renewal_seconds", "gauge", "How long the last renewal took", one(view.renewal_took)
    yield (
        "subscription_losses_total",
        "counter",
        "Connections by which this process waits that were lost or could not be had",
        one(view.subscription_losses),
    )
    yield "restarts_total", "counter", "Commands that were started again", one(view.restarts)
    yield (
        "store_up",
        "gauge",
        "1 if the last question to the store was answered",
        one(view.store_up),
    )
    info = {"name": view.name, "version": version, "isolation": view.isolation}
    yield "build_info", "gauge", "Always 1; its labels tell what runs", [(info, 1)]


def _losses(view: View) -> _Samples:
    # Series exist before the first loss: a rate over one that appears with 1 would miss it.
    for reason in sorted({*LOSSES, *view.losses}):
        yield {"name": view.name, "reason": reason}, view.losses.get(reason, 0)


def _family(name: str, kind: str, words: str, samples: _Samples) -> Iterator[str]:
    yield f"# HELP {name} {words}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        pairs = ",".join(f'{key}="{_escaped(said)}"' for key, said in labels.items())
        yield f"{name}{{{pairs}}} {_number(value)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    # Integers in full: a term as 1.7e+15 would have lost its last digits.
    return str(int(value)) if value == int(value) else repr(float(value))
