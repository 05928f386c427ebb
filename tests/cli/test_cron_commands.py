"""`cron`, `jobs`, `history`, `trigger`, `pause --all` and `why` on one instance."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tool import answer, incumbent, start
from tests.cron.fleet import NEVER_DUE, CronFleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

JOBS = f"""
[[job]]
name = "rarely"
schedule = "0 0 29 2 *"
command = "echo done; test ! -e fail"
[[job]]
name = "secret"
{NEVER_DUE}
command = ["true", "--password=hunter2", "redis://u:hunter2@host"]
"""
TALK = f"""
[[job]]
name = "talk"
{NEVER_DUE}
command = "echo one; while ! test -e go; do sleep 0.2; done; echo two"
"""


@pytest.fixture
def fleet(store: str, tmp_path: Path) -> Iterator[CronFleet]:
    made = CronFleet(store, tmp_path, JOBS)
    made.start()
    eventually(lambda: made.events("ready"))
    eventually(lambda: len(_jobs(made)) == 2)
    yield made
    made.stop()


def _jobs(fleet: CronFleet) -> dict[str, dict[str, Any]]:
    shown = json.loads(incumbent("-s", fleet.store, "--json", "jobs").stdout)
    return {job["name"]: job for job in shown["result"]["jobs"]}


def history(fleet: CronFleet, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer("-s", fleet.store, "history", "rarely", *words)
    return found


def ask(fleet: CronFleet, *words: str) -> subprocess.CompletedProcess[str]:
    return incumbent("-s", fleet.store, *words)


def test_a_triggered_job_runs_once_and_its_history_says_so(fleet: CronFleet) -> None:
    done = ask(fleet, "trigger", "rarely", "--reason", "wanted")
    assert (done.returncode, "on i1 as manual/" in done.stderr) == (0, True)
    eventually(lambda: fleet.events("ok"))
    (run,) = json.loads(ask(fleet, "history", "rarely", "--json", "--since", "1h").stdout)["result"]
    assert (run["state"], run["instance"], run["output"]) == ("ok", "i1", "done")
    asked = re.compile(r"triggered by \S+@\S+ \(wanted\)")
    assert asked.fullmatch(f"triggered by {run['triggered_by']}")
    for words in (("history", "rarely"), ("jobs",), ("why", "rarely")):
        assert asked.search(ask(fleet, *words).stdout), words
    assert answer("-s", fleet.store, "history", "rarely", "--since", "0s") == []
    table = ask(fleet, "jobs").stdout
    assert "rarely" in table
    assert "1 up: i1" in table
    assert "hunter2" not in table + json.dumps(_jobs(fleet))


def test_a_paused_fleet_runs_nothing_until_it_is_unpaused(fleet: CronFleet) -> None:
    assert ask(fleet, "pause", "secret").returncode == 0
    assert "1 of 2 jobs paused" in ask(fleet, "pause", "--all", "--reason", "freeze").stderr
    refused = ask(fleet, "trigger", "rarely")
    assert (refused.returncode, "paused" in refused.stderr) == (75, True)
    assert "paused by" in ask(fleet, "why", "rarely").stdout
    assert "1 of 2 jobs unpaused" in ask(fleet, "unpause", "--all").stderr
    assert ask(fleet, "trigger", "rarely").returncode == 0
    # What was paused by its name stays so.
    assert ask(fleet, "trigger", "secret").returncode == 75


def test_why_tells_of_a_slot_that_the_schedule_does_not_have(fleet: CronFleet) -> None:
    said = ask(fleet, "why", "rarely", "--at", "2020-01-01T00:30:00Z").stdout
    assert "known only since" in said
    said = ask(fleet, "why", "rarely", "--at", "2096-02-29T00:30:00Z").stdout
    assert "has no slot at" in said
    said = ask(fleet, "why", "rarely", "--at", "2096-02-29T00:00:00Z").stdout
    assert "not due before" in said
    assert ask(fleet, "why", "rarely", "--at", "teatime").returncode == 64


def test_why_tells_how_a_run_failed(fleet: CronFleet) -> None:
    (fleet.folder / "fail").touch()
    assert ask(fleet, "trigger", "rarely").returncode == 0
    eventually(lambda: fleet.events("failed"))
    assert "failed (1) on i1: exit 1" in ask(fleet, "why", "rarely").stdout


def test_a_trigger_that_nobody_takes_says_so(fleet: CronFleet) -> None:
    fleet.stop()
    done = ask(fleet, "trigger", "rarely", "--timeout", "2s")
    assert (done.returncode, "no instance took it" in done.stderr) == (75, True)
    unknown = ask(fleet, "trigger", "rarly")
    assert (unknown.returncode, "see `jobs`" in unknown.stderr) == (64, True)


def test_the_history_of_failures_is_as_long_as_asked(fleet: CronFleet) -> None:
    for code in (0, 75, 1):
        (fleet.folder / "fail").touch() if code else (fleet.folder / "fail").unlink(missing_ok=True)
        assert ask(fleet, "trigger", "rarely").returncode == 0
        eventually(lambda: all(run["ended"] for run in history(fleet)))
    assert [run["state"] for run in history(fleet)] == ["ok", "failed", "failed"]
    assert [run["state"] for run in history(fleet, "--failed")] == ["failed", "failed"]
    assert history(fleet, "--failed", "-n", "1") == history(fleet)[-1:]
    assert ask(fleet, "history", "rarely", "-n", "0").returncode == 64


def test_a_trigger_of_a_job_that_is_gone_says_so_at_once(fleet: CronFleet) -> None:
    fleet.file.write_text('[[job]]\nname = "other"\nevery = "1d"\ncommand = "true"\n')
    for process in fleet.processes:
        process.send_signal(signal.SIGHUP)
    eventually(lambda: _jobs(fleet)["rarely"]["gone"])
    # Before its timeout: a command that waits an hour fails here.
    done = ask(fleet, "trigger", "rarely", "--timeout", "1h")
    assert (done.returncode, "no instance that is up has this job" in done.stderr) == (75, True)


def test_a_file_with_a_broken_line_starts_nothing(store: str, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("*/5 * * * * true\n61 * * * * true\n")
    done = incumbent("-s", store, "cron", tmp_path / "crontab")
    assert (done.returncode, "crontab:2:1" in done.stderr) == (64, True)


def test_a_store_that_refuses_for_good_gets_69(tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("*/5 * * * * true\n")
    (tmp_path / "no.db").write_text("this is no database, and long enough to be looked at" * 40)
    done = incumbent("-s", f"sqlite:///{tmp_path}/no.db", "cron", tmp_path / "crontab")
    assert done.returncode == 69, done.stderr


def test_a_module_of_jobs_runs_them(store: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import incumbent\njobs = incumbent.Jobs()\n@jobs.every('1s')\ndef tick(): pass\n"
    )
    fleet = CronFleet(store, tmp_path, "")
    process = fleet.start(file="app:jobs")
    eventually(lambda: fleet.events("ok"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert incumbent("-s", store, "cron", "app:nothing").returncode == 64


def test_a_slot_of_run_is_claimed_once_and_is_on_record(store: str) -> None:
    first = incumbent("-s", store, "run", "job", "--slot", "2026-01-01", "--", "sh", "-c", "exit 3")
    again = incumbent("-s", store, "run", "job", "--slot", "2026-01-01", "--", "true")
    other = incumbent("-s", store, "run", "job", "--once-per", "1h", "--", "true")
    assert (first.returncode, again.returncode, other.returncode) == (3, 75, 0)
    runs = answer("-s", store, "history", "job")
    assert [(run["state"], run["exit_code"]) for run in runs] == [("failed", 3), ("ok", 0)]


def test_a_slot_whose_command_cannot_start_is_anybodys_again(store: str) -> None:
    line = ("-s", store, "run", "job", "--slot", "s1", "--")
    assert incumbent(*line, "no-such-command").returncode == 127
    assert incumbent(*line, "true").returncode == 0


def test_logs_follows_what_a_run_prints_while_it_runs(store: str, tmp_path: Path) -> None:
    fleet = CronFleet(store, tmp_path, TALK)
    fleet.start()
    try:
        eventually(lambda: fleet.events("ready"))
        eventually(lambda: "talk" in _jobs(fleet))
        with start("-s", store, "-q", "logs", "talk", "-f") as process:
            assert process.stdout is not None
            assert ask(fleet, "trigger", "talk").returncode == 0
            assert process.stdout.read(3) == "one"
            assert not fleet.events("ok")
            (tmp_path / "go").touch()
            assert process.stdout.read(5) == "\ntwo\n"
            process.kill()
    finally:
        (tmp_path / "go").touch()
        fleet.stop()
