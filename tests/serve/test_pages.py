"""What the pages say of a situation, and that their metrics are what Prometheus reads."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from incumbent.serve.health import summary
from incumbent.serve.pages import (
    HttpRequest,
    Page,
    answer,
    leader,
    readyz,
    routes_of,
)
from incumbent.serve.situation import InstanceView, Situation

STANDBY = InstanceView(
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
    recent_for=30.0,
    store_up=True,
)
LEADER = replace(
    STANDBY, role="leading", leader="node-1", leading=True, term=1_790_000_000_000_001, proven_for=9
)


class Fixed(Situation):
    """One that is always the same."""

    def __init__(self, view: InstanceView) -> None:
        super().__init__(view.name, view.holder)
        self._fixed = view

    def view(self) -> InstanceView:
        return self._fixed


def page_of(path: str, view: InstanceView) -> Page:
    page = answer(routes_of(Fixed(view)), HttpRequest(path))
    assert isinstance(page, Page)
    return page


def status(path: str, view: InstanceView) -> int:
    return page_of(path, view).status


@pytest.mark.parametrize("view", [STANDBY, LEADER, replace(STANDBY, leader=None)])
def test_standby_leader_and_paused_are_ready_alike(view: InstanceView) -> None:
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
def test_the_summary_is_one_line_for_people(view: InstanceView, line: str) -> None:
    assert summary(view) == line
