"""The documents of the page, and the blocks of rows that change in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2s
from math import inf
from typing import Final, NamedTuple
from urllib.parse import quote

from incumbent.cron.fleet import is_by_the_clock, is_job_name, result_of, schedule_of
from incumbent.cron.ledger import SlotRecord
from incumbent.cron.schedule import find_zone, local_time, slot_id
from incumbent.durations import say_seconds
from incumbent.model import Holding, Record
from incumbent.page.markup import (
    Html,
    Window,
    dots,
    draining,
    joined,
    outages_line,
    safe,
    tag,
    time_line,
    when,
)
from incumbent.page.snapshot import (
    FleetView,
    Job,
    Snapshot,
    TermView,
    events_of,
    fleet_of,
    paused_at,
)
from incumbent.rules.endings import FLAPPING, flapping
from incumbent.rules.notices import PAUSE, RESIGN, read_notice
from incumbent.stores.findings import FREE, UNKNOWN, NameState, asked_to, said_by, said_of, state_of

WINDOWS: Final = {"15m": 900.0, "1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0, "7d": 604_800.0}
DEFAULT_WINDOW: Final = "1h"
_EVENTS_MOST: Final = 60
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


def lasting_blocks(snapshot: Snapshot, fleet: FleetView) -> Blocks:
    """The blocks that do not depend on the window."""
    return {
        "store": list(_store(snapshot, fleet)),
        "leases": [
            _lease(snapshot, record, place, holding)
            for record in fleet.leases
            for place, holding in enumerate(record.holdings or (None,))
        ],
        "jobs": [_job(snapshot, fleet, job) for job in fleet.jobs.values()],
    }


def timed_blocks(snapshot: Snapshot, fleet: FleetView, window: str) -> Blocks:
    """The blocks that depend on the window; `window` is one of WINDOWS."""
    span = Window.ending(snapshot.now, WINDOWS[window])
    return {
        "terms": list(_time_lines(snapshot, fleet, span)),
        "events": [
            _event(snapshot, *event)
            for event in events_of(snapshot, fleet, span.start, _EVENTS_MOST)
        ],
    }


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


def link_to(name: str) -> Html:
    """A link to the page of one name."""
    where = quote(name, safe="/", errors="replace")
    return Html(f'<a href="/name?name={where}">{safe(name)}</a>' if name else "")


def _state(kind: str, words: str) -> Html:
    return Html(f'<span class="state {kind}">{safe(words)}</span>')


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


def _lease(snapshot: Snapshot, record: Record, place: int, holding: Holding | None) -> PageRow:
    name = record.key.name
    id_ = _id("l", name, place)
    state, why = _state_of(snapshot, record)
    waiting = ", ".join(one.holder for one in record.candidates[:5])
    if len(record.candidates) > 5:
        waiting += f" and {len(record.candidates) - 5} more"
    cells: dict[str, object] = {"state": _state(state.partition(" ")[0], state)}
    until = 0.0
    if holding is not None:
        cells |= {"holder": holding.holder, "term": holding.token}
        if holding.held_for is not None:
            cells["since"] = when(snapshot.read_at - holding.held_for, snapshot.now)
        if holding.remaining is not None:
            until = snapshot.read_at + holding.remaining
            left = max(0.0, until - snapshot.now)
            bar = draining(left, holding.ttl or holding.remaining)
            cells["proven until"] = joined((bar, when(until, snapshot.now)))
    notes = "; ".join(_notes(record, why, snapshot.read_at))
    order = ("state", "holder", "term", "since", "proven until")
    cells = {label: cells.get(label, "") for label in order} | {"waiting": waiting, "notes": notes}
    key = (
        state,
        waiting,
        notes,
        round(until / _STILL),
        holding and (holding.holder, holding.token),
    )
    return PageRow(id_, name, key, _cells(id_, name, cells))


def _state_of(snapshot: Snapshot, record: Record) -> NameState:
    if snapshot.problem:
        return NameState(UNKNOWN, "the store gives no answer: what stands here was read before")
    if flaps := flapping(record, snapshot.now):
        return NameState(FLAPPING, str(flaps))
    state = state_of(record, snapshot.grants)
    # Leave out the time left of used slots: the notes show an instant, which stays the same.
    return NameState("not held") if state.word == FREE else state


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


def _time_lines(snapshot: Snapshot, fleet: FleetView, span: Window) -> Iterator[PageRow]:
    marks = (span.start + share * (span.end - span.start) / 4 for share in range(5))
    axis = tag("li", *(when(at, snapshot.now) for at in marks), id="axis", class_="axis")
    yield PageRow("axis", "", axis, axis)
    if snapshot.outages:
        yield _line("", "store", outages_line(snapshot.outages, span))
    for record in fleet.leases:
        yield from _time_line(record, fleet.terms[record.key.name], span)
    for job in fleet.jobs.values():
        yield from _line_of_job(job, span)


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
        "zone": zone,
        "next three": _coming(snapshot, fleet, job, schedule, zone),
        "last 20 slots": _dots(job),
        "last": "",
        "who": last.instance if last else "",
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


# -- whole documents -------------------------------------------------------------------------------


_HEADS: Final = {
    "leases": ("name", "state", "holder", "term", "since", "proven until", "waiting", "notes"),
    "jobs": ("name", "schedule", "zone", "next three", "last 20 slots", "last", "who"),
}
_EVERY: Final = 10
"""Seconds after which a page without JavaScript is loaded again."""


def page(
    snapshot: Snapshot, blocks: Blocks, window: str, search: str, read: Html, edition: str
) -> Html:
    """The page; `search`: only names that contain it are shown, `edition`: that of the blocks."""
    rows = {name: _matching(block, search) for name, block in blocks.items()}
    main = tag(
        "main",
        _section("Store", tag("dl", rows["store"], id="store")),
        _section("Leases", _table("leases", rows["leases"])),
        _section(f"Time line, {window} until now", tag("ul", rows["terms"], id="terms")),
        _section("Jobs", _table("jobs", rows["jobs"])),
        _section("Events", tag("ol", rows["events"], id="events")),
        data_window=window,
        data_edition=edition,
    )
    reload = tag("noscript", tag("meta", http_equiv="refresh", content=_EVERY))
    return _document(snapshot, _header(window, search, read), main, reload)


def _matching(block: Iterable[PageRow], search: str) -> Html:
    low = search.lower()
    return Html("".join(row.html for row in block if not row.name or low in row.name.lower()))


def _header(window: str, search: str, read: Html) -> Html:
    windows = (tag("option", name, value=name, selected=name == window) for name in WINDOWS)
    return tag(
        "header",
        tag("h1", "incumbent"),
        tag(
            "form",
            tag("label", "Names with ", tag("input", name="q", type="search", value=search)),
            tag("label", "Time line ", tag("select", *windows, name="window")),
            tag("button", "Show"),
            tag(
                "button", "Follow live", type="button", id="live", aria_pressed="true", hidden=True
            ),
            role="search",
        ),
        tag("p", "Read ", tag("span", read, id="read")),
        tag("p", "", id="link", role="status"),
    )


def _section(title: str, inside: Html) -> Html:
    id_ = title.partition(",")[0].lower().replace(" ", "-") + "-title"
    return tag("section", tag("h2", title, id=id_), inside, aria_labelledby=id_)


def _table(name: str, rows: Html) -> Html:
    heads = (tag("th", head, scope="col", role="columnheader") for head in _HEADS[name])
    head = tag("thead", tag("tr", *heads, role="row"), role="rowgroup")
    body = tag("tbody", rows, id=name, role="rowgroup")
    return tag("table", head, body, role="table", aria_labelledby=f"{name}-title")


def _document(snapshot: Snapshot, *inside: Html) -> Html:
    *body, extra = inside
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{snapshot.namespace}: incumbent"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href="/page.css"),
        tag("script", src="/page.js", defer=True),
        extra,
    )
    return Html(f"<!doctype html>{tag('html', head, tag('body', *body), lang='en')}")


# -- the page of one name --------------------------------------------------------------------------

_LONGEST: Final = tuple(WINDOWS)[-1]
WISHES: Final = {
    "pause": "Pause: stop the holder, and let nobody take it",
    "unpause": "Unpause: let instances take it again",
    "resign": "Resign: ask the holder to hand over",
    "trigger": "Trigger: run the job once now",
}


def detail(snapshot: Snapshot, blocks: Blocks, name: str, permit: str, done: str) -> Html | None:
    """The page of one name, or None; `permit`: forms send it back, `done`: the wish just made."""
    record = snapshot.record(name)
    if record is None or not is_job_name(name):
        return None
    alone = fleet_of(replace(snapshot, records=(record,)))
    both = blocks | timed_blocks(snapshot, alone, _LONGEST)
    rows = {key: Html("".join(row.html for row in both[key] if row.name == name)) for key in both}
    job = alone.jobs.get(name)
    runs = reversed(job.runs) if job else ()
    shown = [
        tag("p", tag("a", "All leases and jobs", href="/")),
        tag("h1", name),
        tag("p", f"The store was asked to {done} it.", role="status") if done in WISHES else "",
    ]
    shown += [_table(key, rows[key]) for key in ("jobs", "leases") if rows[key]]
    line = tag("ul", rows["terms"], id="terms")
    shown += [_section(f"Time line, {_LONGEST} until now", line)] if rows["terms"] else []
    shown += [_section("Runs", Html("".join(_run(run) for run in runs)))] if rows["jobs"] else []
    shown.append(_section("Events", tag("ol", rows["events"], id="events")))
    if permit:
        wishes = WISHES if rows["jobs"] else [wish for wish in WISHES if wish != "trigger"]
        shown.append(_section("Act", Html("".join(_form(name, wish, permit) for wish in wishes))))
    return _document(snapshot, tag("main", *shown), Html(""))


def _run(run: SlotRecord) -> Html:
    took = "" if run.seconds is None else f" in {say_seconds(run.seconds)}"
    on = f" on {run.instance}" if run.instance else ""
    due = f" (due {slot_id(run.due)})" if not run.slot[:1].isdigit() else ""
    return tag(
        "details",
        tag(
            "summary",
            tag("span", result_of(run), class_=f"state {run.state}"),
            f" {run.slot}{due}{on}{took}",
        ),
        tag("p", run.why) if run.why else "",
        tag("pre", run.output or "no output", tabindex=0),
    )


def _form(name: str, wish: str, permit: str) -> Html:
    reason = tag("label", "why ", tag("input", name="reason", maxlength=200))
    return tag(
        "form",
        tag("input", type="hidden", name="name", value=name),
        tag("input", type="hidden", name="permit", value=permit),
        tag("button", WISHES[wish], name="wish", value=wish),
        "" if wish == "unpause" else reason,
        method="post",
        action="/act",
    )
