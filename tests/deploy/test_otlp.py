"""A Collector makes of our OpenTelemetry metrics what the alerts and the dashboard ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from weakref import WeakSet

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import incumbent
from incumbent import meters, metrics, otel
from incumbent.cron.events import JobMetrics
from incumbent.cron.ledger import SlotState
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSpec
from incumbent.meters import METRICS, Sample
from incumbent.runtime import keeper
from incumbent.serve.situation import Situation
from incumbent.stores.members import Members
from tests.deploy.otlp import prometheus_name, series_of
from tests.deploy.watching import alerts, metrics_in, queries
from tests.support.faulty import FaultyEngine

Series = set[tuple[str, frozenset[str]]]
SPEC = JobSpec(name="nightly", schedule=Every(60), command=("true",))


class JobsOfOne:
    def __init__(self) -> None:
        self._numbers = JobMetrics()
        self._numbers.count_run("nightly", SlotState.OK, 2.5, 1000.0)

    def samples(self) -> list[Sample]:
        of_fleet = ("incumbent_jobs", "incumbent_job_runs_running", "incumbent_job_slots_waiting")
        plain = [Sample(name, (), 1) for name in of_fleet]
        return [*plain, *self._numbers.samples([SPEC], 1000.0)]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Series, Series]]:
    """The series that a Collector makes, and those of our own page."""
    monkeypatch.setattr(meters, "on", True)
    monkeypatch.setattr(meters, "listeners", [])
    monkeypatch.setattr(meters, "_providers", {})
    monkeypatch.setattr(keeper, "_keepers", WeakSet())
    meters.reset()
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    otel.instrument(meter_provider=provider)
    leader, jobs = Situation("switch-7", "node-1", is_candidate=True), JobsOfOne()
    members = Members("redis+quorum://a,b,c", ["a", "b", "c"], 2, asks_all=True)
    for one in (leader, jobs, members):
        meters.provide(one)
    with incumbent.Lock("x", store=FaultyEngine()).acquire():
        for name in (meters.RENEWAL, meters.MARGIN):
            meters.observe(name, 0.5)
        data = reader.get_metrics_data()
        text = metrics.text()
    assert data is not None
    exported = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    found: Series = set().union(*map(series_of, exported))
    yield found, set(_series_in(text))
    meters.reset()
    provider.shutdown()


def _series_in(text: str) -> Iterator[tuple[str, frozenset[str]]]:
    for line in text.splitlines():
        if match := re.match(r"(\w+)\{(.*)\} \S+$", line):
            yield match[1], frozenset(re.findall(r'(\w+)="', match[2]))


def test_a_collector_makes_the_series_of_our_own_page(both: tuple[Series, Series]) -> None:
    collected, ours = both
    # A histogram without an observation has no series in OpenTelemetry, and a summary has a bucket.
    assert {name for name, _ in ours} <= {name for name, _ in collected}
    only_there = {name for name, _ in collected} - {name for name, _ in ours}
    assert only_there == {f"{meters.JOB_RUN}_bucket"}
    named = {name for name, _ in ours if not name.endswith("_bucket")}
    assert {it for it in collected if it[0] in named} <= ours


def test_each_alert_and_panel_finds_its_series_behind_a_collector(
    both: tuple[Series, Series],
) -> None:
    collected = {name for name, _ in both[0]}
    for query in (*queries(), *(alert["expr"] for alert in alerts())):
        assert metrics_in(query) <= collected, query


def test_what_is_counted_is_a_unit_in_braces() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"\{[a-z]+\}|1|", metric.unit), name
        if metric.unit == "1":
            # A gauge would be renamed.
            assert name.endswith("_ratio")
            assert metric.kind == "histogram"
        if metric.kind == "counter" and "_seconds" not in name:
            assert metric.unit


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        ("system.filesystem.usage", "By", "gauge", "system_filesystem_usage_bytes"),
        ("system.network.dropped", "{packets}", "gauge", "system_network_dropped"),
        ("system.memory.utilization", "1", "gauge", "system_memory_utilization_ratio"),
        ("system.processes.created", "1", "counter", "system_processes_created_total"),
        ("http.server.duration", "s", "histogram", "http_server_duration_seconds"),
        ("incumbent.leases_held", "1", "gauge", "incumbent_leases_held_ratio"),
    ],
)
def test_the_translation_keeps_the_examples_of_the_collector(
    name: str, unit: str, kind: str, expected: str
) -> None:
    assert prometheus_name(name, unit, kind) == expected
