"""What a view of the page shows: which names, in which order, and what is wrong with them. Pure.

A view is the query of its URL. It is applied here and not in the browser, so that a fleet of any
size sends the rows of one view alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from incumbent.cron.fleet import failure_of, gone_since, is_by_the_clock, schedule_of
from incumbent.model import Record
from incumbent.page.snapshot import FleetView, Job, Snapshot, TermView
from incumbent.rules.endings import FLAPPING, flapping
from incumbent.rules.notices import PAUSE
from incumbent.stores.findings import FREE, HELD, UNKNOWN, NameState, state_of

WINDOWS: Final = {"15m": 900.0, "1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0, "7d": 604_800.0}
DEFAULT_WINDOW: Final = "1h"
FAULTS: Final = {
    "failed": "failed",
    "flapping": "flapping",
    "late": "late",
    "wanted": "wanted, but not held",
    "paused": "paused",
}
"""What can be wrong with a name, the worst first, in words."""
PAGE_OF: Final = {"leases": 25, "jobs": 25}
"""The rows of a table that a view shows at once."""
_SEARCH_MOST: Final = 200
_LATE: Final = 90.0
"""Seconds after a slot after which a job without a run of it is late: instances that look for due
slots, and clocks, may be that much behind."""
_RECENTLY_GONE: Final = 86_400.0


class View(NamedTuple):
    """One view, as its URL names it."""

    window: str = DEFAULT_WINDOW
    show: str = ""
    """One of FAULTS: only the names that have it; "" shows all."""
    q: str = ""
    """Only names that contain it."""
    sort: str = "worst"
    leases: int = 1
    """The number of the page of this table, from 1."""
    jobs: int = 1
    name: str = ""
    """The one name that the view is about; "" for all."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> View:
        """The view of a query; what it does not name, or names wrongly, is as by default."""
        window, sort, show = (given.get(key, "") for key in ("window", "sort", "show"))
        return cls(
            window=window if window in WINDOWS else DEFAULT_WINDOW,
            show=show if show in FAULTS else "",
            q=given.get("q", "")[:_SEARCH_MOST],
            sort=sort if sort in SORTS else "worst",
            leases=cls.number_in(given.get("leases", "")) or 1,
            jobs=cls.number_in(given.get("jobs", "")) or 1,
            name=given.get("name", ""),
        )

    @staticmethod
    def number_in(text: str) -> int | None:
        """The number from 1 to 999999 that a field of a query has, or None."""
        plain = text.isascii() and text.isdecimal() and len(text) < 7
        return (int(text) or None) if plain else None

    def query(self, **changes: Any) -> str:
        """The query of this view with some changes: "" or "?..." without what is by default."""
        wanted, default = self._replace(**changes)._asdict(), View()._asdict()
        named = {key: value for key, value in wanted.items() if value != default[key]}
        return f"?{urlencode(named, errors='replace')}" if named else ""


class NameEntry(NamedTuple):
    """One name of the fleet, with what can be said about it in a word."""

    name: str
    record: Record
    job: Job | None
    state: NameState
    faults: Mapping[str, str]
    """Its faults of FAULTS, each with the reason."""
    since: float
    """The instant of the newest change on record."""


def entries_of(snapshot: Snapshot, fleet: FleetView) -> list[NameEntry]:
    """All names, sorted by name: the leases, then the jobs."""
    return [
        *(_of_lease(snapshot, record, fleet.terms[record.key.name]) for record in fleet.leases),
        *(_of_job(snapshot, fleet, job) for job in fleet.jobs.values()),
    ]


def _of_lease(snapshot: Snapshot, record: Record, terms: Sequence[TermView]) -> NameEntry:
    faults: dict[str, str] = {}
    state, last = state_of(record, snapshot.grants), terms[-1] if terms else None
    if flaps := flapping(record, snapshot.now):
        faults["flapping"] = str(flaps)
        state = NameState(FLAPPING, str(flaps))
    elif state.word == FREE:
        # Leave out the time left of used slots: the notes show an instant, which stays the same.
        state = NameState("not held")
        if last is not None and last.how in ("failed", "expired"):
            why = last.why or ("it was not given back" if last.how == "expired" else "")
            faults["failed"] = f"{last.holder}: {why}" if why else last.holder
            state = NameState(last.how, f"last held by {faults['failed']}")
    if PAUSE in record.fields:
        faults["paused"] = "paused"
    elif record.candidates and not record.holdings and state.word not in ("reserved", UNKNOWN):
        faults["wanted"] = f"{len(record.candidates)} wait, and nobody holds it"
        state = NameState("wanted", faults["wanted"]) if state.word == "not held" else state
    if snapshot.problem:
        why = "the store gives no answer: what stands here was read before"
        state = NameState(UNKNOWN, why)
    since = 0.0 if last is None else last.began if last.how in ("", "expired") else last.ends
    return NameEntry(record.key.name, record, None, state, faults, since)


def _of_job(snapshot: Snapshot, fleet: FleetView, job: Job) -> NameEntry:
    faults, last = dict(_faults_of_job(snapshot, fleet, job)), job.last
    state = NameState("no run yet") if last is None else NameState(str(last.state))
    if job.record.holdings and (last is None or last.state.ended):
        state = NameState(HELD)
    if snapshot.problem:
        state = NameState(UNKNOWN, "the store gives no answer")
    since = (last.ended or last.started or last.due) if last else 0.0
    return NameEntry(job.record.key.name, job.record, job, state, faults, since)


def _faults_of_job(snapshot: Snapshot, fleet: FleetView, job: Job) -> Iterator[tuple[str, str]]:
    if failed := failure_of(job.runs[-3:]):
        yield "failed", failed.why or str(failed.state)
    if flaps := flapping(job.record, snapshot.now):
        yield "flapping", str(flaps)
    if PAUSE in job.record.fields or fleet.all_paused:
        yield "paused", "paused"
        return
    gone, since = job.record.key.name in fleet.gone, gone_since(job.record.fields)
    if gone:
        # A job that was removed is wanted by nobody; whether it was, only time tells.
        if since is None or snapshot.now - since < _RECENTLY_GONE:
            yield "wanted", "no instance that is up has it"
        return
    due = due_since(job, snapshot.now)
    if due is not None:
        yield "late", "a slot is due, and no run of it is on record"


def due_since(job: Job, now: float) -> float | None:
    """The instant of the slot that a job by the clock should have begun by now, and has not."""
    if not is_by_the_clock(job.facts) or (job.runs and not job.runs[-1].state.ended):
        return None
    seen = [run.due for run in job.runs[-3:] if abs(run.due) < now + 1e9]
    known = job.facts.get("since")
    seen += [float(known)] if isinstance(known, int | float) and known > 0 else []
    jitter = job.facts.get("jitter")
    allowed = _LATE + (float(jitter) if isinstance(jitter, int | float) else 0.0)
    if not seen:
        return None
    text, zone = str(job.facts.get("schedule", "")), str(job.facts.get("timezone", "UTC"))
    due = _next_after(text, zone, max(seen))
    return due if due is not None and now > due + allowed else None


@lru_cache(maxsize=4096)
def _next_after(text: str, zone: str, instant: float) -> float | None:
    schedule = schedule_of(text, zone)
    return None if schedule is None else schedule.next_after(instant)


# -- choosing --------------------------------------------------------------------------------------

_KINDS: Final = tuple(FAULTS)
_CALM: Final = {HELD: 0, "running": 0, "waiting": 0, "reserved": 0, "closed": 0, "ok": 1}


def _badness(entry: NameEntry) -> tuple[int, str]:
    worst = min((_KINDS.index(fault) for fault in entry.faults), default=len(_KINDS))
    return worst if entry.faults else worst + _CALM.get(entry.state.word, 2), entry.name


SORTS: Final[dict[str, Callable[[NameEntry], Any]]] = {
    "worst": _badness,
    "name": lambda entry: entry.name,
    "newest": lambda entry: (-entry.since, entry.name),
}
"""The orders of a view."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rows of a view."""

    leases: list[NameEntry]
    jobs: list[NameEntry]
    found: Mapping[str, int]
    """By table: the number of names on all pages of the view."""
    names: frozenset[str] | None
    """The names on all pages of the view; None for the whole fleet."""
    faults: Counter[str]
    """The number of names with each fault, in the whole fleet."""


def choose(entries: Sequence[NameEntry], view: View, most: Mapping[str, int] = PAGE_OF) -> Chosen:
    """The names that a view shows, in its order; `most`: rows of a page, by table."""
    faults = Counter(fault for entry in entries for fault in entry.faults)
    matching = [entry for entry in entries if _matches(entry, view)]
    matching.sort(key=SORTS[view.sort])
    leases = [entry for entry in matching if entry.job is None]
    jobs = [entry for entry in matching if entry.job is not None]
    found = {"leases": len(leases), "jobs": len(jobs)}
    narrow = bool(view.show or view.q or view.name)
    names = frozenset(entry.name for entry in matching) if narrow else None
    return Chosen(
        _page_of(leases, view.leases, most.get("leases", 0)),
        _page_of(jobs, view.jobs, most.get("jobs", 0)),
        found,
        names,
        faults,
    )


def _matches(entry: NameEntry, view: View) -> bool:
    if view.name:
        return entry.name == view.name
    wanted = not view.show or view.show in entry.faults
    return wanted and view.q.lower() in entry.name.lower()


def _page_of(found: list[NameEntry], number: int, most: int) -> list[NameEntry]:
    return found[(number - 1) * most : number * most]


def last_page(found: int, most: int) -> int:
    """The number of the last page of `found` rows."""
    return max(1, -(-found // most))
