"""Run the tests as `make test` and `make test-all` do: most of them together, then few at a time.

    python -m tests quick|thin|rest WORKERS [arguments of pytest]

`thin` is what `make test` runs, `rest` is what it leaves to `make test-all`; marks beside the tests
say which and why, see tests/tiers.py. `quick` is what of the first needs no server and few
processes. Tests that measure time run after the others, and those that
load the machine alone, so that nobody measures the load of others.

Bytecode is written even where the environment says otherwise: the tests start a thousand
interpreters, and each of them would compile the product again. That of the tests is written before
the workers start: each of them would rewrite the assertions of all files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.support.unprivileged import RUN, run_folder

FEW = "9"
"""Workers for the tests that measure time, and mostly wait."""

ALONE = "0"
"""No worker: pytest's own process runs the tests that load the machine."""

NO_TESTS = 5
"""pytest's exit code if nothing was picked; one of the parts may be empty."""

NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

MANY = 20
"""So many new files are worth two more starts of pytest."""


def main(tier: str, workers: str, *given: str) -> int:
    if tier == "quick":
        return quick(workers, given)
    within = {"thin": tiers.THIN, "rest": tiers.REST}[tier]
    timing, crowd = tiers.files_with("timing"), tiers.files_with("crowd")
    later = timing | crowd
    if tier == "rest":
        left = tiers.files_left()
        together, timing, crowd = named(left - later), left & timing, left & crowd
    else:
        together = passed_over(later | tiers.files_left_wholly())
    rewrite()
    os.environ[RUN] = str(run_folder())
    codes = {
        run(workers, f"{within} and not timing and not crowd", together, given),
        run(FEW, f"{within} and timing", named(timing), given),
        run(ALONE, f"{within} and crowd", named(crowd), given),
    }
    failed = codes - {0, NO_TESTS}
    return max(failed) if failed else min(codes)


def quick(workers: str, given: tuple[str, ...]) -> int:
    """What needs a server is not even collected: that is half of all tests."""
    served = tiers.TURNS.keys() - {"contract/test_memory.py", "contract/test_sqlite.py"}
    later = tiers.files_with("timing") | tiers.files_with("crowd")
    none = served | later | tiers.files_left_wholly() | tiers.files_with_servers()
    return run(workers, tiers.QUICK, passed_over({*none, "cli", "e2e"}), given)


def rewrite() -> None:
    """Let two processes write the bytecode of those tests that have none."""
    new = [str(path) for path in sorted(tiers.TESTS.rglob("test_*.py")) if is_new(path)]
    if len(new) < MANY:
        return
    command = [sys.executable, "-m", "pytest", "-qq", "--collect-only", "-p", "no:cacheprovider"]
    halves = [
        subprocess.Popen(
            [*command, *half],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for half in (new[::2], new[1::2])
    ]
    for process in halves:
        # What cannot be collected is told by the run itself.
        process.wait()


def is_new(path: Path) -> bool:
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    written = path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"
    return not written.exists() or written.stat().st_mtime < path.stat().st_mtime


def environment() -> dict[str, str]:
    """Plugins of hypothesis are none that tests use; that of trio imports it into each worker."""
    kept = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    return {**kept, "HYPOTHESIS_NO_PLUGINS": "1"}


def named(files: set[str]) -> list[str]:
    return [str(tiers.TESTS.relative_to(Path.cwd()) / name) for name in sorted(files)]


def passed_over(files: set[str]) -> list[str]:
    return [f"--pass-over={','.join(sorted(files))}"]


def run(workers: str, marks: str, where: list[str], given: tuple[str, ...]) -> int:
    """Run the tests with these marks; only those `where` have any, so no other is collected."""
    if any(Path(word.partition("::")[0]).exists() for word in given):
        where = []
    options = ("-n", workers, "--dist", "worksteal", "-m", marks)
    command = [sys.executable, "-m", "pytest", *options, *where, *given]
    return subprocess.run(command, check=False, env=environment()).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
