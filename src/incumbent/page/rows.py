"""The rows of a view, in the blocks of the page in which they change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import blake2s
from math import inf
from typing import Final, NamedTuple
from urllib.parse import quote

from incumbent.cron.fleet import is_by_the_clock, output_said, result_of, schedule_of, why_and_who
from incumbent.cron.ledger import SlotRecord
from incumbent.cron.schedule import find_zone, local_time, slot_id
from incumbent.durations import say_seconds
from incumbent.model import Holding, Record
from incumbent.page.markup import (
    Html,
    Window,
    breakable,
    dots,
    draining,
    joined,
    outages_line,
    safe,
    short,
    tag,
    time_line,
    when,
)
from incumbent.page.snapshot import FleetView, Job, Snapshot, TermView, events_of, paused_at
from incumbent.page.view import (
    FAULTS,
    PAGE_OF,
    WINDOWS,
    Chosen,
    NameEntry,
    View,
    choose,
    due_since,
    last_page,
)
from incumbent.rules.notices import PAUSE, RESIGN, read_notice
from incumbent.stores.findings import FREE, asked_to, said_by, said_of

_EVENTS_MOST: Final = 60
_RUNS_MOST: Final = 100
_STILL: Final = 0.5
"""Seconds by which the end of a proof may differ between two readings and count as the same."""


class PageRow(NamedTuple):
    """An element with an id; it is unchanged as long as its `key` is."""

    id: str
    name: str
    """The lease or job that the row is about, for the search; "" is always shown."""
    key: object
    html: Html


Blocks = dict[str, list[PageRow]]
"""Rows in order, by the id of the element that contains them."""


class FleetReading(NamedTuple):
    """What was read of a fleet, and what can be said of each name; the same for all views."""

    snapshot: Snapshot
    fleet: FleetView
    entries: list[NameEntry]


def blocks_of(reading: FleetReading, view: View) -> Blocks:
    """The blocks of a view."""
    snapshot, fleet, entries = reading
    chosen = choose(entries, view)
    span = Window.ending(snapshot.now, WINDOWS[view.window])
    found = {
        "leases": [
            _lease(snapshot, entry, place, holding)
            for entry in chosen.leases
            for place, holding in enumerate(entry.record.holdings or (None,))
        ],
        "jobs": [_job(snapshot, fleet, entry.job) for entry in chosen.jobs if entry.job],
        "terms": list(_time_lines(snapshot, fleet, span, chosen)),
    }
    events = events_of(snapshot, fleet, span.start, _EVENTS_MOST, chosen.names)
    found["events"] = [_event(snapshot, *event) for event in events]
    if view.name:
        jobs = [entry.job for entry in chosen.jobs if entry.job]
        runs = [run for job in jobs for run in reversed(job.runs[-_RUNS_MOST:])]
        return found | {"runs": [_run(run, snapshot.now) for run in runs]}
    pages = {f"{table}-pages": [_pages(chosen, view, table)] for table in PAGE_OF}
    facets, store = list(_facets(reading, chosen, view)), list(_store(snapshot, fleet))
    return {"facets": facets, "store": store, **found, **pages}


@lru_cache(maxsize=8192)
def _id(block: str, *names: object) -> str:
    listed = "\0".join(map(str, names)).encode("utf-8", "replace")
    return block + blake2s(listed, digest_size=6).hexdigest()


def _cells(id_: str, name: str, cells: Mapping[str, object]) -> Html:
    """A row of a table; the labels are shown where the table becomes a list."""
    shown = [
        f'<td data-label="{label}" role="cell">{safe(inside)}</td>'
        for label, inside in cells.items()
    ]
    return Html(
        f'<tr id="{id_}" data-name="{safe(name)}" role="row"><th scope="row" role="rowheader">'
        f"{link_to(name)}</th>{''.join(shown)}</tr>"
    )


@lru_cache(maxsize=8192)
def link_to(name: str) -> Html:
    """A link to the page of one name."""
    # Relative, because a proxy may serve us below a path of its own.
    where = quote(name, safe="/", errors="replace")
    return Html(f'<a href="name?name={where}">{breakable(name)}</a>' if name else "")


def _state(kind: str, words: str) -> Html:
    return Html(f'<span class="state {kind}">{safe(words)}</span>')


# -- is anything wrong? ----------------------------------------------------------------------------


def _facets(reading: FleetReading, chosen: Chosen, view: View) -> Iterator[PageRow]:
    """The numbers of what is wrong; each leads to the names that it counts."""
    snapshot, fleet, entries = reading
    counts = {"": (len(entries), "leases and jobs")}
    counts |= {fault: (chosen.faults[fault], words) for fault, words in FAULTS.items()}
    for fault, (count, words) in counts.items():
        where = f"./{view.query(show=fault, leases=1, jobs=1)}"
        yield _facet(fault or "all", count, words, where, current=fault == view.show)
    away = snapshot.problem != "" or snapshot.grants.word != FREE
    yield _facet("store", int(away), "store away", "#store")
    yield _facet("members", len(snapshot.troubles), "store members in trouble", "#store")
    up = len(fleet.up)
    if fleet.jobs and not up:
        yield _facet("instances", 1, "no instance of cron is up", "#store")


def _facet(fault: str, count: int, words: str, where: str, *, current: bool = False) -> PageRow:
    kind = "quiet" if not count or fault == "all" else "warn" if fault == "paused" else "bad"
    number = tag("b", count)
    link = tag("a", number, " ", words, href=where, class_=kind, aria_current=current and "true")
    id_ = f"facet-{fault}"
    html = tag("li", link, id=id_)
    return PageRow(id_, "", html, html)


def _pages(chosen: Chosen, view: View, table: str) -> PageRow:
    """Where in a table the view is, with links to the pages beside it."""
    most, number, found = PAGE_OF[table], getattr(view, table), chosen.found[table]
    first, last = (number - 1) * most + 1, min(number * most, found)
    shown = f"{first}–{last} of {found}" if first <= last else f"none of {found}"
    parts: list[object] = [tag("span", shown)]
    for words, other in (("previous", number - 1), ("next", number + 1)):
        if 1 <= other <= last_page(found, most):
            where = f"./{view.query(**{table: other})}#{table}-title"
            parts.append(tag("a", f"{words} {most}", href=where, rel=words[:4]))
    id_ = f"{table}-page"
    html = tag("p", *parts, id=id_, class_="pages")
    return PageRow(id_, "", html, html)


# -- store and leases ------------------------------------------------------------------------------


def _store(snapshot: Snapshot, fleet: FleetView) -> Iterator[PageRow]:
    held = sum(1 for record in fleet.leases if record.holdings)
    who = ", ".join(one.instance for one in fleet.up[:8])
    facts: dict[str, object] = {"state": tag("strong", "answers", class_="good")}
    if snapshot.problem:
        facts["state"] = tag("strong", "gives no answer", class_="bad")
        facts["since"] = when(snapshot.outages[-1][0], snapshot.now)
        facts["why"] = snapshot.problem
    else:
        if snapshot.grants.word != FREE:
            facts["leases"] = tag("strong", said_of(snapshot.grants), class_="bad")
        for number, trouble in enumerate(snapshot.troubles[:8], 1):
            facts[f"trouble {number}"] = tag("strong", trouble, class_="bad")
        facts["round trip"] = f"{1000 * snapshot.took:.0f} ms for all records"
    facts |= {"store": snapshot.store, "namespace": snapshot.namespace}
    facts["leases held"] = f"{held} of {len(fleet.leases)}"
    facts["instances of cron"] = f"{len(fleet.up)} up: {who}" if fleet.up else "none is up"
    if fleet.all_paused:
        facts["jobs"] = "all are paused"
    for name, value in facts.items():
        id_ = f"store-{name.replace(' ', '-')}"
        html = tag("div", tag("dt", name), tag("dd", value), id=id_)
        yield PageRow(id_, "", html, html)


def _lease(snapshot: Snapshot, entry: NameEntry, place: int, holding: Holding | None) -> PageRow:
    name, record = entry.name, entry.record
    id_ = _id("l", name, place)
    state, why = entry.state
    waiting = ", ".join(one.holder for one in record.candidates[:5])
    if len(record.candidates) > 5:
        waiting += f" and {len(record.candidates) - 5} more"
    cells: dict[str, object] = {"state": _state(state.partition(" ")[0], state)}
    until = 0.0
    if holding is not None:
        cells |= {"holder": breakable(holding.holder), "term": short(holding.token)}
        if holding.held_for is not None:
            cells["since"] = when(snapshot.read_at - holding.held_for, snapshot.now)
        if holding.remaining is not None:
            until = snapshot.read_at + holding.remaining
            left = max(0.0, until - snapshot.now)
            bar = draining(left, holding.ttl or holding.remaining)
            cells["proven until"] = joined((bar, when(until, snapshot.now)))
    notes = "; ".join(_notes(record, why, snapshot.read_at))
    order = ("state", "holder", "term", "since", "proven until")
    cells = {label: cells.get(label, "") for label in order}
    cells |= {"waiting": breakable(waiting), "notes": breakable(notes)}
    whose = holding and (holding.holder, holding.token)
    key = (state, waiting, notes, round(until / _STILL), whose)
    return PageRow(id_, name, key, _cells(id_, name, cells))


def _notes(record: Record, why: str, read_at: float) -> Iterator[str]:
    if why:
        yield why
    if PAUSE in record.fields:
        yield f"paused{said_by(record, PAUSE)}"
    for slot, left in record.slots.items():
        end = local_time(read_at + left, find_zone("UTC"))
        yield f"slot {slot}: ran, and is closed until {end:%Y-%m-%d %H:%M:%S}"
    tokens = {holding.token for holding in record.holdings}
    if RESIGN in record.fields and read_notice(record.fields[RESIGN].value).get("token") in tokens:
        yield f"{asked_to(record)}{said_by(record, RESIGN)}"
    if any(holding.foreign for holding in record.holdings):
        yield "the value at its key is not ours"


# -- time line, jobs and events --------------------------------------------------------------------


def _time_lines(
    snapshot: Snapshot, fleet: FleetView, span: Window, chosen: Chosen
) -> Iterator[PageRow]:
    marks = (span.start + share * (span.end - span.start) / 4 for share in range(5))
    axis = tag("li", *(when(at, snapshot.now) for at in marks), id="axis", class_="axis")
    yield PageRow("axis", "", axis, axis)
    if snapshot.outages:
        yield _line("", "store", outages_line(snapshot.outages, span))
    for entry in chosen.leases:
        yield from _time_line(entry.record, fleet.terms[entry.name], span)
    for entry in chosen.jobs:
        if entry.job is not None:
            yield from _line_of_job(entry.job, span)


@lru_cache(maxsize=4096)
def _line_of_job(job: Job, span: Window) -> tuple[PageRow, ...]:
    return tuple(_time_line(job.record, job.terms, span))


def _time_line(record: Record, terms: tuple[TermView, ...], span: Window) -> Iterator[PageRow]:
    paused, name = paused_at(record), record.key.name
    if (paused or 0.0) >= span.start or any(term.ends >= span.start for term in terms):
        yield _line(name, link_to(name), _drawn(terms, span, paused))


_drawn = lru_cache(maxsize=8192)(time_line)


def _line(name: str, shown: object, line: Html) -> PageRow:
    id_ = _id("t", name)
    html = Html(f'<li id="{id_}" data-name="{safe(name)}"><span>{shown}</span>{line}</li>')
    return PageRow(id_, name, html, html)


def _job(snapshot: Snapshot, fleet: FleetView, job: Job) -> PageRow:
    name, facts = job.record.key.name, job.facts
    zone, schedule = str(facts.get("timezone", "UTC")), str(facts.get("schedule", ""))
    last = job.last
    id_ = _id("j", name)
    cells = {
        "schedule": schedule.removesuffix(f" ({zone})"),
        "zone": breakable(zone),
        "next three": _coming(snapshot, fleet, job, schedule, zone),
        "last 20 slots": _dots(job),
        "last": "",
        "who": breakable(last.instance if last else ""),
    }
    if last is not None:
        at = when(last.ended or last.started or last.due, snapshot.now)
        cells["last"] = joined((_state(str(last.state), result_of(last)), " ", at))
    html = _cells(id_, name, cells)
    return PageRow(id_, name, html, html)


@lru_cache(maxsize=4096)
def _dots(job: Job) -> Html:
    return dots(job.runs)


def _coming(snapshot: Snapshot, fleet: FleetView, job: Job, schedule: str, zone: str) -> object:
    if snapshot.problem:
        return _state("cannot", "cannot tell: the store gives no answer")
    if PAUSE in job.record.fields or fleet.all_paused:
        return _state("paused", "paused")
    if job.record.key.name in fleet.gone:
        return _state("cannot", "no instance that is up has it")
    if is_by_the_clock(job.facts) and not fleet.up:
        return _state("cannot", "no instance is up")
    due = due_since(job, snapshot.now)
    if due is not None:
        return joined((_state("late", "late"), " since ", when(due, snapshot.now)))
    # By the minute where that is exact enough: so the cache knows the answer for each reading in
    # it.
    minute = snapshot.now if schedule.startswith("every ") else snapshot.now // 60 * 60
    return ", ".join(next_runs(schedule, zone, minute))


@lru_cache(maxsize=1024)
def next_runs(text: str, zone: str, instant: float) -> tuple[str, ...]:
    """The next three runs, in the time zone of the job."""
    schedule, at = schedule_of(text, zone), instant
    found: list[str] = []
    while schedule is not None and len(found) < 3:
        at = schedule.next_after(at) or inf
        if at == inf:
            break
        moment, today = (local_time(one, find_zone(zone)) for one in (at, instant))
        same = moment.date() == today.date()
        found.append(moment.strftime("%H:%M:%S" if same else "%a %d %b %H:%M"))
    return tuple(found)


def _event(snapshot: Snapshot, at: float, name: str, kind: str, _: object, words: str) -> PageRow:
    id_ = _id("e", at, name, kind, words)
    inside = (when(at, snapshot.now), " ", link_to(name), " ", words)
    return PageRow(id_, name, id_, tag("li", *inside, id=id_, data_name=name, class_=kind))


def _run(run: SlotRecord, now: float) -> PageRow:
    """One run, folded, with its output."""
    id_ = _id("r", run.slot)
    facts = [run.slot]
    facts += [f"(due {slot_id(run.due)})"] if not run.slot[:1].isdigit() else []
    facts += [f"on {run.instance}"] if run.instance else []
    facts += [] if run.seconds is None else [f"in {say_seconds(run.seconds)}"]
    facts += [] if run.code is None else [f"exit {run.code}"]
    facts += [f"attempt {run.attempt}"] if run.attempt > 1 else []
    going = not run.state.ended
    since = joined((" since ", when(run.started or run.due, now))) if going else ""
    html = tag(
        "details",
        tag(
            "summary",
            tag("span", result_of(run), class_=f"state {run.state}"),
            f" {', '.join(facts)}",
            since,
        ),
        tag("p", said) if (said := why_and_who(run)) else "",
        tag("p", output_said(run), when(run.output_seen, now)) if run.output_seen else "",
        tag("pre", run.output or ("no output yet" if going else "no output"), tabindex=0),
        id=id_,
        open=going,
    )
    return PageRow(id_, "", html, html)
