"""Lines on standard error: for people, or as JSON."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from tests.cli.tool import incumbent, start

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
