"""Runs the type checkers as a user has them, and compares what they say with the comments."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
_CODES = re.compile(r"  # E: (.+)$")

Findings = set[tuple[str, int, str]]
"""File, line, and the code of the error."""


def programs(pattern: str = "*") -> list[Path]:
    return sorted([*HERE.glob(f"right_{pattern}.py"), *HERE.glob(f"wrong_{pattern}.py")])


def wanted(files: list[Path], *, pyright: bool) -> Findings:
    """What comments announce: codes of mypy (`arg-type`), and of pyright (`reportCallIssue`)."""
    return {
        (file.name, number, code)
        for file in files
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if (codes := _CODES.search(line))
        for code in codes[1].split()
        if code.startswith("report") == pyright
    }


def mypy(files: list[Path], cache: Path | str = os.devnull) -> Findings:
    """With no settings but `--strict`: those of this project are not its users'."""
    settings = ("--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={cache}")
    said = _output("mypy", "--no-pretty", *settings, *map(str, files))
    found = re.findall(r"^(\S+):(\d+): error: .*\[([\w-]+)\]$", said, re.MULTILINE)
    return {(Path(file).name, int(line), code) for file, line, code in found}


def pyright(files: list[Path]) -> Findings:
    """With the node of the package's own extra: nothing is downloaded."""
    said = _output("pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, files))
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one.get("rule", ""))
        for one in json.loads(said)["generalDiagnostics"]
    }


def _output(checker: str, *options: str) -> str:
    own_node = {"PYRIGHT_PYTHON_GLOBAL_NODE": "0", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", checker, *options],
        cwd=HERE,
        env={**os.environ, **own_node},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{checker} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
