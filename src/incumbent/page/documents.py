"""The documents of the page: of the whole fleet, and of one name. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from incumbent.cron.fleet import is_job_name
from incumbent.page.markup import Html, breakable, joined, tag
from incumbent.page.rows import Blocks, PageRow
from incumbent.page.snapshot import Snapshot
from incumbent.page.view import FAULTS, SORTS, WINDOWS, View

LONGEST: Final = tuple(WINDOWS)[-1]
"""The window of the page of one name."""
WISHES: Final = {
    "pause": "Pause: stop the holder, and let nobody take it",
    "unpause": "Unpause: let instances take it again",
    "resign": "Resign: ask the holder to hand over",
    "break": "Break: stop the holder's work",
    "trigger": "Trigger: run the job once now",
}
_OF_A_JOB: Final = {"trigger": "Run again: once, now", "break": "Cancel: stop the run"}
_HEADS: Final = {
    "leases": ("name", "state", "holder", "term", "since", "proven until", "waiting", "notes"),
    "jobs": ("name", "schedule", "zone", "next three", "last 20 slots", "last", "who"),
}
_EVERY: Final = 10
"""Seconds after which a page without JavaScript is loaded again."""


def page(snapshot: Snapshot, blocks: Blocks, view: View, read: Html, edition: str) -> Html:
    """The page of all names of a view; `edition`: that of the blocks."""
    rows = {name: _all(block) for name, block in blocks.items()}
    terms = tag("ul", rows["terms"], id="terms")
    main = tag(
        "main",
        tag("ul", rows["facets"], id="facets", aria_label="Is anything wrong?"),
        _section("Store", tag("dl", rows["store"], id="store")),
        _section("Leases", _table("leases", rows["leases"]), rows["leases-pages"]),
        _section("Jobs", _table("jobs", rows["jobs"]), rows["jobs-pages"]),
        _section(f"Time line, {view.window} until now", terms),
        _section("Events", tag("ol", rows["events"], id="events")),
        data_view=view.query(),
        data_edition=edition,
    )
    reload = tag("noscript", tag("meta", http_equiv="refresh", content=_EVERY))
    return _document(snapshot, _header(view, read), main, reload)


def _all(block: Iterable[PageRow]) -> Html:
    return Html("".join(row.html for row in block))


def _header(view: View, read: Html) -> Html:
    sections = ("Store", "Leases", "Jobs", "Time line", "Events")
    links = (tag("a", name, href=f"#{_title_id(name)}") for name in sections)
    shown = {"": "all", **FAULTS}
    sorts, windows = ({one: one for one in names} for names in (SORTS, WINDOWS))
    return tag(
        "header",
        tag("h1", tag("a", "incumbent", href="./")),
        tag("nav", joined(links), aria_label="Sections"),
        tag(
            "form",
            tag("label", "Names with ", tag("input", name="q", type="search", value=view.q)),
            tag("label", "Show ", _choice("show", shown, view.show)),
            tag("label", "Sort ", _choice("sort", sorts, view.sort)),
            tag("label", "Time line ", _choice("window", windows, view.window)),
            tag("button", "Show"),
            _live(),
            role="search",
        ),
        _followed(read),
    )


def _choice(name: str, words: dict[str, str], chosen: str) -> Html:
    options = (
        tag("option", text, value=one, selected=one == chosen) for one, text in words.items()
    )
    return tag("select", *options, name=name)


def _live() -> Html:
    words, pressed = "Follow live", "true"
    return tag("button", words, type="button", id="live", aria_pressed=pressed, hidden=True)


def _followed(read: Html) -> Html:
    zone = tag("span", "UTC", id="zone")
    return joined(
        (
            tag("p", "Read ", tag("span", read, id="read"), ". Times are ", zone, "."),
            tag("p", "", id="link", role="status"),
        )
    )


def _title_id(title: str) -> str:
    return title.partition(",")[0].lower().replace(" ", "-") + "-title"


def _section(title: str, *inside: Html) -> Html:
    """A part of the page that can be folded."""
    head = tag("summary", tag("h2", title, id=_title_id(title)))
    return tag(
        "section", tag("details", head, *inside, open=True), aria_labelledby=_title_id(title)
    )


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
        tag("link", rel="stylesheet", href="page.css"),
        tag("script", src="page.js", defer=True),
        extra,
    )
    return Html(f"<!doctype html>{tag('html', head, tag('body', *body), lang='en')}")


# -- the page of one name --------------------------------------------------------------------------


def detail(
    snapshot: Snapshot, blocks: Blocks, view: View, read: Html, edition: str, permit: str, done: str
) -> Html | None:
    """The page of one name, or None; `permit`: forms send it back, `done`: the wish just made."""
    name = view.name
    if not is_job_name(name) or snapshot.record(name) is None:
        return None
    rows = {key: _all(block) for key, block in blocks.items()}
    header = tag(
        "header",
        tag("p", tag("a", "All leases and jobs", href="./")),
        tag("h1", breakable(name)),
        _live(),
        _followed(read),
    )
    said = f"The store was asked to {done} it." if done in WISHES else ""
    shown = [tag("p", said, role="status", id="done") if said else ""]
    shown += [
        _section(key.capitalize(), _table(key, rows[key]))
        for key in ("jobs", "leases")
        if rows[key]
    ]
    if permit:
        more = _OF_A_JOB if rows["jobs"] else {}
        wishes = {one: words for one, words in WISHES.items() if more or one != "trigger"} | more
        forms = (_form(name, wish, words, permit) for wish, words in wishes.items())
        shown.append(_section("Act", joined(forms)))
    shown.append(
        _section(f"Time line, {view.window} until now", tag("ul", rows["terms"], id="terms"))
    )
    if rows["jobs"]:
        shown.append(_section("Runs", tag("div", rows["runs"], id="runs")))
    shown.append(_section("Events", tag("ol", rows["events"], id="events")))
    main = tag("main", *shown, data_view=view.query(), data_edition=edition)
    return _document(snapshot, header, main, Html(""))


def _form(name: str, wish: str, words: str, permit: str) -> Html:
    reason = tag("label", "why ", tag("input", name="reason", maxlength=200))
    return tag(
        "form",
        tag("input", type="hidden", name="name", value=name),
        tag("input", type="hidden", name="permit", value=permit),
        tag("button", words, name="wish", value=wish),
        "" if wish == "unpause" else reason,
        method="post",
        action="act",
    )
