"""Starting up, as whole processes; figures are what comes on top of a bare interpreter.

The bound is in milliseconds here, as a user feels them, so the table shows differences too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

__all__ = ["StartRow", "start_rows"]


@dataclass(frozen=True)
class StartRow:
    """Median milliseconds over a bare interpreter of the same turn."""

    name: str
    extra_ms: float
    target_ms: float | None


def start_rows(turns: int) -> list[StartRow]:
    """Each command once a turn, right after the bare interpreter it is compared with."""
    with tempfile.TemporaryDirectory() as folder:
        python = sys.executable
        command = [str(Path(python).with_name("incumbent")), "--store", f"sqlite://{folder}/x.db"]
        return [
            _row("import incumbent", [python, "-c", "import incumbent"], turns, 40),
            _row("incumbent.Lock, not used", [python, "-c", "import incumbent.locks.lock"], turns),
            _row("import filelock", [python, "-c", "import filelock"], turns),
            _row("import redis", [python, "-c", "import redis"], turns),
            _row(
                "incumbent run NAME -- true, SQLite",
                [*command, "-q", "run", "bench", "--", "true"],
                turns,
                150,
            ),
        ]


def _row(name: str, command: list[str], turns: int, target: float | None = None) -> StartRow:
    bare = [sys.executable, "-c", "pass"]
    _seconds(command)
    extra = [_seconds(command) - _seconds(bare) for _ in range(turns)]
    return StartRow(name, median(extra) * 1000, target)


def _seconds(command: list[str]) -> float:
    started = perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    return perf_counter() - started
