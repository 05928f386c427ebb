"""What an instance counts of its jobs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import incumbent
from incumbent import clock, meters, metrics
from incumbent.cron.events import JobMetrics
from incumbent.cron.fleet import Presence
from incumbent.cron.ledger import RUN, Ledger, SlotRecord, SlotState, encode
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSpec
from incumbent.errors import StoreUnavailable
from incumbent.model import Field, Key, Record
from incumbent.runtime.link import Link
from incumbent.stores.memory import MemoryEngine
from incumbent.stores.plan import run_blocking as drive
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually

SPEC = JobSpec(name="job", schedule=Every(60), command=("true",))
NAMES = (f"memory:numbers{number}" for number in itertools.count())


def shown(numbers: JobMetrics, now: float = 1000.0) -> dict[tuple[str, ...], float]:
    return {
        (metric.removeprefix("incumbent_job_") + suffix, *(value for _, value in labels)): number
        for metric, labels, number, suffix in numbers.samples([SPEC], now)
    }


def test_a_run_counts_by_its_state_and_with_its_duration() -> None:
    numbers = JobMetrics()
    numbers.count_run("job", SlotState.OK, 2.0, 500.0)
    numbers.count_run("job", SlotState.FAILED, 3.0, 600.0)
    numbers.count_run("job", SlotState.FAILED, None, 700.0)
    found = shown(numbers)
    assert found["runs_total", "job", "ok"] == 1
    assert found["runs_total", "job", "failed"] == 2
    assert found["run_seconds_sum", "job"] == 5
    assert found["run_seconds_count", "job"] == 2
    assert found["last_success_timestamp_seconds", "job"] == 500


def test_missed_slots_count_each_though_one_record_stands_for_them() -> None:
    numbers = JobMetrics()
    numbers.count_record("job", SlotRecord("a", SlotState.MISSED, 100.0, count=7))
    numbers.count_record("job", SlotRecord("b", SlotState.LOST, 200.0))
    found = shown(numbers)
    assert found["runs_total", "job", "missed"] == 7
    assert found["runs_total", "job", "lost"] == 1


def test_every_state_has_a_series_before_its_first_run() -> None:
    found = shown(JobMetrics())
    for state in ("ok", "failed", "timed_out", "lost", "missed", "skipped"):
        assert found["runs_total", "job", state] == 0
    assert ("last_success_timestamp_seconds", "job") not in found


def test_the_next_run_moves_on_and_follows_a_changed_schedule() -> None:
    numbers = JobMetrics()
    assert shown(numbers, 1000.0)["next_run_timestamp_seconds", "job"] == 1020
    assert shown(numbers, 1019.0)["next_run_timestamp_seconds", "job"] == 1020
    assert shown(numbers, 1020.0)["next_run_timestamp_seconds", "job"] == 1080
    daily = replace(SPEC, schedule=Every(86_400))
    assert [it.value for it in numbers.samples([daily], 1020.0)][-1] == 86_400


def test_what_other_instances_ran_is_known_from_the_ledger() -> None:
    numbers = JobMetrics()
    runs = [
        SlotRecord("a", SlotState.OK, 100.0, ended=110.0),
        SlotRecord("b", SlotState.FAILED, 200.0, ended=210.0),
    ]
    fields = {RUN + run.slot: Field(encode(run), 1) for run in runs}
    numbers.learn([SPEC], {"job": Record(Key("n", "job"), fields=fields)})
    assert shown(numbers)["last_success_timestamp_seconds", "job"] == 110


def test_the_jobs_of_an_application_are_shown_with_its_other_numbers() -> None:
    jobs = incumbent.Jobs(store=MemoryEngine(next(NAMES)))
    ran = clock.wall()

    @jobs.every(1, name="measured")
    def measured() -> None:
        pass

    def runs() -> float:
        for line in metrics.text().splitlines():
            if line.startswith('incumbent_job_runs_total{name="measured",state="ok"}'):
                return float(line.rpartition(" ")[2])
        return -1.0

    with jobs:
        eventually(lambda: runs() >= 1)
        assert 'incumbent_job_run_seconds_count{name="measured"}' in metrics.text()
        success = next(
            line
            for line in metrics.text().splitlines()
            if line.startswith('incumbent_job_last_success_timestamp_seconds{name="measured"}')
        )
        assert float(success.rpartition(" ")[2]) >= ran
    assert runs() == -1


def test_a_ledger_that_cannot_be_read_or_written_is_a_store_error() -> None:
    def errors() -> float:
        lines = metrics.text().splitlines()
        of = [line for line in lines if line.startswith("incumbent_store_errors_total")]
        return sum(float(line.rpartition(" ")[2]) for line in of)

    engine = FaultyEngine()
    ledger, before = Ledger(Link(engine).port, Key("n", "job")), errors()
    engine.faulty.down = True
    for ask in (ledger.read(), ledger.record_unrun(SlotRecord("a", SlotState.MISSED, 100.0))):
        with pytest.raises(StoreUnavailable):
            drive(ask)
    assert errors() == before + 2
    engine.faulty.down = False
    drive(ledger.read())
    assert errors() == before + 2


def test_signs_of_life_and_triggers_of_a_fleet_without_a_store_are_store_errors() -> None:
    engine = FaultyEngine()
    presence = Presence(Link(engine), "n", "node-1")
    engine.faulty.down = True
    begun = list(meters.counted())
    with pytest.raises(StoreUnavailable):
        presence.write_sign([SPEC])
    assert list(meters.counted()) != begun
