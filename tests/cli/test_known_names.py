"""A name that never was is said to be none, with the one that was meant; shells complete names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from incumbent import Lock
from incumbent.cli.help import script_for
from tests import tiers
from tests.cli.tool import answer, environment, incumbent, start
from tests.support.waiting import eventually


@pytest.fixture
def nightly(store: str) -> str:
    """A store in which only "nightly" is on record."""
    assert incumbent("-s", store, "run", "nightly", "--", "true").returncode == 0
    return store


@pytest.mark.parametrize("command", ["status", "why", "history"])
def test_a_misspelt_name_is_nothing_on_record_and_names_the_one_that_was_meant(
    nightly: str, command: str
) -> None:
    done = incumbent("-s", nightly, command, "nightyl")
    assert done.returncode == 0
    assert "nothing on record; did you mean 'nightly'?" in done.stdout + done.stderr


def test_a_name_that_has_no_more_on_record_is_not_taken_for_itself(store: str) -> None:
    for words in (("pause",), ("unpause",)):
        assert incumbent("-s", store, *words, "p").returncode == 0
    done = incumbent("-s", store, "why", "p")
    assert done.stdout.splitlines()[-1] == "p: nothing on record"
    assert "did you mean" not in done.stderr


def test_a_name_that_begins_as_options_do_can_be_steered(store: str) -> None:
    with Lock("-x", store=store):
        assert "held" in incumbent("-s", store, "status", "--", "-x").stdout
        done = incumbent("-s", store, "pause", "--reason", "r", "--", "-x", "extra")
        assert (done.returncode, done.stderr) == (
            64,
            "incumbent: pause runs nothing: only a NAME may follow `--`\n",
        )
    assert incumbent("-s", store, "pause", "--", "-x").returncode == 0
    assert "paused" in incumbent("-s", store, "why", "--", "-x").stdout


def test_a_name_that_is_like_none_is_nothing_on_record(nightly: str) -> None:
    done = incumbent("-s", nightly, "why", "xyzzy")
    assert done.stdout.splitlines()[-1] == "xyzzy: nothing on record"


def test_a_name_on_record_is_not_said_to_be_unknown(nightly: str) -> None:
    for command in ("status", "why", "history"):
        done = incumbent("-s", nightly, command, "nightly")
        assert "nothing on record" not in done.stdout + done.stderr


def test_a_program_is_told_whether_a_name_is_known(nightly: str) -> None:
    for name, known in (("nightly", True), ("nightyl", False)):
        assert answer("-s", nightly, "status", name)["known"] is known
        assert answer("-s", nightly, "why", name)["known"] is known


def test_a_pool_is_known_by_its_places(store: str) -> None:
    assert incumbent("-s", store, "run", "pool/1", "--", "true").returncode == 0
    assert "nothing on record" not in incumbent("-s", store, "why", "pool").stdout


def test_names_are_listed_one_a_line(nightly: str) -> None:
    assert incumbent("-s", nightly, "status", "--names").stdout == "nightly\n"


@pytest.mark.left(tiers.FORMS, "why")
@pytest.mark.parametrize("command", ["why", "history", "pause", "status", "run"])
def test_bash_completes_the_names_of_the_store(nightly: str, command: str, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "incumbent"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m incumbent "$@"\n')
    tool.chmod(0o755)
    script = (
        f"{script_for('bash')}\nCOMP_WORDS=(incumbent {command} ni); COMP_CWORD=2\n"
        '_incumbent; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = environment({"INCUMBENT_STORE": nightly})
    env["PATH"] = f"{folder}:{env['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-euc", script], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.split() == ["nightly"]


# -- jobs ------------------------------------------------------------------------------------------

JOBS = """
[[job]]
name = "sync-good"
every = "1s"
command = "true"

[[job]]
name = "sync-bad"
every = "1s"
command = "false"

[[job]]
name = "other"
every = "1s"
command = "false"
"""


def jobs(store: str, *words: str) -> set[str]:
    found: Any = answer("-s", store, "jobs", *words)
    return {job["name"] for job in found["jobs"]}


def test_jobs_that_failed_and_jobs_with_a_prefix_are_shown_alone(
    store: str, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(JOBS)
    instance = start("-s", store, "cron", file)
    try:
        eventually(lambda: jobs(store, "--failed") == {"sync-bad", "other"}, within=60)
    finally:
        # What runs each second may be running whenever one looks.
        instance.terminate()
        instance.communicate(timeout=60)
    assert jobs(store, "--prefix", "sync-") == {"sync-good", "sync-bad"}
    assert jobs(store, "--failed", "--prefix", "sync-") == {"sync-bad"}
    shown = incumbent("-s", store, "jobs", "--failed").stdout
    assert "sync-bad" in shown
    assert "sync-good" not in shown
    status = incumbent("-s", store, "status", "sync-bad").stdout
    assert "last run  failed (" in status
    assert "slot" not in status.replace(", slot ", "")
    assert "jobs: 3, running: 0, failed: 2; see" in incumbent("-s", store, "status").stdout


@pytest.mark.left(tiers.FORMS, "words0")
@pytest.mark.parametrize(
    "words", [("wait",), ("pause",), ("unpause",), ("break",), ("resign",), ("trigger",)]
)
def test_a_verb_for_a_misspelt_name_names_the_one_that_was_meant(
    nightly: str, words: tuple[str, ...]
) -> None:
    done = incumbent("-s", nightly, *words, "nightyl")
    assert "nothing on record; did you mean 'nightly'?" in done.stderr
    again = incumbent("-s", nightly, *words, "nightly")
    assert "did you mean" not in again.stderr
