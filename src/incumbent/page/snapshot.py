"""The records of a namespace at one instant, their terms and events; pure but for the reader."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from math import inf
from typing import Any, Final, NamedTuple

from incumbent import clock
from incumbent.cron.fleet import (
    CONTROL,
    KNOWN,
    PRESENCE,
    SignOfLife,
    is_job_name,
    jobs_of,
    pause_of,
    read_up,
    result_of,
    runs_in,
    why_and_who,
)
from incumbent.cron.ledger import SlotRecord, read_job
from incumbent.durations import say_seconds
from incumbent.errors import LockError, StoreError
from incumbent.locks.clients import Client
from incumbent.model import Record
from incumbent.policy import TTL_DEFAULT
from incumbent.rules.endings import describe_ending, endings_of
from incumbent.rules.notices import BREAK, PAUSE, RESIGN, read_notice
from incumbent.runtime.link import link_for
from incumbent.stores.findings import FREE, GRANTS, NameState, Verdict, cannot_tell, state_of_store

_SCAN_WITHIN: Final = 5.0
_OUTAGES_MOST: Final = 50
_EXAMINE_EVERY: Final = 15.0
_EXAMINE_WITHIN: Final = 2.0
_FAR: Final = 1e11
"""Seconds from 1970: a number that is larger is no instant."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All records of a namespace, as they were last read. Instants are of our wall clock."""

    store: str
    namespace: str
    now: float
    """The instant of the last request."""
    records: tuple[Record, ...] = ()
    read_at: float = -inf
    """The instant of the last request that was answered."""
    took: float = 0.0
    """Seconds that the last answer took."""
    problem: str = ""
    """Why the store does not answer; "" if it does."""
    grants: NameState = GRANTS
    """The state of a name that nobody holds, as far as it depends on the store alone."""
    troubles: tuple[str, ...] = ()
    """What `doctor` finds wrong with servers of the store, though the store answers."""
    outages: tuple[Span, ...] = ()
    """Spans in which the store gave no answer while somebody looked."""
    asked: float = 0.0
    """`now` on the steady clock, by which its age counts: the wall clock may be set."""

    def record(self, name: str) -> Record | None:
        """The record of one name."""
        return next((record for record in self.records if record.key.name == name), None)


class SnapshotReader:
    """Reads the whole namespace, one snapshot after the other. It connects when it first reads."""

    def __init__(self, store: str, namespace: str) -> None:
        self._store = store
        self._last = Snapshot("", namespace, 0.0)
        self._examined = -inf

    @cached_property
    def client(self) -> Client:
        """A client with connections of its own, so that our reading delays no renewal."""
        return Client(self._store, namespace=self._last.namespace)

    def read(self) -> Snapshot:
        """Read all records; if the store gives no answer, the last ones with the problem."""
        began, wall = clock.now(), clock.wall()
        last = replace(self._last, store=self.client.url, now=wall, asked=began)
        try:
            records = self.client.scan("", _SCAN_WITHIN)
            last = self._examine(last)
        except LockError as error:
            # A failure after a failure is the same outage, and makes it longer.
            since = last.outages[-1][0] if last.problem else wall
            before = last.outages[:-1] if last.problem else last.outages
            outages = (*before, (since, clock.wall()))[-_OUTAGES_MOST:]
            self._last = replace(last, problem=str(error), outages=outages)
        else:
            took = clock.now() - began
            self._last = replace(last, records=records, read_at=wall, took=took, problem="")
        return self._last

    def _examine(self, last: Snapshot) -> Snapshot:
        """`last` with what `doctor` says of the store; asked rarely, and again after trouble."""
        now = clock.now()
        calm = last.grants.word == FREE and not last.problem
        if calm and now - self._examined < _EXAMINE_EVERY:
            return last
        # Before it is asked: a store that is away is asked at the next reading by the records
        # alone.
        self._examined = now
        try:
            engine = link_for(self.client).engine
            findings = engine.diagnose(TTL_DEFAULT, now + _EXAMINE_WITHIN)
        except StoreError as error:
            findings = [cannot_tell(str(error))]
        about_servers = [one for one in findings if not isinstance(one, Verdict)]
        troubles = tuple(what for level, what, _ in about_servers if level == "error")
        return replace(last, grants=state_of_store(findings), troubles=troubles)

    def close(self) -> None:
        """Close the connections."""
        # Looked up, not asked for: that would connect.
        if "client" in vars(self):
            self.client.close()


# -- leases and jobs -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Job:
    """A job, read once from its record: the object stays the same as long as the record does."""

    record: Record
    facts: dict[str, Any]
    runs: list[SlotRecord]

    @property
    def last(self) -> SlotRecord | None:
        """The last run that has not ended, or else the last run."""
        return next(reversed(self.running or self.runs), None)

    @property
    def running(self) -> list[SlotRecord]:
        """The runs that have not ended."""
        return [run for run in self.runs if not run.state.ended]

    @cached_property
    def terms(self) -> tuple[TermView, ...]:
        """The job's runs, as terms."""
        return tuple(_term(run) for run in self.runs if run.started is not None)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The job's runs, as events, oldest first."""
        name = self.record.key.name
        found = ((run.ended or run.started or run.due, run) for run in self.runs)
        events = (Event(at, name, str(run.state), run) for at, run in found)
        return tuple(sorted(events, key=_when))


@dataclass(frozen=True, slots=True)
class FleetView:
    """The jobs and the leases of a snapshot, without the fleet's own records."""

    jobs: dict[str, Job]
    leases: tuple[Record, ...]
    terms: dict[str, tuple[TermView, ...]]
    """The terms of the leases, by name."""
    up: tuple[SignOfLife, ...]
    gone: frozenset[str]
    """Jobs that no instance has."""
    all_paused: bool


def fleet_of(snapshot: Snapshot, before: FleetView | None = None) -> FleetView:
    """The fleet in a snapshot, sorted by name; `before`: the fleet in the snapshot before."""
    by_name = {record.key.name: record for record in snapshot.records}
    old = {} if before is None else before.jobs
    jobs = {}
    for record in sorted(jobs_of(snapshot.records), key=lambda record: record.key.name):
        name = record.key.name
        same = name in old and old[name].record == record
        jobs[name] = old[name] if same else Job(record, read_job(record.fields), runs_in(record))
    names = sorted(name for name in by_name if is_job_name(name) and name not in jobs)
    leases = tuple(by_name[name] for name in names)
    up = read_up(by_name.get(PRESENCE), by_name.get(KNOWN), snapshot.now)
    return FleetView(
        jobs,
        leases,
        {record.key.name: terms_of(record, snapshot.read_at) for record in leases},
        up.instances,
        frozenset(name for name, job in jobs.items() if up.is_gone(job.record)),
        CONTROL in by_name and pause_of(by_name[CONTROL]) is not None,
    )


# -- terms ---------------------------------------------------------------------------------------


class TermView(NamedTuple):
    """One term of a name, or one run of a job. `ends`: the latest instant of its end."""

    began: float
    ends: float
    """inf while it lasts."""
    holder: str
    token: int
    how: str
    """How the term ended, in a word; "" while it lasts."""
    why: str = ""
    """How the term ended, in words, if its instance put that on record."""


def terms_of(record: Record, read_at: float) -> tuple[TermView, ...]:
    """The terms in a record's history and of its present holders, oldest first."""
    notice = read_notice(record.fields[RESIGN].value) if RESIGN in record.fields else {}
    asked = "broken" if notice.get("kind") == BREAK else "resigned"
    held, endings = {holding.token for holding in record.holdings}, endings_of(record)
    past = sorted(record.history, key=lambda one: one.started)
    # Of a term that ended without a word only this is known: the next one began after it.
    followers = [one.started for one in past[1:]] + [read_at]
    found = []
    for one, following in zip(past, followers, strict=False):
        ends, how = max(one.started, following), "expired"
        if one.token in held:
            ends, how = inf, ""
        elif one.ended is not None:
            ends, how = one.ended, asked if one.token == notice.get("token") else "released"
        ending = endings.get(one.token)
        why = "" if ending is None else describe_ending(ending)
        if how == "released" and ending is not None and ending.failed:
            how = "failed"
        found.append(TermView(one.started, ends, one.holder, one.token, how, why))
    known = {one.token for one in past}
    for now in record.holdings:
        if now.token not in known:
            # Rounded: it is computed anew from each reading, and would else be another event each
            # time.
            began = round(read_at - (now.held_for or 0.0))
            found.append(TermView(began, inf, now.holder, now.token, ""))
    return tuple(found)


def _term(run: SlotRecord) -> TermView:
    began = run.started or 0.0
    if run.state.ended:
        return TermView(began, run.ended or began, run.instance, run.token, str(run.state))
    return TermView(began, inf, run.instance, run.token, "")


def paused_at(record: Record) -> float | None:
    """The instant of the pause, if the pause states it."""
    notice = read_notice(record.fields[PAUSE].value) if PAUSE in record.fields else {}
    at: object = notice.get("when")
    return float(at) if isinstance(at, int | float) and abs(at) < _FAR else None


# -- events in words -----------------------------------------------------------------------------


class Event(NamedTuple):
    """An event of a lease or a job, or an outage; `kind` names its mark."""

    when: float
    name: str
    kind: str
    source: TermView | SlotRecord | None
    words: str = ""


def events_of(
    snapshot: Snapshot,
    fleet: FleetView,
    since: float,
    most: int,
    names: Collection[str] | None = None,
) -> list[Event]:
    """The newest events in the records, the newest first; `names`: only of these."""
    found = (event for event in _events(snapshot, fleet, since) if event.when >= since)
    if names is not None:
        found = (event for event in found if event.name in names)
    # Without the source: terms and runs cannot be compared with each other.
    newest = nlargest(most, found, key=lambda event: event[:3])
    return [event._replace(words=event.words or _words(event)) for event in newest]


def _when(event: Event) -> float:
    return event.when


def _events(snapshot: Snapshot, fleet: FleetView, since: float) -> Iterator[Event]:
    """All events after `since`, and some from before."""
    for start, _ in snapshot.outages:
        yield Event(start, "", "down", None, "the store gave no answer to this page")
    for record in (*fleet.leases, *(job.record for job in fleet.jobs.values())):
        at, name = paused_at(record), record.key.name
        if at is not None:
            who = read_notice(record.fields[PAUSE].value).get("who") or "an operator"
            yield Event(at, name, "paused", None, f"paused by {who}")
    for name, terms in fleet.terms.items():
        for term in terms:
            yield Event(term.began, name, "taken", term)
            if term.how:
                yield Event(term.ends, name, term.how, term)
    for job in fleet.jobs.values():
        yield from job.events[bisect_left(job.events, since, key=_when) :]


def _words(event: Event) -> str:
    source = event.source
    if isinstance(source, SlotRecord):
        on = f" on {source.instance}" if source.instance else ""
        why = f": {said}" if (said := why_and_who(source)) else ""
        return f"slot {source.slot} {result_of(source)}{on}{why}"
    if source is None or event.kind == "taken":
        return "" if source is None else f"{source.holder} took it, term {source.token}"
    after = say_seconds(max(0.0, source.ends - source.began))
    words = {
        "released": f" gave it back after {after}",
        "failed": f" gave it back after {after}",
        "broken": f" was broken by an operator after {after}",
        "resigned": f" was asked to end, and gave it back after {after}",
        "expired": " did not give it back: its ttl ran out before this",
    }.get(event.kind, f": {event.kind}")
    return f"{source.holder}{words}" + (f": {source.why}" if source.why else "")
