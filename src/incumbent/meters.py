"""The metrics of this process. Nothing is counted before `begin` is called.

Each thread adds to its own cells, so there is no lock. A signal handler, or the child of a fork,
could find a lock taken.
"""

from __future__ import annotations

import logging
from _thread import get_ident
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from weakref import ref

from incumbent.errors import OutcomeUnknown, StoreError

_log = logging.getLogger("incumbent")

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """The definition of a metric. `label`: the label by which this module counts it, or empty."""

    kind: str
    """The type, as Prometheus calls it: counter, gauge, histogram, summary."""
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    """Label values whose series exist from the start: rate() misses the first value of a series."""
    bounds: tuple[float, ...] = ()
    unit: str = ""
    """For OpenTelemetry: what is counted, in braces; 1 for a ratio; empty if the name says it."""


LOSSES: Final = (
    *("expired", "taken", "broken", "paused", "store_restarted", "at_most_for", "forked"),
)
"""The reasons of LeaseLost that end a lease."""
RUN_STATES: Final = ("ok", "failed", "timed_out", "lost", "missed", "skipped")
_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0),
)
_RATIOS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_OUTCOMES: Final = ("granted", "refused", "timeout", "unanswered", "interrupted")

ACQUIRE: Final = "incumbent_acquire_seconds"
TRANSITIONS: Final = "incumbent_lease_transitions_total"
RENEWAL: Final = "incumbent_renewal_seconds"
RENEWALS: Final = "incumbent_renewals_total"
RENEWAL_FAILURES: Final = "incumbent_renewal_failures_total"
MARGIN: Final = "incumbent_renewal_margin_ratio"
WAITERS: Final = "incumbent_waiters"
STORE_ERRORS: Final = "incumbent_store_errors_total"
JOB_RUN: Final = "incumbent_job_run_seconds"
NOTIFICATIONS: Final = "incumbent_notifications_total"

METRICS: Final[dict[str, Metric]] = {
    "incumbent_leases_held": Metric("gauge", "Leases that this process holds", unit="{lease}"),
    "incumbent_leases_unrenewed": Metric(
        "gauge", "Held leases whose last renewal brought no proof", unit="{lease}"
    ),
    "incumbent_leases_remaining_min_seconds": Metric(
        "gauge", "How long the lease that ends first is proved; of held leases only"
    ),
    WAITERS: Metric("gauge", "Calls of this process that wait for a lease", unit="{call}"),
    ACQUIRE: Metric(
        "histogram", "Duration of acquires, waiting included", "outcome", _OUTCOMES, _SECONDS
    ),
    TRANSITIONS: Metric(
        "counter",
        "Leases that were granted, and that ended, by reason",
        "reason",
        ("granted", "released", "unconfirmed", *LOSSES),
        unit="{lease}",
    ),
    RENEWALS: Metric("counter", "Renewals of leases that were proved", unit="{lease}"),
    RENEWAL_FAILURES: Metric("counter", "Renewals of leases without an answer", unit="{lease}"),
    RENEWAL: Metric("histogram", "Duration of requests for renewals", bounds=_SECONDS),
    MARGIN: Metric(
        "histogram",
        "Part of the ttl that was left when a renewal was proved",
        bounds=_RATIOS,
        unit="1",
    ),
    STORE_ERRORS: Metric(
        "counter",
        "Requests without a usable answer",
        "kind",
        ("unavailable", "unknown", "permanent"),
        unit="{request}",
    ),
    "incumbent_subscription_losses_total": Metric(
        "counter", "Lost subscriptions", unit="{subscription}"
    ),
    "incumbent_is_leader": Metric(
        "gauge", "1 while this instance leads with a proof", unit="{leader}"
    ),
    "incumbent_term": Metric("gauge", "Present or last term of this instance, 0 before the first"),
    "incumbent_terms_total": Metric("counter", "Terms that began here", unit="{term}"),
    "incumbent_terms_lost_total": Metric(
        "counter", "Terms that were lost, by reason", unit="{term}"
    ),
    "incumbent_terms_failed_total": Metric(
        "counter", "Terms that ended badly: a failed command, a lost lease", unit="{term}"
    ),
    "incumbent_lease_remaining_seconds": Metric("gauge", "How long the term is proved"),
    "incumbent_leaderless_seconds_total": Metric(
        "counter", "Time in which this candidate knew of no leader"
    ),
    "incumbent_restarts_total": Metric(
        "counter", "Commands that were started again", unit="{command}"
    ),
    "incumbent_store_up": Metric(
        "gauge", "1 if the store answered the last request", unit="{store}"
    ),
    "incumbent_store_member_up": Metric(
        "gauge", "1 if this server of a quorum answers this process", unit="{server}"
    ),
    "incumbent_jobs": Metric("gauge", "Jobs that this instance knows", unit="{job}"),
    "incumbent_job_runs_running": Metric("gauge", "Runs that go on in this instance", unit="{run}"),
    "incumbent_job_slots_waiting": Metric(
        "gauge", "Slots that wait for room in this instance", unit="{slot}"
    ),
    "incumbent_job_runs_total": Metric(
        "counter", "Runs that this instance put on record as over", unit="{run}"
    ),
    JOB_RUN: Metric("summary", "Duration of the runs of this instance", "name"),
    "incumbent_job_last_success_timestamp_seconds": Metric(
        "gauge", "End of the last run that was ok, as this instance knows"
    ),
    "incumbent_job_next_run_timestamp_seconds": Metric("gauge", "The next slot of the schedule"),
    NOTIFICATIONS: Metric(
        "counter",
        "Tries to send webhooks and pings, by outcome",
        "outcome",
        ("sent", "retried", "dropped"),
        unit="{notification}",
    ),
    "incumbent_build_info": Metric("gauge", "Always 1; the labels name the build"),
}
"""All metrics, in the order of display."""


class Sample(NamedTuple):
    """One value of a series, whose name is the metric's name plus `suffix`."""

    metric: str
    labels: Labels
    value: float
    suffix: str = ""


class Provider(Protocol):
    """A source of metrics, such as a candidate."""

    def samples(self) -> Iterable[Sample]:
        """The values at this instant. Called from any thread; must not block."""
        ...


class Listener(Protocol):
    """A receiver of events, called in the thread of each event. Its exceptions are logged."""

    def observed(self, metric: str, label: str, value: float) -> None:
        """A value was added to a histogram or a summary."""
        ...

    def acquired(self, name: str, seconds: float, outcome: str) -> None:
        """An acquire ended."""
        ...

    def span(self, name: str, facts: Mapping[str, str | int]) -> AbstractContextManager[object]:
        """A context manager around a piece of work."""
        ...


on = False
"""Whether anything is counted. Callers in hot paths check this first."""
listeners: list[Listener] = []

_Cell: TypeAlias = dict[tuple[str, str], list[float]]
"""By metric and label: the sum, then for a histogram the count in each bucket."""
_cells: dict[int, _Cell] = {}
# Not a WeakSet, which cannot be read while another thread changes it.
_providers: dict[ref[Provider], None] = {}


def begin() -> None:
    """Count from now on."""
    global on  # noqa: PLW0603 - one process, one set of numbers
    on = True


def provide(provider: Provider) -> None:
    """Show the provider's metrics with those of this process, for as long as it lives."""
    _providers[ref(provider, lambda gone: _providers.pop(gone, None))] = None


def withdraw(provider: Provider) -> None:
    """Stop showing the provider's metrics."""
    _providers.pop(ref(provider), None)


def providers() -> list[Provider]:
    """All providers that are alive."""
    return [found for one in list(_providers) if (found := one()) is not None]


def reset() -> None:
    """Start again from zero, in the child of a fork."""
    _cells.clear()


def count(metric: str, label: str = "", amount: float = 1.0) -> None:
    """Add to a counter, or to a gauge."""
    _series(metric, label)[0] += amount


def observe(metric: str, value: float, label: str = "") -> None:
    """Add to a histogram."""
    series = _series(metric, label)
    # No lock: a cell is written by its own thread alone.
    series[0] += value
    series[bisect_left(METRICS[metric].bounds, value) + 1] += 1.0
    pass_on(metric, value, label)


def pass_on(metric: str, value: float, label: str = "") -> None:
    """Pass a value that this module does not count to the listeners."""
    _notify(lambda listener: listener.observed(metric, label, value))


def acquired(name: str, seconds: float, outcome: str) -> None:
    """Count an acquire that ended."""
    observe(ACQUIRE, seconds, outcome)
    if outcome == "granted":
        count(TRANSITIONS, outcome)
    _notify(lambda listener: listener.acquired(name, seconds, outcome))


@contextmanager
def span(title: str, /, **facts: str | int) -> Iterator[None]:
    """Put the body, a piece of work, in a span of each listener, as the parent of inner spans."""
    with ExitStack() as stack:
        _notify(lambda listener: stack.push(_entered(listener.span(title, facts))))
        yield


def _entered(one: AbstractContextManager[object]) -> Callable[..., None]:
    """Enter a listener's span; the function that leaves it changes nothing for the body."""
    one.__enter__()

    def leave(*raised: Any) -> None:
        try:
            one.__exit__(*raised)
        except Exception:  # noqa: BLE001 - else work that was done would count as failed
            _log.exception("what reports metrics failed")

    return leave


def _notify(call: Callable[[Listener], object]) -> None:
    for listener in listeners:
        try:
            call(listener)
        except Exception:  # noqa: BLE001 - else a granted lease would not reach its caller
            _log.exception("what reports metrics failed")


def failed(error: StoreError) -> None:
    """Count a request without a usable answer."""
    unknown = "unknown" if isinstance(error, OutcomeUnknown) else "unavailable"
    count(STORE_ERRORS, "permanent" if error.permanent else unknown)


@contextmanager
def asking() -> Iterator[None]:
    """Count the body, a request, as failed if it raises StoreError."""
    try:
        yield
    except StoreError as error:
        if on:
            failed(error)
        raise


def _series(metric: str, label: str) -> list[float]:
    """This thread's series. The next thread with a dead one's number continues with its cell."""
    thread, key = get_ident(), (metric, label)
    try:
        return _cells[thread][key]
    except KeyError:
        series = [0.0] * _length(metric)
        return _cells.setdefault(thread, {}).setdefault(key, series)


def _length(metric: str) -> int:
    return len(METRICS[metric].bounds) + 2


# -- reading ---------------------------------------------------------------------------------------


def counted() -> Iterator[Sample]:
    """All counts, summed over the threads."""
    totals: _Cell = {}
    # Copies, each made in one step: other threads add series meanwhile.
    for cell in list(_cells.values()):
        for key, series in list(cell.items()):
            total = totals.get(key, [0.0] * len(series))
            totals[key] = [one + more for one, more in zip(total, series, strict=True)]
    for name in (ACQUIRE, TRANSITIONS, RENEWALS, RENEWAL_FAILURES, RENEWAL, MARGIN, WAITERS):
        yield from _samples(name, totals)
    yield from _samples(STORE_ERRORS, totals)
    yield from _samples(NOTIFICATIONS, totals)


def _samples(name: str, totals: _Cell) -> Iterator[Sample]:
    metric = METRICS[name]
    seen = {label for counted, label in totals if counted == name}
    for label in (*metric.values, *sorted(seen - {*metric.values})) or ("",):
        labels = ((metric.label, label),) if metric.label else ()
        total, *buckets = totals.get((name, label)) or [0.0] * _length(name)
        if not metric.bounds:
            yield Sample(name, labels, total)
            continue
        so_far = 0.0
        for bound, bucket in zip((*metric.bounds, inf), buckets, strict=True):
            so_far += bucket
            le = "+Inf" if bound == inf else repr(bound)
            yield Sample(name, (*labels, ("le", le)), so_far, "_bucket")
        yield Sample(name, labels, total, "_sum")
        yield Sample(name, labels, so_far, "_count")
