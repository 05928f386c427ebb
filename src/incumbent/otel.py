"""Metrics and spans for OpenTelemetry: call `instrument()` once, at the start of the program.

The names are those of docs/metrics.md, with a dot after `incumbent` and without `_total`. Needs
the extra `opentelemetry`, and an SDK of your choice that exports them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from incumbent import clock, meters
from incumbent.meters import METRICS
from incumbent.metrics import families, package_version

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
    from opentelemetry.trace import Tracer, TracerProvider

__all__ = ["instrument"]

_FRESH = 0.1
"""Seconds for which a snapshot is used again: each instrument is read by itself."""


def instrument(
    *, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> None:
    """Report to these providers, or to the global ones.

    Spans: `incumbent.acquire` for each acquire, with its outcome, and `incumbent.job` around the
    function of each run of a job.
    """
    from opentelemetry import metrics, trace

    meter = metrics.get_meter("incumbent", package_version(), meter_provider)
    tracer = trace.get_tracer("incumbent", package_version(), tracer_provider)
    seen = _MetricsSnapshot()
    histograms = {}
    for name, metric in METRICS.items():
        if metric.kind in ("histogram", "summary"):
            # OpenTelemetry has no summaries; a histogram without bounds has the same series.
            histograms[name] = meter.create_histogram(
                _title(name),
                _unit(name),
                metric.help,
                explicit_bucket_boundaries_advisory=metric.bounds,
            )
            continue
        counter = metric.kind == "counter"
        create = meter.create_observable_counter if counter else meter.create_observable_gauge
        create(_title(name), [seen.reader(name)], _unit(name), metric.help)
    meters.listeners.append(_Reporter(histograms, tracer))


def _title(name: str) -> str:
    return name.replace("incumbent_", "incumbent.", 1).removesuffix("_total")


def _unit(name: str) -> str:
    return "s" if "_seconds" in name else METRICS[name].unit


class _MetricsSnapshot:
    """All metrics, read at most `_FRESH` seconds ago."""

    def __init__(self) -> None:
        self._at = -1.0
        self._families: Mapping[str, Any] = {}

    def reader(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return a callback that reads one metric."""
        from opentelemetry.metrics import Observation

        def read(_: CallbackOptions) -> Iterable[Observation]:
            if clock.now() - self._at > _FRESH:
                # The clock is read last: else a snapshot that took long would be old at once.
                self._families, self._at = families(), clock.now()
            series = self._families.get(name, {})
            return [Observation(value, dict(labels)) for (_, labels), value in series.items()]

        return read


class _Reporter:
    """A listener that passes each event on to OpenTelemetry."""

    def __init__(self, histograms: Mapping[str, Histogram], tracer: Tracer) -> None:
        self._histograms = histograms
        self._tracer = tracer

    def observed(self, metric: str, label: str, value: float) -> None:
        name = METRICS[metric].label
        self._histograms[metric].record(value, {name: label} if name else {})

    def acquired(self, name: str, seconds: float, outcome: str) -> None:
        """Make the span now that it is over: a child of the caller's current span."""
        ended = time.time_ns()
        facts = {"incumbent.name": name, "incumbent.outcome": outcome}
        began = ended - int(seconds * 1e9)
        self._tracer.start_span("incumbent.acquire", attributes=facts, start_time=began).end(ended)

    def span(self, name: str, facts: Mapping[str, str | int]) -> AbstractContextManager[object]:
        attributes = {f"incumbent.{key}": value for key, value in facts.items()}
        return self._tracer.start_as_current_span(name, attributes=attributes)
