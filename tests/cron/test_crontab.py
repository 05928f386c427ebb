"""A plain crontab: settings, names, percent signs, and every problem with its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incumbent.cron.crontab import derived_name, parse_crontab, split_percent
from incumbent.cron.spec import JobSpec


def read(text: str) -> tuple[JobSpec, ...]:
    specs, problems = parse_crontab(text, "jobs")
    assert [it for it in problems if not it.warning] == []
    return specs


def wrong(text: str) -> list[str]:
    _, problems = parse_crontab(text, "jobs")
    return [str(it) for it in problems]


def test_a_line_is_five_fields_and_a_shell_line() -> None:
    (job,) = read("  30 5\t* * 1-5   curl -fsS 'http://x/' | jq .  \n")
    assert job.shell_line == "curl -fsS 'http://x/' | jq ."
    assert job.argv == ("/bin/sh", "-c", "curl -fsS 'http://x/' | jq .")
    assert job.schedule.describe() == "30 5 * * 1-5 (UTC)"
    assert job.source == "jobs:1"
    assert job.command_at == (1, 18)


def test_a_word_with_an_at_sign_stands_for_the_fields() -> None:
    (job,) = read("@daily  date")
    assert (job.shell_line, job.schedule.describe()) == ("date", "@daily (UTC)")


def test_comments_blank_lines_and_the_ends_of_windows_lines_are_nothing() -> None:
    assert len(read("# 1\r\n\r\n  # 2\r\n0 5 * * * date\r\n")) == 1
    assert read("0 5 * * * date\r\n")[0].shell_line == "date"


def test_settings_count_for_the_lines_below_them() -> None:
    text = """\
0 1 * * * a
A = one two \t
"B B"='  kept  '
C=
0 2 * * * b
A="it's"
0 3 * * * c
"""
    envs = [dict(job.env) for job in read(text)]
    assert envs == [
        {},
        {"A": "one two", "B B": "  kept  ", "C": ""},
        {"A": "it's", "B B": "  kept  ", "C": ""},
    ]


def test_shell_and_home_are_honoured() -> None:
    (job,) = read("SHELL=/bin/bash\nHOME=/srv\n0 5 * * * date")
    assert job.argv == ("/bin/bash", "-c", "date")
    assert job.cwd == "/srv"


def test_zones_count_for_the_lines_below_and_cron_tz_goes_before_tz() -> None:
    text = """\
0 1 * * * a
TZ=America/New_York
0 1 * * * b
CRON_TZ=Europe/Berlin
0 1 * * * c
TZ=Asia/Tokyo
0 1 * * * d
"""
    jobs = read(text)
    zones = ["UTC", "America/New_York", "Europe/Berlin", "Europe/Berlin"]
    assert [job.timezone for job in jobs] == zones
    assert jobs[-1].env["TZ"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("command", "line", "stdin"),
    [
        ("date", "date", None),
        ("mail joe%Hi,%%bye", "mail joe", "Hi,\n\nbye\n"),
        ("mail joe%Hi%", "mail joe", "Hi\n"),
        ("cat%", "cat", "\n"),
        (r"date +\%F", "date +%F", None),
        (r"cat%100\%", "cat", "100%\n"),
        (r"a \\ \n b\%", r"a \\ \n b%", None),
        (r"a \\%b", r"a \\", "b\n"),
    ],
)
def test_a_percent_sign_begins_the_input(command: str, line: str, stdin: str | None) -> None:
    assert split_percent(command) == (line, stdin)


# -- names -----------------------------------------------------------------------------------------


def test_a_comment_names_the_job_below_it() -> None:
    text = "# name: nightly\n# why: billing\nA=b\n0 5 * * * date\n0 6 * * * date\n"
    assert [job.name for job in read(text)] == ["nightly", derived_name("date")]


def test_a_name_comes_from_the_command_alone() -> None:
    (before,) = read("0 5 * * * /usr/bin/curl -fsS http://x/")
    (after,) = read("CRON_TZ=Asia/Tokyo\n\n\n@daily /usr/bin/curl -fsS http://x/")
    (other,) = read("0 5 * * * /usr/bin/curl -fsS http://y/")
    assert before.name == after.name == "curl-d6980bda"
    assert other.name.startswith("curl-")
    assert other.name != before.name


@settings(deadline=None)
@given(st.text(min_size=1).filter(lambda it: it.strip() and "\n" not in it))
def test_every_command_has_a_name_that_stores_take(command: str) -> None:
    from incumbent.stores.names import check_name

    assert check_name(derived_name(command)) == derived_name(command)


# -- problems --------------------------------------------------------------------------------------

PROBLEMS = [
    ("0 5 30 2 * date", "jobs:1:5: '30': no such day"),
    ("\n\n  0 25 * * * date", "jobs:3:5: '25' is not a hour: 0-23"),
    ("@reboot date", "jobs:1:1: @reboot has no slot in a fleet"),
    ("@every 5m date", "jobs:1:1: @every is not cron"),
    ("@dialy date", "jobs:1:1: '@dialy' is none of @yearly"),
    ("0 5 * * *", "jobs:1:10: a line is five fields"),
    ("@daily", "jobs:1:7: a line is five fields"),
    ("date", "jobs:1:5: a line is five fields"),
    ("0 0 5 * * * date", "jobs:1:11: six fields: a crontab has five"),
    ("0 0 5 * * MON date", "jobs:1:11: six fields: a crontab has five"),
    ("TZ=Europe/Berln", "jobs:1:4: 'Europe/Berln' is not a time zone; did you mean Europe/Berlin?"),
    ("A='b", "jobs:1:3: the quotes do not match"),
    ("A='b' c", "jobs:1:3: the quotes do not match"),
    ("A='b' 'c'", "jobs:1:3: the quotes do not match"),
    ("# name: a b\n0 5 * * * date", "jobs:1:9: 'a b' is not a name"),
    ("# name: a\n", "jobs:1:9: the name 'a' has no job below it"),
    ("# name: a\n# name: b\n0 5 * * * date", "jobs:1:9: the name 'a' has no job below it"),
    ("MAILTO=joe", "jobs:1:1: warning: MAILTO is not used"),
    ("PATH=$HOME/bin:/bin", "jobs:1:1: warning: cron puts no variables into PATH"),
]


@pytest.mark.parametrize(("text", "said"), PROBLEMS)
def test_a_problem_names_its_place(text: str, said: str) -> None:
    (problem,) = wrong(text)
    assert problem.startswith(said)


def test_two_jobs_of_one_name_are_refused() -> None:
    named = wrong("# name: x\n0 5 * * * a\n# name: x\n0 5 * * * b\n")
    assert named == ["jobs:3:9: the name 'x' is that of line 2 too"]
    (derived,) = wrong("0 5 * * * date\n0 6 * * * date\n")
    assert derived.startswith("jobs:2:1: the name 'date-0e87632c' is that of line 1 too: the same")


def test_all_problems_are_told() -> None:
    lines = [text for text, _ in PROBLEMS if "\n" not in text]
    assert len(wrong("\n".join(lines))) >= len(lines)


def test_an_empty_mailto_is_as_good_as_none() -> None:
    assert wrong('MAILTO=""\nMAILTO=\n') == []


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    specs, problems = parse_crontab(text, "jobs")
    lines = text.count("\n") + 1
    assert all(1 <= it.line <= lines and it.column >= 1 for it in problems)
    assert len({spec.name for spec in specs}) == len(specs)
