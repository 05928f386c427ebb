"""The metrics of this process: `text()` for Prometheus, `Collector` for prometheus-client.

Importing this module begins the counting. docs/metrics.md explains each metric. The text is in
Prometheus' format 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import TYPE_CHECKING

from incumbent import clock, meters
from incumbent.lease import LeaseState
from incumbent.meters import METRICS, Labels, Provider, Sample
from incumbent.net.subscriptions import subscription_losses
from incumbent.runtime.keeper import renewed_claims

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Collector", "text"]

_Series = dict[tuple[str, Labels], float]
_COUNTS = ("incumbent_jobs", "incumbent_job_runs_running", "incumbent_job_slots_waiting")
"""Gauges that count what each provider has of its own."""
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

meters.begin()


def text(*more: Provider) -> str:
    """All metrics in Prometheus' text format; `more`: providers beside those of this process."""
    lines: list[str] = []
    for name, series in families(*more).items():
        metric = METRICS[name]
        lines += (f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}")
        for (suffix, labels), value in series.items():
            pairs = ",".join(f'{label}="{words.translate(_ESCAPED)}"' for label, words in labels)
            # Whole numbers with all digits: 1.7e+15 would lose the last digits of a term.
            digits = str(int(value)) if value == int(value) else repr(float(value))
            lines.append(f"{name}{suffix}{{{pairs}}} {digits}")
    return "\n".join(lines) + "\n"


class Collector:
    """A collector of prometheus-client: `REGISTRY.register(incumbent.metrics.Collector())`."""

    def collect(self) -> Iterator[Metric]:
        """The metrics at this instant."""
        from prometheus_client.core import Metric

        for name, series in families().items():
            kind = METRICS[name].kind
            found = Metric(name.removesuffix("_total"), METRICS[name].help, kind)
            for (suffix, labels), value in series.items():
                found.add_sample(name + suffix, dict(labels), value)
            yield found

    def describe(self) -> list[Metric]:
        """An empty list, so that a registry collects nothing when this is registered."""
        return []


def families(*more: Provider) -> dict[str, _Series]:
    """The series of each metric that has any, merged from all providers."""
    found: dict[str, _Series] = {name: {} for name in METRICS}
    for provider in (*more, *meters.providers()):
        _gather(found, provider.samples())
    _gather(found, _of_this_process())
    return {name: series for name, series in found.items() if series}


def _gather(found: dict[str, _Series], samples: Iterable[Sample]) -> None:
    for metric, labels, value, suffix in samples:
        series, key = found[metric], (suffix, labels)
        if key not in series:
            series[key] = value
        elif METRICS[metric].kind == "gauge" and metric not in _COUNTS:
            # Two candidates for one name in one process: the process leads if one of them does.
            series[key] = max(series[key], value)
        else:
            series[key] += value


def _of_this_process() -> Iterator[Sample]:
    yield from meters.counted()
    now = clock.now()
    held = [claim for claim in renewed_claims() if claim.machine.state is LeaseState.HELD]
    proved = [left for claim in held if (left := claim.machine.deadline - now) > 0]
    yield Sample("incumbent_leases_held", (), len(proved))
    if proved and (first := min(proved)) < inf:
        yield Sample("incumbent_leases_remaining_min_seconds", (), first)
    yield Sample("incumbent_leases_unrenewed", (), sum(1 for claim in held if claim.failures))
    yield Sample("incumbent_subscription_losses_total", (), subscription_losses())
    yield Sample("incumbent_build_info", (("version", package_version()),), 1)


@cache
def package_version() -> str:
    """The version of the package."""
    try:
        return version("incumbent")
    except PackageNotFoundError:
        return "unknown"
