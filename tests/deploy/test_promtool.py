"""What Prometheus' own tool says of the rules, the dashboard's queries and our text."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import incumbent
from incumbent import metrics
from incumbent.cron.events import JobMetrics
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSpec
from incumbent.meters import Sample
from incumbent.serve.situation import Situation
from tests.deploy.watching import ALERTS, queries
from tests.support.faulty import FaultyEngine
from tests.support.servers import ROOT

pytestmark = pytest.mark.left("promtool is brought by `make test-all` alone: it is 19 MB")

PROMTOOL = ROOT / ".servers" / "bin" / "promtool"
SPEC = JobSpec(name="nightly", schedule=Every(60), command=("true",))


def promtool(*words: str | Path, given: str = "", cwd: Path | None = None) -> str:
    """What it says; a missing tool is a failure."""
    assert PROMTOOL.exists(), "run scripts/servers.sh promtool, or make promtool"
    done = subprocess.run(
        [PROMTOOL, *words], input=given, capture_output=True, text=True, check=False, cwd=cwd
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_the_alert_rules_are_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", ALERTS)


def test_the_queries_of_the_dashboard_are_queries(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{at}", "expr": query} for at, query in enumerate(queries())]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))
    assert f"{len(rules)} rules" in promtool("check", "rules", tmp_path / "rules.yaml")


class JobsOfOne:
    def samples(self) -> list[Sample]:
        return list(JobMetrics().samples([SPEC], 1000.0))


def test_the_text_keeps_the_conventions() -> None:
    with incumbent.Lock("x", store=FaultyEngine()).acquire():
        text = metrics.text(Situation("switch-7", "node-1", is_candidate=True), JobsOfOne())
    assert promtool("check", "metrics", given=text) == ""


def series(name: str, values: str) -> dict[str, str]:
    return {"series": f"incumbent_{name}", "values": values}


def fired(alert: str, at: str, *series: dict[str, str], labels: dict[str, str]) -> dict[str, Any]:
    """A unit test of a rule: `alert` is on at that time; with no labels it is off."""
    on = [{"exp_labels": labels}] if labels else []
    check = {"eval_time": at, "alertname": alert, "exp_alerts": on}
    return {"interval": "1m", "input_series": list(series), "alert_rule_test": [check]}


def without_annotations(folder: Path) -> Path:
    """The rules with their conditions alone: promtool would compare the sentences too."""
    lines = ALERTS.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.strip().partition(":")[0] not in _SENTENCES]
    path = folder / "alerts.yaml"
    path.write_text("".join(kept))
    return path


_SENTENCES = {"annotations", "summary", "description"}
CRITICAL, WARNING = {"severity": "critical"}, {"severity": "warning"}


def test_each_rule_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    up = series('build_info{instance="a"}', "1x90")
    one = series('is_leader{name="x",instance="a"}', "1 1 0x10")
    other = series('is_leader{name="x",instance="b"}', "0x12")
    both = series('is_leader{name="x",instance="b"}', "1x12")
    always = series('is_leader{name="x",instance="a"}', "1x12")
    margins = series('renewal_margin_ratio_bucket{instance="a",le="0.2"}', "0x5 1x5")
    lost = series('lease_transitions_total{instance="a",reason="expired"}', "0x5 2x5")
    released = series('lease_transitions_total{instance="a",reason="released"}', "0x5 2x5")
    crashes = series('terms_failed_total{name="x",instance="a"}', "0x5 1 2 3 4 5 5x20")
    twice = series('terms_failed_total{name="x",instance="a"}', "0x5 1 2 2x25")
    failed = series('job_runs_total{name="j",state="failed"}', "0x5 1x60")
    missed = series('job_runs_total{name="j",state="missed"}', "0x5 1x60")
    ok = series('job_runs_total{name="j",state="ok"}', "0x5 1x60")
    tests = [
        fired("IncumbentNobodyLeads", "1m", up, one, other, labels={}),
        fired("IncumbentNobodyLeads", "2m", up, one, other, labels={}),
        fired("IncumbentNobodyLeads", "4m", up, one, other, labels={**CRITICAL, "name": "x"}),
        fired("IncumbentTwoLeaders", "1m", up, always, both, labels={}),
        fired("IncumbentTwoLeaders", "5m", up, always, both, labels={**CRITICAL, "name": "x"}),
        fired("IncumbentTwoLeaders", "5m", up, always, other, labels={}),
        fired("IncumbentAbsent", "10m", up, labels={}),
        fired("IncumbentAbsent", "10m", one, labels=CRITICAL),
        fired("IncumbentStoreDown", "5m", series('store_up{name="x"}', "1x9"), labels={}),
        fired(
            "IncumbentStoreDown",
            "5m",
            series('store_up{name="x"}', "0x9"),
            labels={**WARNING, "name": "x"},
        ),
        fired("IncumbentMemberDown", "4m", series('store_member_up{member="b"}', "1x9"), labels={}),
        fired(
            "IncumbentMemberDown",
            "4m",
            series('store_member_up{member="b"}', "0x9"),
            labels={**WARNING, "member": "b"},
        ),
        fired("IncumbentRenewalsNearTheEdge", "4m", margins, labels={}),
        fired("IncumbentRenewalsNearTheEdge", "8m", margins, labels={**WARNING, "instance": "a"}),
        fired(
            "IncumbentLeasesLost",
            "8m",
            *(lost, released),
            labels={**WARNING, "instance": "a", "reason": "expired"},
        ),
        fired("IncumbentLeasesLost", "8m", released, labels={}),
        fired("IncumbentFlapping", "10m", crashes, labels={**CRITICAL, "name": "x"}),
        fired("IncumbentFlapping", "10m", twice, labels={}),
        fired("IncumbentFlapping", "30m", crashes, labels={}),
        fired("IncumbentJobFailed", "9m", failed, ok, labels={**WARNING, "name": "j"}),
        fired("IncumbentJobFailed", "9m", ok, missed, labels={}),
        fired("IncumbentJobMissed", "9m", missed, labels={**WARNING, "name": "j"}),
        fired(
            "IncumbentNotificationsDropped",
            "9m",
            series('notifications_total{instance="a",outcome="dropped"}', "0+1x20"),
            labels={**WARNING, "instance": "a"},
        ),
        fired(
            "IncumbentJobsWait",
            "12m",
            series('job_slots_waiting{instance="a"}', "3x20"),
            labels={**WARNING, "instance": "a"},
        ),
    ]
    file = tmp_path / "tests.yaml"
    rules = without_annotations(tmp_path)
    file.write_text(json.dumps({"rule_files": [str(rules)], "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)
