"""What is counted while somebody looks, and that Prometheus reads it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from weakref import WeakSet

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import incumbent
from incumbent import clock, meters, metrics
from incumbent.errors import LeaseLost, NotAcquired, OutcomeUnknown, StoreUnavailable
from incumbent.meters import METRICS, Labels, Sample
from incumbent.protocol.renew import Batches
from incumbent.runtime import keeper
from tests import tiers
from tests.support.faulty import FaultyEngine
from tests.support.pace import took
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
Samples = dict[tuple[str, str], float]


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leases of other tests, which may live on for a while, are not shown."""
    monkeypatch.setattr(meters, "on", True)
    monkeypatch.setattr(keeper, "_keepers", WeakSet())
    meters.reset()
    yield
    meters.reset()


class Told:
    """A provider of what it is told."""

    def __init__(self, *samples: Sample) -> None:
        self._samples = samples

    def samples(self) -> tuple[Sample, ...]:
        return self._samples


LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{{(?P<labels>(?:{LABEL}(?:,{LABEL})*)?)\}} "
    r"(?P<value>[+-]?(?:\d+(?:\.\d+)?(?:e[+-]\d+)?|Inf|NaN))"
)


def read(text: str) -> Samples:
    """Strict: each family once, HELP then TYPE then its samples; no sample twice."""
    found: Samples = {}
    families: set[str] = set()
    expected, helped, kind = "", "", ""
    assert text.endswith("\n")
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            helped, _, words = line.removeprefix("# HELP ").partition(" ")
            assert words
            assert helped not in families
        elif line.startswith("# TYPE "):
            expected, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert expected == helped
            assert kind in {"counter", "gauge", "histogram", "summary"}
            assert (kind == "counter") == expected.endswith("_total")
            families.add(expected)
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            suffixes = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
            assert match["name"].removeprefix(expected) in suffixes.get(kind, ("",))
            assert (match["name"], match["labels"]) not in found
            found[match["name"], match["labels"]] = float(match["value"])
    return found


def now() -> Samples:
    return read(metrics.text())


def transitions(reason: str) -> float:
    return now()["incumbent_lease_transitions_total", f'reason="{reason}"']


def acquires(outcome: str) -> float:
    return now()["incumbent_acquire_seconds_count", f'outcome="{outcome}"']


# -- the text ----------------------------------------------------------------------------------


def test_the_text_keeps_to_the_format_whatever_the_labels_are() -> None:
    odd: Labels = (("job", 'a"b\\c\nd'),)
    found = read(metrics.text(Told(Sample("incumbent_job_run_seconds", odd, 0.000012, "_sum"))))
    assert found["incumbent_job_run_seconds_sum", r'job="a\"b\\c\nd"'] == 0.000012


def test_a_term_is_written_in_full() -> None:
    told = Told(Sample("incumbent_term", (("name", "x"),), 1_790_000_000_000_001))
    assert 'incumbent_term{name="x"} 1790000000000001\n' in metrics.text(told)


def test_numbers_of_one_name_come_together() -> None:
    name = (("name", "x"),)
    leads = Sample("incumbent_is_leader", name, 1)
    stands_by = Sample("incumbent_is_leader", name, 0)
    one, two = (Sample("incumbent_terms_total", name, terms) for terms in (3, 4))
    found = read(metrics.text(Told(leads, one), Told(stands_by, two)))
    assert found["incumbent_is_leader", 'name="x"'] == 1
    assert found["incumbent_terms_total", 'name="x"'] == 7


def test_prometheus_own_client_reads_the_same_numbers_from_the_text_and_the_collector() -> None:
    incumbent.Lock("x", store=FaultyEngine()).acquire().release()
    registry = CollectorRegistry()
    registry.register(metrics.Collector())
    by_collector = generate_latest(registry).decode()
    by_text = metrics.text()

    def values(text: str) -> dict[str, dict[tuple[str, str], float]]:
        return {
            family.name: {
                (sample.name, str(sorted(sample.labels.items()))): sample.value
                for sample in family.samples
            }
            for family in text_string_to_metric_families(text)
        }

    assert values(by_text).keys() == values(by_collector).keys()
    acquires = "incumbent_acquire_seconds"
    assert values(by_text)[acquires] == values(by_collector)[acquires]
    assert len(values(by_text)) > 8


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for name in METRICS:
        assert f"`{name}" in page, name


def test_nothing_is_counted_before_somebody_looks() -> None:
    script = (
        "import sys, incumbent\n"
        "from incumbent import meters\n"
        "incumbent.Lock('x', store='memory:').acquire().release()\n"
        "assert not meters._cells, meters._cells\n"
        "assert 'incumbent.metrics' not in sys.modules\n"
        "import incumbent.metrics\n"
        "incumbent.Lock('x', store='memory:').acquire().release()\n"
        "assert meters._cells\n"
        "assert 'prometheus_client' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_forks_child_has_its_own_numbers() -> None:
    meters.count(meters.RENEWALS)
    pid = os.fork()
    if pid == 0:
        os._exit(len(meters._cells))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_count_of_many_threads_is_lost() -> None:
    def count() -> None:
        for _ in range(20_000):
            meters.count(meters.RENEWALS)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert now()["incumbent_renewals_total", ""] >= 80_000


# -- what is counted ------------------------------------------------------------------------------


def test_a_lease_is_counted_from_its_grant_to_its_release() -> None:
    lock = incumbent.Lock("x", store=FaultyEngine(), ttl=15)
    with lock.acquire():
        found = now()
        assert found["incumbent_leases_held", ""] == 1
        assert 0 < found["incumbent_leases_remaining_min_seconds", ""] <= 15
        assert (transitions("granted"), transitions("released")) == (1, 0)
    assert (transitions("granted"), transitions("released")) == (1, 1)
    assert now()["incumbent_leases_held", ""] == 0
    assert ("incumbent_leases_remaining_min_seconds", "") not in now()
    assert now()["incumbent_acquire_seconds_bucket", 'outcome="granted",le="600.0"'] == 1


def test_every_outcome_of_an_acquire_is_told_from_the_others() -> None:
    engine = FaultyEngine()
    lease = incumbent.Lock("x", store=engine).acquire()
    other = incumbent.Lock("x", store=engine)
    assert other.try_acquire() is None
    with pytest.raises(NotAcquired):
        other.acquire(0.01)
    lease.release()
    assert [acquires(it) for it in ("granted", "refused", "timeout")] == [1, 1, 1]
    assert acquires("unanswered") == acquires("interrupted") == 0


def test_a_waiter_is_counted_while_it_waits() -> None:
    engine = FaultyEngine()

    def wait() -> None:
        incumbent.Lock("x", store=engine).acquire().release()

    before = now()["incumbent_waiters", ""]
    with incumbent.Lock("x", store=engine).acquire():
        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: now()["incumbent_waiters", ""] == before + 1)
    thread.join()
    assert now()["incumbent_waiters", ""] == before


def test_a_loss_is_counted_by_its_reason_and_once() -> None:
    lease = incumbent.Lock("x", store=FaultyEngine()).acquire()
    lease._claim.machine.note_gone("taken")
    lease._claim.machine.note_gone("store_restarted")
    with pytest.raises(LeaseLost):
        lease.release()
    assert (transitions("taken"), transitions("store_restarted")) == (1, 0)


def test_a_renewal_says_how_close_to_the_edge_it_was() -> None:
    with incumbent.Lock("x", store=FaultyEngine(), ttl=15).acquire() as lease:
        lease.renew()
        eventually(lambda: now()["incumbent_renewals_total", ""] >= 1)
        found = now()
        assert found["incumbent_renewal_seconds_count", ""] >= 1
        renewals = found["incumbent_renewal_margin_ratio_count", ""]
        assert renewals >= 1
        assert 0.5 < found["incumbent_renewal_margin_ratio_sum", ""] / renewals <= 1


def test_a_lease_that_at_most_for_ends_is_not_near_the_edge() -> None:
    engine = FaultyEngine()
    short = incumbent.Lock("x", store=engine, grace=0.5, at_most_for=1.0)
    with incumbent.Lock("y", store=engine).acquire() as lease, short.acquire() as ending:
        lease._link.keeper._renew([ending._claim, lease._claim], Batches())
        assert now()["incumbent_renewals_total", ""] >= 1
        assert now()["incumbent_renewal_margin_ratio_bucket", 'le="0.2"'] == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreUnavailable("x"), "unavailable"),
        (OutcomeUnknown("x"), "unknown"),
        (StoreUnavailable("x", permanent=True), "permanent"),
    ],
)
def test_store_errors_are_counted_by_kind(error: incumbent.StoreError, kind: str) -> None:
    meters.failed(error)
    assert now()["incumbent_store_errors_total", f'kind="{kind}"'] >= 1


def test_a_store_that_is_away_is_counted_for_takes_and_renewals() -> None:
    engine = FaultyEngine()
    with incumbent.Lock("x", store=engine).acquire() as lease:
        engine.faulty.down = True
        with pytest.raises(incumbent.StoreError):
            incumbent.Lock("y", store=engine).acquire(0)
        with pytest.raises(StoreUnavailable):
            lease.renew()
        engine.faulty.down = False
    found = now()
    assert found["incumbent_acquire_seconds_count", 'outcome="unanswered"'] == 1
    assert found["incumbent_renewal_failures_total", ""] >= 1
    kinds = [f'kind="{kind}"' for kind in ("unavailable", "unknown")]
    assert sum(found["incumbent_store_errors_total", kind] for kind in kinds) >= 2


def test_an_election_tells_whether_it_leads() -> None:
    election = incumbent.Election("measured", store=FaultyEngine())
    name = 'name="measured"'
    assert now()["incumbent_is_leader", name] == 0
    with election.lead() as term:
        found = now()
        assert found["incumbent_is_leader", name] == 1
        assert found["incumbent_term", name] == term.number
        assert 0 < found["incumbent_lease_remaining_seconds", name] <= 15
    before = now()["incumbent_leaderless_seconds_total", name]
    eventually(lambda: now()["incumbent_leaderless_seconds_total", name] > before)
    assert now()["incumbent_is_leader", name] == 0
    assert now()["incumbent_terms_total", name] == 1


@pytest.mark.left(tiers.LONG)
def test_ten_thousand_leases_are_counted_at_once() -> None:
    engine = FaultyEngine()
    leases = [incumbent.Lock(f"x{number}", store=engine).acquire() for number in range(10_000)]
    began = clock.now()
    text = metrics.text()
    # On a quiet machine it takes 0.05 s: docs/metrics.md. What looks at all for each takes minutes.
    assert took(began) < 10.0
    assert read(text)["incumbent_leases_held", ""] == 10_000
    for lease in leases:
        lease.release()


class Failing:
    """What reports metrics, and fails at each."""

    def observed(self, metric: str, label: str, value: float) -> None:
        raise ValueError(metric)

    def acquired(self, name: str, seconds: float, outcome: str) -> None:
        raise ValueError(name)

    def span(self, name: str, facts: object) -> AbstractContextManager[object]:
        raise ValueError(name)


def test_a_report_that_fails_costs_no_lease_and_no_renewal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meters, "listeners", [Failing()])
    engine = FaultyEngine()
    with incumbent.Lock("x", store=engine, ttl=3).acquire() as lease:
        lease.renew()
        assert lease.valid
    with meters.span("job", name="x"):
        pass
    assert "what reports metrics failed" in caplog.text
    assert "ended by an error" not in caplog.text


class Meddling(Failing):
    """A tracer whose spans swallow what the body raises, or raise an error of their own."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.left: list[object] = []

    @contextmanager
    def span(self, name: str, facts: object) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.left.append(error)
        else:
            self.left.append(None)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("of_its_own", [None, ValueError("the exporter is away")])
def test_the_end_of_a_span_changes_no_outcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, of_its_own: Exception | None
) -> None:
    tracers = [Meddling(of_its_own), Meddling(None)]
    monkeypatch.setattr(meters, "listeners", [tracers[0], Failing(), tracers[1]])
    with meters.span("job", name="x"):
        pass
    failure = RuntimeError("the job's own")
    with pytest.raises(RuntimeError) as raised, meters.span("job", name="x"):
        raise failure
    assert raised.value is failure
    # Each was left, with what came from the body.
    assert [tracer.left for tracer in tracers] == [[None, failure]] * 2
    assert ("the exporter is away" in caplog.text) is (of_its_own is not None)


def test_the_jobs_of_one_process_are_added_up() -> None:
    class Provided:
        def __init__(self, *values: float) -> None:
            self.values = values

        def samples(self) -> list[Sample]:
            counts = [
                Sample(name, (), value) for name, value in zip(names, self.values, strict=True)
            ]
            return [*counts, Sample("incumbent_is_leader", (("name", "x"),), self.values[0])]

    names = ("incumbent_jobs", "incumbent_job_runs_running", "incumbent_job_slots_waiting")
    found = metrics.families(Provided(1, 2, 3), Provided(4, 0, 1))
    assert [found[name]["", ()] for name in names] == [5, 2, 4]
    # A name that two candidates stand for is led if one of them leads.
    assert found["incumbent_is_leader"]["", (("name", "x"),)] == 4
