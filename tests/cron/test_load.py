"""From a file to jobs: what cannot be read, and commands that are not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from incumbent.cron.load import LoadedJobs, load_jobs, parse_jobs
from incumbent.errors import ConfigError

ENVIRON = {"PATH": "/usr/bin:/bin"}


def loaded(tmp_path: Path, content: str | bytes, name: str = "crontab") -> LoadedJobs:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_jobs(str(path), ENVIRON, now=1_800_000_000.0)


def said(found: LoadedJobs) -> list[str]:
    return [f"{it.line}:{it.column}: {it.text}" for it in found.problems]


def test_a_crontab_and_a_job_file_are_told_apart(tmp_path: Path) -> None:
    toml = '[[job]]\nname = "a"\nevery = 5\ncommand = "date"\n'
    assert loaded(tmp_path, "0 5 * * * date").specs[0].schedule.describe() == "0 5 * * * (UTC)"
    for name in ("jobs.toml", "jobs"):
        assert loaded(tmp_path, toml, name).specs[0].schedule.describe() == "every 5s"


def test_all_instances_read_the_same_file_the_same_way() -> None:
    text = "CRON_TZ=Europe/Berlin\n0 5 * * * date\n# name: x\n0 6 * * * date -u\n"
    assert parse_jobs(text, "here").specs == parse_jobs(text, "here").specs


def test_a_folder_to_run_in_is_that_of_the_instance_however_often_a_job_changes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("below").mkdir()
    text = '[[job]]\nname = "a"\nevery = 5\ncommand = "date"\ncwd = "below"\n'
    assert loaded(tmp_path, text, "jobs.toml").specs[0].cwd == str(tmp_path / "below")


def test_a_byte_order_mark_is_nothing(tmp_path: Path) -> None:
    assert len(loaded(tmp_path, b"\xef\xbb\xbf0 5 * * * date").specs) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"0 5 * * * date\n# caf\xe9", "2:6: this is not UTF-8 text"),
        (b"0 5 * * * date\n\0", "2:1: a NUL character is no text"),
        (b"# nothing\n", "1:1: there is no job in it"),
        (b"", "1:1: there is no job in it"),
    ],
)
def test_what_is_no_job_file_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    assert [it.partition(";")[0] for it in said(loaded(tmp_path, content))] == [problem]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_jobs(str(tmp_path / "none"), ENVIRON, 0.0)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_jobs(str(tmp_path), ENVIRON, 0.0)


def test_a_file_with_one_problem_has_no_jobs_and_all_problems(tmp_path: Path) -> None:
    crontab = loaded(tmp_path, "0 5 * * * date\n0 25 * * * date -u\n0 5 * * * nosuch\n")
    assert [it[:4] for it in said(crontab)] == ["2:3:", "3:11"]
    assert crontab.specs == ()
    toml = '[[job]]\nname = "a"\nevery = 5\ncommand = "nosuch"\nretrys = 1\n'
    assert [it[:4] for it in said(loaded(tmp_path, toml, "jobs.toml"))] == ["4:1:", "5:1:"]


def test_without_cronsim_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigError, match=r"pip install 'incumbent\[cron\]' \(cronsim>=2.6\)"):
        load_jobs("any", ENVIRON, 0.0)


def test_fixed_times_that_are_past_are_only_warned_of(tmp_path: Path) -> None:
    toml = '[[job]]\nname = "a"\nat = [2020-01-01T00:00:00Z]\ncommand = "date"\n'
    found = loaded(tmp_path, toml, "jobs.toml")
    assert found.errors == ()
    assert [str(it.text) for it in found.warnings] == ["job a: all of its times are past"]


# -- commands --------------------------------------------------------------------------------------

THERE = [
    "date",
    "  date",
    "/bin/date",
    "A=1 B=x date",
    "cd /nowhere && nosuch",
    "if nosuch; then nosuch; fi",
    "[ -e /x ] && nosuch",
    "$HOME/nosuch",
    "`nosuch`",
    "(nosuch)",
    "~/nosuch",
    "PATH=/nowhere nosuch",
    "A=$(nosuch) nosuch",
    "date; nosuch",
    "date&",
    "'date' -u",
    '"/bin/date"',
    ": nosuch",
]


@pytest.mark.parametrize("line", THERE)
def test_a_line_that_only_running_it_can_tell_of_passes(tmp_path: Path, line: str) -> None:
    assert said(loaded(tmp_path, f"0 5 * * * {line}")) == []


NOT_THERE = [
    ("nosuch -x", "no 'nosuch' in /usr/bin:/bin"),
    ("nosuch; date", "no 'nosuch'"),
    ("/bin/nosuch", "there is no '/bin/nosuch'"),
    ("/etc/passwd", "'/etc/passwd' is not executable"),
    ("/etc", "'/etc' is not executable"),
    ("'nosuch'", "no 'nosuch'"),
    ("A=1 nosuch", "no 'nosuch'"),
    ("root date", "is it the user of a system crontab?"),
    ("www-data /bin/date", "is it the user of a system crontab?"),
]


@pytest.mark.parametrize(("line", "problem"), NOT_THERE)
def test_a_program_that_is_not_there_is_a_problem(tmp_path: Path, line: str, problem: str) -> None:
    (found,) = said(loaded(tmp_path, f"0 5 * * * {line}"))
    assert found.startswith("1:11: job ")
    assert problem in found


def test_a_program_is_looked_for_where_the_job_will(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert said(loaded(tmp_path, f"PATH={tool.parent}\n0 5 * * * tool")) == []
    assert said(loaded(tmp_path, f"HOME={tool.parent}\n0 5 * * * ./tool")) == []
    assert "no 'tool'" in said(loaded(tmp_path, "0 5 * * * tool"))[0]
    tool.chmod(0o644)
    assert "is not executable" in said(loaded(tmp_path, f"0 5 * * * {tool}"))[0]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('command = ["nosuch"]', "4:1: job a: no 'nosuch'"),
        ('command = "nosuch"', "4:1: job a: no 'nosuch'"),
        ('command = ["date"]\non_failure = ["nosuch"]', "4:1: job a: no 'nosuch'"),
        ('command = ["date"]\ncwd = "/nowhere"', "4:1: job a: there is no folder '/nowhere'"),
    ],
)
def test_commands_of_a_job_file_are_looked_for_too(
    tmp_path: Path, settings: str, problem: str
) -> None:
    text = f'[[job]]\nname = "a"\nevery = 5\n{settings}\n'
    (found,) = said(loaded(tmp_path, text, "jobs.toml"))
    assert found.startswith(problem)


def test_a_shell_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    (found,) = said(loaded(tmp_path, "SHELL=/bin/nosuch\n0 5 * * * date"))
    assert "there is no '/bin/nosuch'" in found


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("crontab", "61 * * * * no-such-program\n", [(1, 1), (1, 12)]),
        (
            "jobs.toml",
            """[[job]]\nname = "a"\nschedule = "0 0 30 2 *"\ncommand = "no-such-program"
[[job]]\nname = "a"\nevery = "1s"\ncommand = ["no-such-program"]\n""",
            [(3, 17), (4, 1), (6, 1), (8, 1)],
        ),
    ],
)
def test_a_program_is_looked_for_whatever_else_is_wrong_with_its_job(
    tmp_path: Path, name: str, text: str, places: list[tuple[int, int]]
) -> None:
    (tmp_path / name).write_text(text)
    loaded = load_jobs(str(tmp_path / name), {"PATH": "/usr/bin:/bin"}, 0.0)
    assert [(it.line, it.column) for it in loaded.problems] == places
