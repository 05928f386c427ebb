"""What the pages say of a situation, and that their metrics are what Prometheus reads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf

import pytest

from incumbent.protocol.keeper import Stats
from incumbent.serve.pages import (
    Page,
    Question,
    answer,
    leader,
    metrics_text,
    readyz,
    routes_of,
)
from incumbent.serve.situation import LOSSES, Situation, View
from incumbent.serve.systemd import summary

STANDBY = View(
    wall=1_700_000_000.0,
    name="switch-7",
    holder="node-1",
    isolation="pidns",
    role="standby",
    leader="node-2",
    leading=False,
    term=0,
    proven_for=0.0,
    late=0.0,
    unanswered_for=1.0,
    patience=30.0,
    store_up=True,
)
LEADER = replace(
    STANDBY, role="leading", leader="node-1", leading=True, term=1_790_000_000_000_001, proven_for=9
)


class Fixed(Situation):
    """One that is always the same."""

    def __init__(self, view: View) -> None:
        super().__init__(view.name, view.holder)
        self.view = view

    def look(self) -> View:
        return self.view


def page_of(path: str, view: View) -> Page:
    return answer(routes_of(Fixed(view)), Question(path))


def status(path: str, view: View) -> int:
    return page_of(path, view).status


@pytest.mark.parametrize("view", [STANDBY, LEADER, replace(STANDBY, leader=None)])
def test_standby_leader_and_paused_are_ready_alike(view: View) -> None:
    assert status("/readyz", view) == 200


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"role": "stopping"}, "stopping"),
        ({"late": 60.0}, "overdue"),
        ({"unanswered_for": 31.0}, "31s"),
        ({"unanswered_for": inf}, "yet"),
    ],
)
def test_who_cannot_take_over_is_not_ready(change: dict[str, object], word: str) -> None:
    page = readyz(replace(STANDBY, **change))  # type: ignore[arg-type]
    assert page.status == 503
    assert word in page.body


def test_healthz_asks_only_for_the_loop_to_turn() -> None:
    lonely = replace(STANDBY, unanswered_for=inf, store_up=False, role="stopping")
    assert status("/healthz", lonely) == 200
    assert status("/healthz", replace(STANDBY, late=4.0)) == 200
    assert status("/healthz", replace(STANDBY, late=6.0)) == 503


def test_leaderz_says_yes_on_a_proved_leader_only() -> None:
    assert status("/leaderz", LEADER) == 200
    assert status("/leaderz", STANDBY) == 503
    assert status("/leaderz", replace(LEADER, leading=False, proven_for=0.0)) == 503


def test_leader_says_what_is_proved_and_for_how_long() -> None:
    facts = json.loads(leader(LEADER).body)
    assert facts == {
        "name": "switch-7",
        "holder": "node-1",
        "role": "leading",
        "leading": True,
        "leader": "node-1",
        "term": 1_790_000_000_000_001,
        "proven_for": 9,
        "proven_until": "2023-11-14T22:13:29.000+00:00",
        "isolation": "pidns",
    }


def test_a_standby_names_the_leader_and_no_term_of_its_own() -> None:
    facts = json.loads(leader(replace(STANDBY, term=4)).body)
    assert (facts["leader"], facts["term"], facts["proven_until"]) == ("node-2", None, None)


def test_an_unknown_path_is_told_the_known_ones() -> None:
    page = page_of("/", STANDBY)
    assert page.status == 404
    for path in ("/healthz", "/readyz", "/leader", "/leaderz", "/metrics"):
        assert path in page.body
        assert page_of(path, LEADER).status == 200


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (STANDBY, "standing by, led by node-2"),
        (LEADER, "leading switch-7, term 1790000000000001"),
        (replace(STANDBY, store_up=False), "no leader here: the store gives no answer"),
        (replace(LEADER, role="stopping"), "stopping; switch-7 is still held"),
        (replace(STANDBY, role="stopping"), "stopping"),
        (replace(STANDBY, role="starting", leader=None, store_up=False), "starting"),
        (replace(STANDBY, role="serving", doing="3 jobs, 1 running"), "3 jobs, 1 running"),
        (
            replace(STANDBY, role="serving", doing="3 jobs, 0 running", store_up=False),
            "3 jobs, 0 running; the store gives no answer",
        ),
    ],
)
def test_the_summary_is_one_line_for_people(view: View, line: str) -> None:
    assert summary(view) == line


# -- metrics: the grammar of the exposition format, line by line ------------------------------

LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{{(?P<labels>{LABEL}(?:,{LABEL})*)\}} "
    r"(?P<value>[+-]?(?:\d+(?:\.\d+)?(?:e[+-]\d+)?|Inf|NaN))"
)


def samples(text: str) -> dict[tuple[str, str], float]:
    """Strict: each family once, HELP then TYPE then its samples; no sample twice."""
    found: dict[tuple[str, str], float] = {}
    families: set[str] = set()
    expected, helped = "", ""
    assert text.endswith("\n")
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            helped, _, words = line.removeprefix("# HELP ").partition(" ")
            assert words
            assert helped not in families
        elif line.startswith("# TYPE "):
            expected, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert expected == helped
            assert kind in {"counter", "gauge"}
            assert (kind == "counter") == expected.endswith("_total")
            families.add(expected)
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match["name"] == expected
            assert (match["name"], match["labels"]) not in found
            found[match["name"], match["labels"]] = float(match["value"])
    return found


def test_metrics_keep_to_the_format_whatever_the_labels_are() -> None:
    odd = replace(
        LEADER, isolation='a"b\\c\nd', losses={'x"\n': 2}, renewals=Stats(last_took=0.000012)
    )
    found = samples(metrics_text(odd, "1.0"))
    assert found["incumbent_build_info", r'name="switch-7",version="1.0",isolation="a\"b\\c\nd"']


def test_metrics_tell_a_leaders_numbers() -> None:
    view = replace(LEADER, terms=3, losses={"expired": 2}, renewals=Stats(10, 1), restarts=4)
    text = metrics_text(view, "1.0")
    found = samples(text)
    name = 'name="switch-7"'
    assert found["incumbent_leading", name] == 1
    assert f"incumbent_term{{{name}}} 1790000000000001\n" in text
    assert found["incumbent_terms_total", name] == 3
    assert found["incumbent_terms_lost_total", f'{name},reason="expired"'] == 2
    assert found["incumbent_lease_remaining_seconds", name] == 9
    assert found["incumbent_renewals_total", name] == 10
    assert found["incumbent_renewal_failures_total", name] == 1
    assert found["incumbent_renewal_seconds", name] == 0
    assert found["incumbent_restarts_total", name] == 4
    assert found["incumbent_store_up", name] == 1


def test_every_reason_has_a_series_before_its_first_loss() -> None:
    found = samples(metrics_text(STANDBY, "1.0"))
    for reason in LOSSES:
        key = ("incumbent_terms_lost_total", f'name="switch-7",reason="{reason}"')
        assert found[key] == 0
