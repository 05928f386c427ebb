"""Run the tests as `make test` and `make test-all` do: most of them together, then few at a time.

    python -m tests thin|rest WORKERS [arguments of pytest]

`thin` is what `make test` runs, `rest` is what it leaves to `make test-all`; tests/tiers.py says
which and why. Tests that measure time run last, so that they do not measure the load of the others.
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
    together = run("-n", workers, "-m", f"{within} and not timing", *_files(tier, given), *given)
    timing = _files(tier, given, timing=True)
    alone = run("-n", FEW, "-m", f"{within} and timing", *timing, *given)
    failed = {together, alone} - {0, NO_TESTS}
    return max(failed) if failed else min(together, alone)


def _files(tier: str, given: tuple[str, ...], *, timing: bool = False) -> list[str]:
    """Where the tests of this part are: the others need not be collected. Given files go first."""
    if any(Path(word.partition("::")[0]).exists() for word in given):
        return []
    left, measured = {left.file for left in tiers.LEFT}, set(tiers.TIMING)
    if tier == "thin":
        names = measured if timing else set[str]()
    else:
        names = left & measured if timing else left - measured
    return [str(tiers.TESTS.relative_to(Path.cwd()) / name) for name in sorted(names)]


def run(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "--dist", "worksteal", *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
