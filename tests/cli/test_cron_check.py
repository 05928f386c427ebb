"""`incumbent cron --check`: every problem, or the next runs; nothing is run."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from incumbent.cli.cron import _reread
from incumbent.cli.parser import parse
from incumbent.errors import ConfigError
from tests import tiers
from tests.cli.tool import incumbent


@pytest.fixture
def crontab(tmp_path: Path) -> Path:
    path = tmp_path / "crontab"
    path.write_text(
        "# name: hourly\n0 * * * * date\n"
        "CRON_TZ=Europe/Berlin\n# name: daily\n30 5 * * * touch touched\n"
    )
    return path


def test_the_next_runs_are_told_in_order(crontab: Path) -> None:
    done = incumbent("-q", "cron", crontab, "--check")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["NEXT", "RUN", "UTC", "JOB", "SCHEDULE"]
    assert len(rows) == 6
    cells = [row.split("  ") for row in rows]
    slots = [next(cell for cell in row if cell.endswith("Z")) for row in cells]
    assert slots == sorted(slots)
    (daily, *_) = [row for row in rows if "daily" in row]
    assert " 05:30:00+0" in daily
    assert "Europe/Berlin" in daily


def test_a_check_says_that_commands_get_no_store_unless_they_share_it(crontab: Path) -> None:
    done = incumbent("cron", crontab, "--check")
    assert "needs --share-store" in done.stderr
    assert incumbent("cron", crontab, "--check", "--share-store").stderr == ""


@pytest.mark.parametrize(
    "text",
    ["# name: @cron\n* * * * * date\n", "[[job]]\nname='@cron'\nevery='5s'\ncommand='date'\n"],
)
def test_what_would_not_start_is_not_called_good(tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs").write_text(text)
    for words in (("--check",), ()):
        done = incumbent("-s", f"sqlite://{tmp_path}/leases.db", "cron", tmp_path / "jobs", *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert "names that begin with @ are incumbent's" in done.stderr


def test_every_problem_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "crontab"
    path.write_text("0 0 30 2 * date\nMAILTO=joe\n@reboot date -u\n0 5 * * * nosuch\n")
    done = incumbent("cron", "--check", path)
    assert (done.returncode, done.stdout) == (64, "")
    starts = [
        f"incumbent: {path}:{place}" for place in ("1:5: ", "2:1: warning", "3:1: ", "4:11: ")
    ]
    lines = done.stderr.splitlines()
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))


def test_a_warning_keeps_nothing_from_starting_and_can_be_silenced(tmp_path: Path) -> None:
    path = tmp_path / "crontab"
    path.write_text("MAILTO=joe\n0 5 * * * date\n")
    loud, quiet = incumbent("cron", path, "--check"), incumbent("-q", "cron", path, "--check")
    assert (loud.returncode, quiet.returncode) == (0, 0)
    assert "MAILTO is not used" in loud.stderr
    assert quiet.stderr == ""


def test_programs_get_json(crontab: Path, tmp_path: Path) -> None:
    found = json.loads(incumbent("cron", crontab, "--check", "--json").stdout)["result"]
    assert [job["name"] for job in found["jobs"]] == ["hourly", "daily"]
    assert found["problems"] == []
    for run in found["jobs"][1]["next"]:
        assert datetime.fromisoformat(run["slot"]) == datetime.fromisoformat(run["local"])
    broken = tmp_path / "broken"
    broken.write_text("0 25 * * * date\n")
    done = incumbent("cron", broken, "--check", "--json")
    assert done.returncode == 64
    (problem,) = json.loads(done.stdout)["result"]["problems"]
    assert (problem["line"], problem["column"], problem["warning"]) == (1, 3, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cron",), "FILE"),
        (("cron", "/nowhere/jobs", "--check"), "/nowhere/jobs: No such file or directory"),
        (("cron", "/", "--check"), "Is a directory"),
        (("cron", "x", "--check", "--", "date"), "runs nothing"),
    ],
)
def test_a_call_that_cannot_work_is_one_line(words: tuple[str, ...], said: str) -> None:
    done = incumbent(*words)
    assert (done.returncode, done.stdout) == (64, "")
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.left(tiers.FORMS, "jobs.yaml*", "folder*")
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("jobs.yaml", b"jobs:\n  - name: x\n    schedule: '* * * * *'\n", ".yaml is another kind"),
        ("jobs.json", b'{"jobs": []}\n', ".json is another kind of file"),
        ("app.py", b"import incumbent\n", ".py is another kind of file"),
        ("program", b"\x7fELF\x02\x01\0\0", "is no text"),
        ("program", b"\x89PNG\xff\r\n", "is not UTF-8 text"),
        ("folder", None, "Is a directory"),
        ("nowhere", None, "No such file"),
    ],
)
def test_a_file_of_another_kind_is_told_what_is_expected(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    (tmp_path / "folder").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = incumbent("-s", "sqlite:", "cron", tmp_path / name)
    assert (done.returncode, done.stdout) == (64, "")
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "FILE is a crontab or a job file in TOML; jobs in Python are named as" in line


def test_a_crontab_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text("* * * * * date\n")
    assert incumbent("cron", tmp_path / "jobs.json", "--check").returncode == 0


def test_a_module_is_named_without_its_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("import incumbent\njobs = incumbent.Jobs()\n")
    done = incumbent("cron", "app.py:jobs", "--check")
    assert (done.returncode, "a module is named without .py: app:jobs" in done.stderr) == (64, True)


def test_the_next_runs_of_a_module_are_told_too(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import incumbent\njobs = incumbent.Jobs()\n"
        "@jobs.cron('30 5 * * *', tz='Europe/Berlin')\ndef nightly(): pass\n"
    )
    done = incumbent("cron", "app:jobs", "--check", env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout.count("nightly")) == (0, 3)
    assert "30 5 * * * (Europe/Berlin)" in done.stdout
    assert done.stderr == ""
    (tmp_path / "often.py").write_text(
        "import incumbent\njobs = incumbent.Jobs()\n@jobs.cron('*/90 * * * *')\ndef tick(): pass\n"
    )
    done = incumbent("cron", "often:jobs", "--check", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0
    assert "often.py:3:1: warning: job tick: '*/90': a step of 90 is larger" in done.stderr
    bad = incumbent("cron", "app:nothing", "--check", env={"PYTHONPATH": str(tmp_path)})
    assert (bad.returncode, "nothing" in bad.stderr) == (64, True)


BROKEN = """
import json

def setting(name):
    return json.loads(name)

{first}
"""


@pytest.mark.left(tiers.FORMS, "*KeyError*", "def f*")
@pytest.mark.parametrize("check", [(), ("--check",)], ids=["run", "check"])
@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("{}['BILLING_URL']", "app.py, line 7: KeyError: 'BILLING_URL'"),
        ("setting('{')", "app.py, line 5: JSONDecodeError: "),
        ("import nowhere_at_all", "app.py, line 7: ModuleNotFoundError: No module named"),
        ("def f(:", "invalid syntax (app.py, line 7)"),
        ("raise SystemExit(0)", "app.py, line 7: SystemExit: 0"),
    ],
)
def test_an_error_of_the_users_module_is_told_with_its_file_and_line(
    first: str, said: str, check: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(BROKEN.replace("{first}", first))
    done = incumbent("cron", "app:jobs", *check, env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (64, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    """It has no end until somebody writes to it, and the loop would wait for that."""
    pipe = tmp_path / "jobs.toml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="only a regular file is read again"):
        _reread(parse(["cron", str(pipe)], {}))
