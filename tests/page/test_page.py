"""What the page says of records, read as a browser reads it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl

import pytest

from incumbent.cron.ledger import RUN, TAIL, SlotRecord, SlotState, encode
from incumbent.model import Field, Holding, Past, Record
from incumbent.page import api
from incumbent.page.documents import detail, page
from incumbent.page.editions import next_edition
from incumbent.page.markup import Html, Window, breakable, safe, short, when
from incumbent.page.rows import Blocks
from incumbent.page.snapshot import Snapshot, fleet_of, terms_of
from incumbent.page.view import View
from incumbent.rules.notices import BREAK, PAUSE, RESIGN
from incumbent.stores import findings
from tests.page.fleet import FAULTS, TROUBLE, big
from tests.page.records import (
    NOW,
    blocks,
    held,
    job,
    reading,
    record,
    snapshot,
    standing_by,
    switch,
)

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&\x00\u202e\ud800"
ELEMENTS = {
    *("html", "head", "meta", "title", "link", "script", "noscript", "body", "header", "main"),
    *("form", "label", "input", "select", "option", "button", "section", "h1", "h2", "p", "span"),
    *("dl", "div", "dt", "dd", "strong", "table", "thead", "tbody", "tr", "th", "td", "a", "time"),
    *("nav", "b", "i", "wbr"),
    *("ul", "ol", "li", "svg", "rect", "path", "circle", "animate", "details", "summary", "pre"),
}


class Seen(HTMLParser):
    """The elements and the text of a document, with the text of each element that has an id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "wbr":
            self.text = self.text.removesuffix(" ")

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def shown(*records: Record, search: str = "", **changes: object) -> Seen:
    found = snapshot(*records, **changes)
    rows = blocks(found, q=search)
    return Seen(page(found, rows, View(q=search), when(NOW, NOW), "boot-1"))


def detail_of(found: Snapshot, name: str, permit: str = "", done: str = "") -> Html | None:
    rows = blocks(found, "7d", name=name)
    return detail(found, rows, View(window="7d", name=name), when(NOW, NOW), "boot-1", permit, done)


def of(row: str, *records: Record, **changes: object) -> str:
    """The text of the rows of one block."""
    rows = blocks(snapshot(*records, **changes))[row]
    return re.sub(r"\s+", " ", Seen(" ".join(row.html for row in rows)).text).strip()


# -- hostile texts ---------------------------------------------------------------------------------


def test_hostile_names_reasons_and_outputs_are_text() -> None:
    run = SlotRecord(
        HOSTILE, SlotState.FAILED, NOW, HOSTILE, 5, NOW, NOW, why=HOSTILE, output=HOSTILE
    )
    holding = Holding(HOSTILE, 7, 12.0, 15.0, 60.0, claim=HOSTILE)
    records = (
        record(HOSTILE, holdings=(holding,), history=(Past(HOSTILE, 3, NOW - 9, NOW - 5),)),
        held("b", candidates=standing_by(HOSTILE), fields=switch(PAUSE, who=HOSTILE, when=NOW)),
        job("c", run, schedule=HOSTILE, timezone=HOSTILE),
    )
    found = snapshot(*records, store=HOSTILE, problem=HOSTILE, outages=((NOW - 9, NOW),))
    details = [detail_of(found, one.key.name, HOSTILE, HOSTILE) for one in records]
    whole = page(found, blocks(found), View(q=HOSTILE), when(NOW, NOW), HOSTILE)
    for html in (whole, *details):
        assert html is not None
        seen = Seen(html)
        assert {name for name, _ in seen.elements} <= ELEMENTS | {"animate"}
        assert [a["src"] for name, a in seen.elements if name == "script"] == ["page.js"]
        assert not [a for _, a in seen.elements if {"style"} & a.keys() or "onerror" in a]
        assert "alert(1)" in seen.text
        assert not re.search("[\x00\u202e\ud800]", html)
        html.encode()


@pytest.mark.parametrize("due", ['"<b>"', "1e300", "null", "[]", "Infinity"])
def test_what_cannot_be_an_instant_leaves_the_rest_of_the_page(due: str) -> None:
    run = SlotRecord("2026-09-21T04:30:00Z", SlotState.OK, NOW)
    bad = Field(f'{{"v": 1, "state": "ok", "due": {due}, "started": {due}}}'.encode(), 1)
    found = job("a", run)
    odd = replace(found, fields={**found.fields, RUN + "x": bad})
    text = of("jobs", odd, job("b", run), held("c", fields=switch(PAUSE, when=1e300)))
    assert text.startswith("a 30 4 * * *")
    assert "ok 14:13:20" in text


@pytest.mark.parametrize("instant", [float("inf"), float("-inf"), float("nan"), 1e300, -6e11])
def test_what_is_no_instant_is_shown_as_unknown(instant: float) -> None:
    assert when(instant, NOW) == "?"
    assert "1966" in when(-1e8, NOW)


def test_text_is_escaped_once_and_html_is_left_as_it_is() -> None:
    assert safe("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#x27;"
    assert safe(Html("<b>")) == "<b>"
    assert safe("node-1:77 ok") == "node-1:77 ok"


# -- what is true ----------------------------------------------------------------------------------


def test_a_held_lease_says_who_since_when_until_when_and_who_waits() -> None:
    text = of("leases", held("telnet", candidates=standing_by("node-2", "node-3")))
    assert text.startswith("telnet held node-1 7 14:12:20 14:13:32 node-2, node-3")


def test_while_the_store_is_silent_nothing_is_called_held_or_free() -> None:
    silent = {"problem": "connection refused", "outages": ((NOW - 5, NOW),), "read_at": NOW - 6}
    records = (held("a"), record("b"), job("c"))
    leases = of("leases", *records, **silent)
    assert leases.count("cannot tell") == 2
    assert not re.search(r"\b(held|free)\b", leases)
    assert "cannot tell" in of("jobs", *records, **silent)
    assert "gives no answer" in of("store", *records, **silent)
    assert "gave no answer" in of("events", *records, **silent)


def test_while_a_store_grants_nothing_nobody_is_told_that_a_lease_can_be_had() -> None:
    why = "nobody is given a lease yet: up for 3s, restart_wait 15s: it grants nothing yet"
    grants = findings.NameState(findings.WAITING, why)
    assert of("leases", record("a"), grants=grants) == f"a waiting {why}"
    assert of("leases", held("a"), grants=grants).startswith("a held node-1")
    assert f"waiting: {why}" in of("store", grants=grants)


def test_the_proof_of_an_old_reading_has_drained_as_long() -> None:
    bar = blocks(snapshot(held("a"), read_at=NOW - 4))["leases"][0].html
    assert 'aria-label="8s of 15s left"' in bar
    assert 'dur="8.01s"' in bar
    assert (
        'aria-label="0ms of 15s left"'
        in blocks(snapshot(held("a"), read_at=NOW - 99))["leases"][0].html
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "not held"),
        (
            {"slots": {"once": 20.0}},
            "not held slot once: ran, and is closed until 2026-09-21 14:13:40",
        ),
        (
            {"fields": switch(PAUSE, who="ann", reason="why")},
            "paused nobody may hold it until `unpause`; paused by ann (why)",
        ),
        ({"closed_for": 20.0}, "closed for another 20s"),
        ({"closed_for": 5.0, "reserved_for": "node-2"}, "reserved for node-2, for another 5s"),
        ({"undecided": True}, "cannot tell too few servers say the same"),
    ],
)
def test_a_lease_that_nobody_holds_says_whether_it_can_be_had(
    changes: dict[str, object], words: str
) -> None:
    assert of("leases", record("a", **changes)).startswith(f"a {words}")


def test_only_the_term_that_was_asked_is_said_to_be_asked() -> None:
    assert "asked to resign by ann" in of(
        "leases", held("a", fields=switch(RESIGN, who="ann", token=7))
    )
    assert "asked" not in of("leases", held("a", fields=switch(RESIGN, who="ann", token=6)))


def test_a_holder_that_an_operator_broke_is_said_to_be_broken() -> None:
    past = (Past("b", 2, NOW - 300, NOW - 250),)
    broken = record("x", history=past, fields=switch(RESIGN, who="ann", token=2, kind=BREAK))
    assert [term.how for term in terms_of(broken, NOW)] == ["broken"]
    assert "b was broken by an operator after 50s" in of("events", broken)
    going_on = held("x", fields=switch(RESIGN, who="ann", token=7, kind=BREAK))
    assert "asked to stop by ann" in of("leases", going_on)


def test_terms_tell_how_they_ended() -> None:
    past = (
        Past("a", 1, NOW - 500, NOW - 400),
        Past("b", 2, NOW - 300, NOW - 250),
        Past("c", 3, NOW - 200),
        Past("node-1", 7, NOW - 60),
    )
    found = held("x", history=past, fields=switch(RESIGN, token=2))
    ends = [(term.holder, term.how) for term in terms_of(found, NOW)]
    assert ends == [("a", "released"), ("b", "resigned"), ("c", "expired"), ("node-1", "")]
    text = of("events", found)
    assert "b was asked to end, and gave it back after 50s" in text
    assert "c did not give it back: its ttl ran out before this" in text


def test_the_time_line_has_a_bar_a_term_and_gaps_between() -> None:
    past = (Past("a", 1, NOW - 1800, NOW - 900), Past("node-1", 7, NOW - 60))
    row = blocks(snapshot(held("x", history=past)))["terms"][1].html
    bars = re.findall(r"M([\d.]+) 4h([\d.]+)v12", row)
    (first, wide), (second, last) = [(float(x), float(w)) for x, w in bars]
    assert wide == pytest.approx(250, abs=1)
    assert second - (first + wide) == pytest.approx(233, abs=2)
    assert second + last == 1000


def test_a_window_moves_in_steps_and_ends_after_now() -> None:
    one, other = Window.ending(NOW, 3600), Window.ending(NOW + 1, 3600)
    assert one == other
    assert one.end >= NOW


def test_a_job_says_its_next_three_runs_in_its_own_zone() -> None:
    up = record("@cron/up", fields=switch("up/n1", since=1, seen=NOW, jobs=1))
    zoned = job("a", schedule="0 17 * * * (Europe/Berlin)", timezone="Europe/Berlin")
    text = of("jobs", zoned, up)
    assert "0 17 * * * Europe/Berlin 17:00:00, Tue 22 Sep 17:00, Wed 23 Sep 17:00" in text


def test_a_job_that_nobody_will_run_has_no_next_run() -> None:
    zoned = job("a", schedule="0 17 * * * (UTC)", timezone="UTC")
    assert "no instance is up" in of("jobs", zoned)
    paused = replace(zoned, fields={**zoned.fields, **switch(PAUSE, who="ann")})
    assert "paused" in of("jobs", paused)


def test_the_last_slots_are_dots_that_are_told_in_words_too() -> None:
    states = [SlotState.OK, SlotState.FAILED, SlotState.OK, SlotState.MISSED]
    runs = [
        SlotRecord(f"2026-09-21T0{n}:00:00Z", state, NOW - 99 + n) for n, state in enumerate(states)
    ]
    row = blocks(snapshot(job("a", *runs)))["jobs"][0].html
    assert 'aria-label="last 4 slots: 2 ok, 1 failed, 1 missed"' in row
    assert row.count("<circle") == 2
    assert row.count("<path") == 2


def test_what_is_the_fleets_own_is_no_lease() -> None:
    assert of("leases", record("@cron"), record("@cron/sweep"), record("a")) == "a not held"


# -- documents -------------------------------------------------------------------------------------


def test_the_page_without_javascript_finds_names_and_loads_itself_again() -> None:
    seen = shown(held("telnet"), held("import"), search="TEL")
    assert "telnet" in seen.text
    assert "import" not in seen.text
    assert ("meta", {"http-equiv": "refresh", "content": "10"}) in seen.elements


def test_the_page_of_a_job_has_the_output_of_each_run() -> None:
    run = SlotRecord(
        "2026-09-21T04:30:00Z", SlotState.FAILED, NOW, "n1", 5, NOW, NOW + 2, 3, output="boom"
    )
    found = snapshot(job("a", run))
    html = detail_of(found, "a")
    assert html is not None
    assert "in this time: n1 for 2s, failed" in html
    assert re.search(r"<details [^>]*><summary>.*failed \(3\).*<pre[^>]*>boom</pre>", html)
    assert "<form" not in html
    assert "Run again" in str(detail_of(found, "a", "permit"))
    assert detail_of(found, "b") is None


def test_a_run_that_somebody_asked_for_says_who() -> None:
    who = "ann by the page at host (late data)"
    run = SlotRecord("manual/1", SlotState.OK, NOW, "n1", 5, NOW, NOW, 0, triggered_by=who)
    found = snapshot(job("a", run))
    assert f"<p>triggered by {who}</p>" in str(detail_of(found, "a"))
    assert f"manual/1 ok on n1: triggered by {who}" in shown(*found.records).text
    one = api.one(reading(found), "a", NOW) or {}
    assert one["result"]["last"]["triggered_by"] == who


def test_the_output_of_a_run_says_when_it_was_seen_until_it_is_whole() -> None:
    run = SlotRecord("manual/1", SlotState.RUNNING, NOW, "n1", 7, NOW)
    tail = {"token": 7, "attempt": 1, "seen": NOW - 2, "output": "so <far>"}
    fields = {RUN + run.slot: Field(encode(run), 1), **switch(TAIL, **tail)}
    one = replace(job("a"), fields={**job("a").fields, **fields})
    going = str(detail_of(snapshot(replace(one, holdings=held("a").holdings)), "a"))
    assert re.search(r"<p>output so far, seen at <time [^>]*>14:13:18</time></p>", going)
    assert "so &lt;far&gt;</pre>" in going
    vanished = str(detail_of(snapshot(one), "a"))
    assert "n1 vanished</p><p>lost; its output was seen last at <time" in vanished
    found = (api.one(reading(snapshot(one)), "a", NOW) or {})["result"]["last"]
    assert (found["output"], found["output_seen"]) == ("so <far>", "2026-09-21T14:13:18.000Z")


# -- editions --------------------------------------------------------------------------------------


def test_only_what_changed_is_sent_again() -> None:
    before = snapshot(held("a"), record("b"))
    first = next_edition(None, reading(before), blocks(before), 1)
    later = snapshot(held("a"), record("b"), held("c"))
    second = next_edition(first, reading(later), blocks(later), 2)
    names = {row.id: row.name for block in second.blocks.values() for row in block}
    changed = {names[id_] for id_, number in second.changed.items() if number == 2 and id_ in names}
    assert changed == {"c", ""}
    assert b'"leases":[' in second.patch(1)
    assert b'"jobs":[' not in second.patch(1)
    assert second.patch(1) is second.patch(1)
    assert len(second.patch(0)) > len(second.patch(1))


def test_a_renewal_is_news_and_time_that_passes_is_not() -> None:
    first = next_edition(None, reading(snapshot(held("a"))), blocks(snapshot(held("a"))), 1)
    holding = Holding("node-1", 7, 9.0, 15.0, 63.0, claim="c" * 32)
    same = snapshot(held("a", holdings=(holding,)), now=NOW + 3, read_at=NOW + 3)
    second = next_edition(first, reading(same), blocks(same), 2)
    row = second.blocks["leases"][0].id
    assert second.changed[row] == 1
    renewed = snapshot(held("a"), now=NOW + 4, read_at=NOW + 4)
    assert next_edition(second, reading(renewed), blocks(renewed), 3).changed[row] == 3


def test_what_is_read_of_a_job_is_kept_while_its_record_is_the_same() -> None:
    run = SlotRecord("2026-09-21T04:30:00Z", SlotState.OK, NOW)
    first = fleet_of(snapshot(job("a", run), job("b", run)))
    second = fleet_of(snapshot(job("a", run), job("b", replace(run, output="x"))), first)
    assert second.jobs["a"] is first.jobs["a"]
    assert second.jobs["b"] is not first.jobs["b"]


# -- a big fleet -----------------------------------------------------------------------------------


def first(**view: Any) -> tuple[str, Blocks]:
    """The first document about the big fleet in a view, and its blocks."""
    fleet, chosen = big(), View(**view)
    rows = blocks(fleet, **view)
    return page(fleet, rows, chosen, when(NOW, NOW), "boot-1"), rows


def names_in(rows: Blocks) -> list[str]:
    return [row.name for table in ("leases", "jobs") for row in rows[table]]


def test_the_first_document_about_a_big_fleet_is_small() -> None:
    html, rows = first()
    assert len(html.encode()) < 250_000
    assert len(rows["leases"]) <= 25
    assert "1–25 of 500" in html
    assert "1–25 of 200" in html


def test_what_is_wrong_is_counted_first_and_each_number_leads_to_its_names() -> None:
    html, _ = first()
    for fault, names in FAULTS.items():
        link = re.search(rf'href="\./([^"]*show={fault}[^"]*)"[^>]*><b>(\d+)</b>', html)
        assert link is not None
        assert int(link[2]) == len(names)
        view = View.of(dict(parse_qsl(link[1].removeprefix("?"))))
        assert sorted(names_in(first(**view._asdict())[1])) == sorted(names)
    assert re.search(r'href="#store"[^>]*><b>1</b> store members in trouble', html)
    assert TROUBLE in Seen(html).text


def test_the_worst_comes_first_unless_another_order_is_asked_for() -> None:
    leases = [row.name for row in first()[1]["leases"]]
    assert leases[:5] == ["importer/0261", "worker-b", "crawler/0137", "gpu/0311", "mover/0402"]
    by_name = [row.name for row in first(sort="name")[1]["leases"]]
    assert by_name == sorted(by_name)
    assert by_name[0] == "crawler/0137"
    newest = [row.name for row in first(sort="newest")[1]["leases"]]
    assert newest[:2] == ["crawler/0137", "shard/0000"]


def test_a_view_has_one_url_that_leads_to_it_again() -> None:
    view = View(window="1d", show="late", q="a&b=ü", sort="name", leases=2, jobs=3)
    assert View.of(dict(parse_qsl(view.query().removeprefix("?")))) == view
    assert View().query() == ""
    odd = {"window": "1y", "show": "x", "sort": "x", "leases": "-1", "jobs": "9" * 99}
    assert View.of(odd) == View()


def test_a_page_of_a_table_has_links_to_the_pages_beside_it() -> None:
    html, rows = first(leases=2, q="shard")
    assert "26–50 of" in html
    assert 'href="./?q=shard#leases-title" rel="prev"' in html
    assert 'href="./?q=shard&amp;leases=3#leases-title" rel="next"' in html
    assert len(rows["leases"]) == 25
    assert "none of" in first(leases=99)[0]


def test_links_lead_on_below_a_path_of_a_proxy() -> None:
    found = big()
    html = first()[0] + str(detail_of(found, "mail/digest", "permit"))
    where = re.findall(r'(?:href|src|action)="([^"]*)"', html)
    assert where
    assert not [one for one in where if one.startswith("/") or "//" in one]


def test_a_name_breaks_between_its_parts_and_a_term_is_short_and_whole() -> None:
    html = first()[0]
    assert "billing/<wbr>nightly-close" in html
    token = 1_790_000_000_000
    assert f'title="{token}"><i>{str(token)[:-4]}</i>0000</span>' in html
    assert breakable("x" * 30) == f'<span class="long">{"x" * 30}</span>'
    assert breakable("<a>/b") == "&lt;a&gt;/<wbr>b"
    assert short(6018) == "6018"


def test_a_job_is_late_from_its_slot_on_unless_it_may_start_later() -> None:
    def late(since: float, **facts: object) -> bool:
        found = job("a", schedule="30 4 * * * (UTC)", timezone="UTC", since=since, **facts)
        return "late" in of("jobs", found, record("@cron/up", fields=switch("up/n", **up)))

    up = {"since": 1, "seen": NOW, "jobs": 1}
    assert late(NOW - 86_400)
    assert not late(NOW - 60)
    assert not late(NOW - 86_400, jitter=86_000)


def test_a_run_says_its_exit_code_its_attempt_and_that_it_goes_on() -> None:
    run = SlotRecord("2026-09-21T04:30:00Z", SlotState.RUNNING, NOW, "n1", 5, NOW - 9, None, 3, 2)
    holding = Holding("n1", 5, 12.0, 15.0, 9.0)
    going = job("a")
    fields = {**going.fields, RUN + run.slot: Field(encode(run), 1)}
    going = replace(going, fields=fields, holdings=(holding,))
    html = str(detail_of(snapshot(going), "a", "permit"))
    assert re.search(r"<details [^>]*open><summary>.*exit 3, attempt 2 since <time", html)
    assert "no output yet" in html
    assert "Cancel" in html
