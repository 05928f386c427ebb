"""Starts `incumbent` as a user does, with nothing of the tester's own settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WITHIN = 20.0


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INCUMBENT_")}
    return {**kept, **(extra or {})}


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "incumbent", *map(str, arguments)]


def incumbent(
    *arguments: str | Path, env: Mapping[str, str] | None = None, within: float = WITHIN
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_line(*arguments),
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


def answer(*arguments: str | Path) -> Any:
    """The result of a command that was asked for JSON."""
    return json.loads(incumbent(*arguments, "--json").stdout)["result"]


def start(*arguments: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line(*arguments),
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python(script: str) -> list[str]:
    """CMD: a few lines of Python that start fast."""
    return [sys.executable, "-S", "-c", script]
