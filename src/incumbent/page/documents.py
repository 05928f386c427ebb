"""Whole documents: the page, the page of one name, the question for the token. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from incumbent.cron.control import is_job_name
from incumbent.cron.ledger import Run
from incumbent.cron.reading import result_of
from incumbent.cron.schedule import slot_id
from incumbent.durations import say_seconds
from incumbent.page.blocks import WINDOWS, Blocks, Row, timed_blocks
from incumbent.page.markup import Html, tag
from incumbent.page.snapshot import Snapshot, fleet_of

_HEADS: Final = {
    "leases": ("name", "state", "holder", "term", "since", "proven until", "waiting", "notes"),
    "jobs": ("name", "schedule", "zone", "next three", "last 20 slots", "last", "who"),
}
_EVERY: Final = 10
"""Seconds after which a page without JavaScript is loaded again."""


def page(
    snapshot: Snapshot, blocks: Blocks, window: str, search: str, read: Html, edition: str
) -> Html:
    """The page; `search`: what the names that are shown contain, `edition`: names the blocks."""
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


def _matching(block: Iterable[Row], search: str) -> Html:
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
    """All of one name, or None; `permit`: what forms must send back, `done`: what was asked."""
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


def _run(run: Run) -> Html:
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
