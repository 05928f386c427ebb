"""Run the tests as `make test` and `make test-all` do: most of them together, then few at a time.

    python -m tests thin|rest WORKERS [arguments of pytest]

`thin` is what `make test` runs, `rest` is what it leaves to `make test-all`; tests/tiers.py says
which and why. Tests that measure time run after the others, and those that load the machine alone,
so that nobody measures the load of others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import tiers

FEW = "2"
"""Workers for the tests that measure time."""

NO_TESTS = 5
"""pytest's exit code if nothing was picked; one of the parts may be empty."""


def main(tier: str, workers: str, *given: str) -> int:
    within = {"thin": tiers.THIN, "rest": tiers.REST}[tier]
    left = {left.file for left in tiers.LEFT} | tiers.TURNS
    timing, crowd = set(tiers.TIMING), set(tiers.CROWD)
    if tier == "rest":
        together, timing, crowd = left - timing - crowd, left & timing, left & crowd
    else:
        together = set[str]()
    codes = {
        run(workers, f"{within} and not timing and not crowd", together, given),
        run(FEW, f"{within} and timing", timing, given),
        run("1", f"{within} and crowd", crowd, given),
    }
    failed = codes - {0, NO_TESTS}
    return max(failed) if failed else min(codes)


def run(workers: str, marks: str, files: set[str], given: tuple[str, ...]) -> int:
    """Run the tests with these marks; only `files` have any, so the others are not collected."""
    if any(Path(word.partition("::")[0]).exists() for word in given):
        files = set()
    where = [str(tiers.TESTS.relative_to(Path.cwd()) / name) for name in sorted(files)]
    options = ("-n", workers, "--dist", "worksteal", "-m", marks)
    command = [sys.executable, "-m", "pytest", *options, *where, *given]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
