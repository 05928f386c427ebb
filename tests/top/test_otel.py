"""Metrics and spans for OpenTelemetry, as its SDK takes them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import incumbent
from incumbent import meters, otel
from incumbent.runtime import keeper
from incumbent.stores.memory import MemoryEngine
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually

NAMES = (f"memory:otel{number}" for number in itertools.count())


class Seen:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.exporter = InMemorySpanExporter()
        self.metrics = MeterProvider([self.reader])
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))

    def points(self, name: str) -> dict[str, Any]:
        """Data points by the value of their label."""
        data = self.reader.get_metrics_data()
        found = [
            metric
            for of_resource in (data.resource_metrics if data else ())
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return {
            str(next(iter((point.attributes or {}).values()), "")): point
            for metric in found
            for point in metric.data.data_points
        }

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    monkeypatch.setattr(meters, "on", True)
    monkeypatch.setattr(meters, "listeners", [])
    monkeypatch.setattr(keeper, "_keepers", WeakSet())
    meters.reset()
    found = Seen()
    otel.instrument(meter_provider=found.metrics, tracer_provider=found.traces)
    yield found
    meters.reset()
    found.metrics.shutdown()
    found.traces.shutdown()


def test_counters_and_gauges_have_the_numbers_of_prometheus(seen: Seen) -> None:
    with incumbent.Lock("x", store=FaultyEngine()).acquire():
        assert seen.points("incumbent.leases_held")[""].value == 1
        assert seen.points("incumbent.lease_transitions")["granted"].value == 1
    eventually(lambda: seen.points("incumbent.leases_held")[""].value == 0)
    assert seen.points("incumbent.lease_transitions")["released"].value == 1


def test_histograms_have_every_event_in_buckets_of_seconds(seen: Seen) -> None:
    for _ in range(3):
        incumbent.Lock("x", store=FaultyEngine()).acquire().release()
    point = seen.points("incumbent.acquire_seconds")["granted"]
    assert point.count >= 3
    assert point.explicit_bounds[0] == 0.0005


def test_an_acquire_is_a_span_of_what_the_caller_is_doing(seen: Seen) -> None:
    engine = FaultyEngine()
    tracer, lock = seen.traces.get_tracer("mine"), incumbent.Lock("x", store=engine)
    with tracer.start_as_current_span("request") as request, lock.acquire():
        assert incumbent.Lock("x", store=engine).try_acquire() is None
    # Those of this test: threads of others may acquire meanwhile.
    granted, refused = (it for it in seen.spans("incumbent.acquire") if it.parent)
    assert granted.parent.span_id == request.get_span_context().span_id
    assert granted.attributes == {"incumbent.name": "x", "incumbent.outcome": "granted"}
    assert refused.attributes["incumbent.outcome"] == "refused"
    assert granted.start_time <= granted.end_time


def test_an_acquire_on_asyncio_is_a_span_too(seen: Seen) -> None:
    async def main() -> None:
        async with incumbent.AsyncLock("traced", store=FaultyEngine()):
            pass

    asyncio.run(main())
    outcomes = {
        span.attributes["incumbent.name"]: span.attributes["incumbent.outcome"]
        for span in seen.spans("incumbent.acquire")
    }
    assert outcomes["traced"] == "granted"


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_a_job_does_is_a_part_of_its_span(seen: Seen, kind: str) -> None:
    jobs = incumbent.Jobs(store=MemoryEngine(next(NAMES)))
    tracer = seen.traces.get_tracer("mine")

    def work() -> None:
        tracer.start_span("query").end()
        raise ValueError("no such invoice")

    async def work_async() -> None:
        work()

    jobs.every(1, name="bill")(work if kind == "function" else work_async)
    with jobs:
        eventually(lambda: seen.spans("incumbent.job"))
    span, query = seen.spans("incumbent.job")[0], seen.spans("query")[0]
    assert query.parent.span_id == span.context.span_id
    assert span.attributes["incumbent.name"] == "bill"
    assert span.attributes["incumbent.attempt"] == 1
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.events[0].attributes["exception.message"] == "no such invoice"
