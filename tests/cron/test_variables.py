"""${NAME} and ${NAME:-default} in job files."""

from __future__ import annotations

from typing import Any

import pytest

from incumbent.cron.jobfile import parse_jobfile
from incumbent.cron.variables import fill_in
from incumbent.errors import ConfigError

ENVIRON = {"ZONE": "Europe/Berlin", "EMPTY": "", "TOOL": "/bin/echo", "N": "7"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${ZONE}", "Europe/Berlin"),
        ("a ${ZONE} b ${N}", "a Europe/Berlin b 7"),
        ("${GONE:-UTC}", "UTC"),
        ("${GONE:-}", ""),
        ("${EMPTY:-UTC}", "UTC"),
        ("${EMPTY}", ""),
        ("${ZONE:-UTC}", "Europe/Berlin"),
        ("$${ZONE}", "${ZONE}"),
        ("$ZONE", "$ZONE"),
        ("${1}", "${1}"),
        ("${ZONE", "${ZONE"),
        (["${TOOL}", 3], ["/bin/echo", 3]),
        ({"A": "${N}", "B": {"C": "${GONE:-x}"}}, {"A": "7", "B": {"C": "x"}}),
        (5, 5),
    ],
)
def test_variables_are_replaced(value: Any, expected: Any) -> None:
    assert fill_in(value, "env", ENVIRON) == expected


def test_what_a_variable_says_is_not_replaced_again() -> None:
    assert fill_in("${A}", "cwd", {"A": "${B}", "B": "no"}) == "${B}"


def test_a_text_for_a_shell_is_the_shells() -> None:
    assert fill_in("echo ${GONE}", "command", ENVIRON) == "echo ${GONE}"
    assert fill_in(["echo", "${N}"], "command", ENVIRON) == ["echo", "7"]


def test_a_variable_that_is_not_set_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"GONE is not set: set it, or write \$\{GONE:-default\}"):
        fill_in("${GONE}", "cwd", ENVIRON)


FILE = """
[defaults]
timezone = "${ZONE:-UTC}"

[[job]]
name = "sync-${N}"
schedule = "30 5 * * *"
command = ["${TOOL}", "${GREETING:-hello}"]
env = { WHERE = "${WHERE}" }
"""


def test_a_job_file_has_the_variables_of_the_instance() -> None:
    (job,), problems = parse_jobfile(FILE, "jobs.toml", {**ENVIRON, "WHERE": "here"})
    assert problems == ()
    assert job.name == "sync-7"
    assert job.argv == ("/bin/echo", "hello")
    assert job.env == {"WHERE": "here"}
    assert "Europe/Berlin" in str(job.schedule)


def test_a_variable_that_is_not_set_is_a_problem_with_its_place() -> None:
    _, problems = parse_jobfile(FILE, "jobs.toml", ENVIRON)
    (problem,) = problems
    assert (problem.line, "WHERE is not set" in problem.text) == (9, True)


def test_a_bad_schedule_from_a_variable_is_a_problem_at_its_value() -> None:
    text = '[[job]]\nname = "a"\nschedule = "${WHEN}"\ncommand = "true"\n'
    _, problems = parse_jobfile(text, "jobs.toml", {"WHEN": "0 25 * * *"})
    assert [problem.line for problem in problems] == [3]
