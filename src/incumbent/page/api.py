"""The page's data as JSON, below /api/v1/, for programs. openapi.json describes it. Pure.

Names and values are those of the command line's `--json`, with the faults that the page counts.
Durations are numbers of seconds; instants are RFC 3339 in UTC.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final
from urllib.parse import unquote

from incumbent.durations import utc
from incumbent.page.facts import job_as_json, past_as_json, record_as_json, run_as_json
from incumbent.page.rows import FleetReading
from incumbent.page.snapshot import events_of
from incumbent.page.view import FAULTS, PAGE_OF, SORTS, WINDOWS, NameEntry, View, choose, last_page
from incumbent.rules.endings import endings_of
from incumbent.stores.findings import state_of

BASE: Final = "/api/v1"
DESCRIPTION: Final = f"{BASE}/openapi.json"
_LIMIT: Final = 100
_LIMIT_MOST: Final = 1000
_EVENTS_MOST: Final = 200
_NUMBERS: Final = ("page", "limit")


def look(
    reading: FleetReading, path: str, given: Mapping[str, str], now: float
) -> dict[str, Any] | None:
    """The answer for a path below BASE and a query; None if there is nothing of that name."""
    table, _, name = path.removeprefix(f"{BASE}/").partition("/")
    view = View.of({**given, "name": ""})
    if name and table in PAGE_OF:
        return one(reading, unquote(name), now, table)
    if name:
        return None
    if table == "overview":
        return _enveloped(reading, now, overview(reading))
    if table == "events":
        return _enveloped(reading, now, _events(reading, view))
    if table in PAGE_OF:
        most = min(View.number_in(given.get("limit", "")) or _LIMIT, _LIMIT_MOST)
        shown = View.of({**given, "name": "", table: given.get("page", "")})
        return _enveloped(reading, now, _table(reading, shown, table, most, now))
    return None


def mistake_in(asked: Sequence[tuple[str, str]]) -> str:
    """What is wrong with the fields of a query, for a person; "" if nothing is."""
    choices = {"show": [*FAULTS], "sort": [*SORTS], "window": [*WINDOWS]}
    names = [name for name, _ in asked]
    for key, value in asked:
        if names.count(key) > 1:
            return f"{key[:40]!r} is there twice"
        if key in choices and value not in choices[key]:
            return f"{key}={value[:40]!r}: one of {', '.join(choices[key])}"
        if key in _NUMBERS and View.number_in(value) is None:
            return f"{key}={value[:40]!r}: a number from 1 to 999999"
        if key not in (*choices, *_NUMBERS, "q", "permit"):
            known = ", ".join((*choices, *_NUMBERS, "q"))
            return f"{key[:40]!r} is unknown here: {known}"
    return ""


def whole(reading: FleetReading, view: View, now: float) -> dict[str, Any]:
    """What the page of all names shows in a view."""
    tables = {table: _table(reading, view, table, PAGE_OF[table], now) for table in PAGE_OF}
    events = _events(reading, view)
    return _enveloped(reading, now, {"overview": overview(reading), **tables, "events": events})


def one(reading: FleetReading, name: str, now: float, table: str = "") -> dict[str, Any] | None:
    """What the page of one name shows; None if nothing is known of it in `table`, or at all."""
    for entry in reading.entries:
        if entry.name == name and table in ("", "leases" if entry.job is None else "jobs"):
            return _enveloped(reading, now, _entry(reading, entry, now, whole=True))
    return None


def parts_of(path: str) -> tuple[str, str, str]:
    """The table, the name and the wish in a path below BASE."""
    table, _, rest = path.removeprefix(f"{BASE}/").partition("/")
    name, _, wish = rest.rpartition("/")
    return (table, unquote(name), wish) if table in PAGE_OF else ("", "", "")


def encode(found: Mapping[str, Any]) -> bytes:
    """The answer as JSON; numbers that JSON has no words for become null."""
    try:
        text = json.dumps(found, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(found), parse_constant=lambda _: None))
    return text.encode() + b"\n"


def overview(reading: FleetReading) -> dict[str, Any]:
    """Whether anything is wrong, in numbers and names."""
    snapshot, fleet, entries = reading
    names = {fault: [one.name for one in entries if fault in one.faults] for fault in FAULTS}
    return {
        "store": snapshot.store,
        "answers": not snapshot.problem,
        "problem": snapshot.problem or None,
        "grants": snapshot.grants.word == "free",
        "why": snapshot.grants.why or None,
        "troubles": list(snapshot.troubles),
        "leases": len(fleet.leases),
        "held": sum(1 for record in fleet.leases if record.holdings),
        "jobs": len(fleet.jobs),
        "all_paused": fleet.all_paused,
        "instances": [{"instance": one.instance, "since": utc(one.since)} for one in fleet.up],
        "faults": {fault: len(found) for fault, found in names.items()},
        "names": {fault: found[:_LIMIT] for fault, found in names.items()},
    }


def _enveloped(reading: FleetReading, now: float, result: object) -> dict[str, Any]:
    snapshot = reading.snapshot
    read_at = None if snapshot.read_at == -inf else utc(snapshot.read_at)
    facts = {"namespace": snapshot.namespace, "time": utc(now), "read_at": read_at}
    return {**facts, "result": result}


def _table(reading: FleetReading, view: View, table: str, most: int, now: float) -> dict[str, Any]:
    chosen = choose(reading.entries, view, {table: most})
    rows = chosen.leases if table == "leases" else chosen.jobs
    return {
        "found": chosen.found[table],
        "page": getattr(view, table),
        "pages": last_page(chosen.found[table], most),
        "rows": [_entry(reading, entry, now) for entry in rows],
    }


def _entry(
    reading: FleetReading, entry: NameEntry, now: float, *, whole: bool = False
) -> dict[str, Any]:
    """One name; `whole`: with its past."""
    faults = {"faults": dict(entry.faults)}
    if entry.job is None:
        snapshot = reading.snapshot
        # The word of `status`: what is wrong besides is among the faults.
        state = entry.state if snapshot.problem else state_of(entry.record, snapshot.grants)
        facts = record_as_json(entry.record, state)
        endings = endings_of(entry.record)
        history = [past_as_json(past, endings) for past in entry.record.history] if whole else []
        return facts | faults | ({"history": history} if whole else {})
    gone = entry.name in reading.fleet.gone
    facts = job_as_json(entry.job, now, gone=gone) | {"state": entry.state.word}
    runs = [run_as_json(run) for run in entry.job.runs] if whole else []
    return facts | faults | ({"runs": runs} if whole else {})


def _events(reading: FleetReading, view: View) -> list[dict[str, Any]]:
    snapshot, fleet, entries = reading
    start = snapshot.now - WINDOWS[view.window]
    names = choose(entries, view).names
    return [
        {"time": utc(event.when), "name": event.name, "kind": event.kind, "said": event.words}
        for event in events_of(snapshot, fleet, start, _EVENTS_MOST, names)
    ]
