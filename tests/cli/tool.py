"""Starts `incumbent` as a user does, with nothing of the tester's own settings."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from incumbent.cli.main import main
from incumbent.supervise.codes import UNPROVED

WITHIN = 60.0

ASKS = {
    *("break", "doctor", "history", "jobs", "pause", "resign", "status"),
    *("trigger", "unpause", "wait", "why"),
}
"""Commands that ask the store and run nothing."""
ACTS = {"run", "lead", "work", "cron", "serve", "demo"}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INCUMBENT_")}
    return {**kept, **(extra or {})}


def command_line(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "incumbent", *map(str, arguments)]


def incumbent(
    *arguments: str | Path, env: Mapping[str, str] | None = None, within: float = WITHIN
) -> subprocess.CompletedProcess[str]:
    """What a command said, and its exit code. One that only asks gets no process of its own.

    To start Python takes many times as long as the question, and tests ask hundreds of them.
    """
    words = [str(it) for it in arguments]
    if _asks(words) and threading.current_thread() is threading.main_thread():
        return called(words, environment(env))
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
    """The result of a command that was asked for JSON.

    On a busy machine a store may not answer within the one or two seconds that a command gives it.
    """
    tries = (incumbent(*arguments, "--json") for _ in range(10))
    done = next(it for it in tries if it.stdout or it.returncode != UNPROVED)
    return json.loads(done.stdout)["result"]


def _asks(words: list[str]) -> bool:
    # A check of a module imports that, and what one test imports is there for the next.
    if "--check" in words and "cron" in words:
        return any(Path(word).is_file() for word in words)
    return next((word in ASKS for word in words if word in ASKS | ACTS), False)


def called(words: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """In this process, which `env` replaces; for what asks, or is refused before it begins."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, env, clear=True),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), errors.getvalue())


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
