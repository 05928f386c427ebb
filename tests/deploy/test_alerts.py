"""The alert rules and the dashboard ask for numbers that there are."""

from __future__ import annotations

import json
import re

import pytest

from incumbent.meters import METRICS
from tests.deploy.watching import DASHBOARD, alerts, metrics_in, queries

SERIES = {
    name + suffix
    for name, metric in METRICS.items()
    for suffix in {
        "histogram": ("_bucket", "_sum", "_count"),
        "summary": ("_sum", "_count"),
    }.get(metric.kind, ("",))
}


@pytest.mark.parametrize("query", [*queries(), *(alert["expr"] for alert in alerts())])
def test_each_query_asks_for_metrics_that_exist(query: str) -> None:
    assert metrics_in(query)
    assert metrics_in(query) <= SERIES


def test_each_reason_and_state_in_a_rule_exists() -> None:
    known = {value for metric in METRICS.values() for value in metric.values} | {
        *("failed", "timed_out", "lost", "missed")
    }
    for alert in alerts():
        for values in re.findall(r'(?:reason|state)=~?"([^"]+)"', alert["expr"]):
            assert set(values.split("|")) <= known


def test_each_alert_says_how_bad_it_is_and_what_happened() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert alert["annotations"]["summary"]


def test_panels_have_titles_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
