"""The names that a Collector gives our OpenTelemetry metrics in Prometheus.

The rules are those of "Prometheus and OpenMetrics Compatibility" in OpenTelemetry's specification
(OTLP Metric points to Prometheus), as far as our units need them:

1. What is neither a letter, a digit nor a colon separates words; words are joined by underscores.
2. A unit in braces says what is counted, and is left out. `1` is no unit either, but a gauge with
   it ends in `_ratio`. Another unit is appended in full (`s`: `seconds`), unless it is a word of
   the name.
3. A monotonic sum ends in `_total`.
4. A histogram has the series `_bucket`, `_sum` and `_count`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Gauge, Histogram, Sum

_IN_FULL: Final = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "1": ""}


def prometheus_name(name: str, unit: str, kind: str) -> str:
    """The name in Prometheus; `kind`: counter, gauge or histogram."""
    words = [word for word in re.split(r"[^A-Za-z0-9:]", name) if word]
    suffix = "" if "{" in unit else _IN_FULL.get(unit, unit)
    if suffix and suffix not in words:
        words.append(suffix)
    if kind == "counter":
        words = [*(word for word in words if word != "total"), "total"]
    if kind == "gauge" and unit == "1":
        words = [*(word for word in words if word != "ratio"), "ratio"]
    return "_".join(words)


def series_of(metric: Any) -> set[tuple[str, frozenset[str]]]:
    """Each series of an exported metric: its name, and the names of its labels."""
    data = metric.data
    labels = [frozenset(point.attributes or {}) for point in data.data_points]
    if isinstance(data, Histogram):
        name = prometheus_name(metric.name, metric.unit, "histogram")
        buckets = {(f"{name}_bucket", of_point | {"le"}) for of_point in labels}
        plain = {(name + end, of_point) for end in ("_sum", "_count") for of_point in labels}
        return buckets | plain
    assert isinstance(data, Sum | Gauge), data
    counter = isinstance(data, Sum) and data.is_monotonic
    name = prometheus_name(metric.name, metric.unit, "counter" if counter else "gauge")
    return {(name, of_point) for of_point in labels}
