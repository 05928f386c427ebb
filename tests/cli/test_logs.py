"""Lines on standard error: for people, or as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cli.tool import command_line, environment, incumbent, start
from tests.support.waiting import eventually

STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def led(tmp_path: Path, *options: str) -> list[str]:
    store = f"sqlite:///{tmp_path}/leases.db"
    with start("-s", store, "lead", "job", *options, "--", "sleep", "60") as leader:
        assert leader.stderr is not None
        lines = [leader.stderr.readline()]
        leader.send_signal(signal.SIGTERM)
        lines += leader.stderr.read().splitlines(keepends=True)
    return lines


def test_the_log_of_lead_says_when(tmp_path: Path) -> None:
    lines = led(tmp_path, "--isolate", "pgroup")
    assert any(re.fullmatch(rf"incumbent: {STAMP} job: leading, term \d+\n", it) for it in lines)


def test_each_line_is_json_if_that_was_asked_for(tmp_path: Path) -> None:
    lines = led(tmp_path, "--log-format", "json", "--isolate", "pgroup", "-v")
    facts = [json.loads(line) for line in lines]
    assert all(re.fullmatch(STAMP, it["time"]) for it in facts)
    assert all({"time", "level", "logger", "message"} <= it.keys() for it in facts)
    assert any(it["message"].startswith("leading, term") and it["name"] == "job" for it in facts)


def test_an_error_is_json_too_with_its_traceback(tmp_path: Path) -> None:
    done = incumbent("--log-format", "json", "-v", "-s", "nonsense://x", "status")
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert said[0]["message"].startswith("'nonsense")
    assert "Traceback" in said[1]["exception"]
    assert said[1]["level"] == "error"


def test_another_format_is_refused() -> None:
    done = incumbent("--log-format", "yaml", "status")
    assert done.returncode == 64
    assert "log-format" in done.stderr


@pytest.fixture
def begun() -> Iterator[ExitStack]:
    """Ends what a test started, however that test ended."""
    with ExitStack() as stack:
        yield stack


def test_a_reader_that_stands_still_keeps_no_leader_from_leading_and_ending(
    tmp_path: Path, begun: ExitStack
) -> None:
    """The command floods the pipe that it shares with us; then every line of ours would block."""
    store, began = f"sqlite:///{tmp_path}/leases.db", tmp_path / "began"
    for _ in range(2):
        flood = ("sh", "-c", f"touch {began}; exec yes >&2")
        leader = begun.enter_context(start("-s", store, "lead", "job", "--", *flood))
        begun.callback(leader.kill)
        eventually(began.exists)
        leader.send_signal(signal.SIGTERM)
        assert leader.wait(60) == 0
        began.unlink()


def test_a_candidate_whose_log_nobody_reads_takes_over_all_the_same(
    tmp_path: Path, begun: ExitStack
) -> None:
    reading, writing = os.pipe()
    begun.callback(os.close, reading)
    begun.callback(os.close, writing)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    store, led = f"sqlite:///{tmp_path}/leases.db", tmp_path / "led"
    line = command_line("-s", store, "lead", "job", "--", "touch", led)
    candidate = begun.enter_context(subprocess.Popen(line, env=environment(), stderr=writing))
    begun.callback(candidate.kill)
    eventually(led.exists)
    candidate.send_signal(signal.SIGTERM)
    assert candidate.wait(60) == 0
