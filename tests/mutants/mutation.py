"""What a mutation is, and how one is tried."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from tests.support.servers import ROOT
from tests.tiers import THIN

__all__ = [
    "AREAS",
    "SOURCES",
    "Mutation",
    "Result",
    "environment_of",
    "failed_of",
    "in_area",
    "place",
    "stands",
    "try_out",
]

SOURCES: Final = ROOT / "src" / "incumbent"
AREAS: Final = (
    "rules",
    "lease",
    "protocol",
    "dialects",
    "Lua",
    "SQL",
    "supervision",
    "cron",
    "fencing",
)
_WITHIN: Final = 300.0
_TRIES: Final = 3
_AROUND: Final = 4
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """In `file` (below src/incumbent) `old` becomes `new`, and one of `tests` has to fail.

    `survives`: why none can; empty for all that have to die.
    """

    area: str
    about: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def text(self) -> str:
        """For people, in one line: what differs, with a few words around it."""
        old, new = self.old.split(), self.new.split()
        first = len(list(_shared(old, new)))
        rest = min(len(old), len(new)) - first
        last = len(list(_shared(old[::-1][:rest], new[::-1][:rest])))
        start = max(0, first - _AROUND)
        shown = [words[start : len(words) - max(0, last - _AROUND)] for words in (old, new)]
        return f"{' '.join(shown[0])} -> {' '.join(shown[1]) or '(nothing)'}"

    @property
    def digest(self) -> str:
        """Changes with the mutation, with the file that it is made in, and with its tests."""
        files = [SOURCES / self.file, *(ROOT / test.partition("::")[0] for test in self.tests)]
        parts = [self.old, self.new, *self.tests, *(path.read_text() for path in files)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """`died`: the first test that failed; empty: the mutation survived."""

    digest: str
    died: str


def in_area(area: str) -> Callable[..., Mutation]:
    """A short way to write mutations of one area: about, file, old, new, tests."""

    def made(
        about: str, file: str, old: str, new: str, *tests: str, survives: str = ""
    ) -> Mutation:
        return Mutation(area, about, file, old, new, tests, survives)

    return made


def _shared(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """The words with which both begin."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return (word for word, _ in pairs)


def stands(mutation: Mutation) -> int:
    """How often the old text is in its file; any other number than 1 makes it a mutation of air."""
    path = SOURCES / mutation.file
    return path.read_text().count(mutation.old) if path.exists() else 0


def place(mutation: Mutation, folder: Path) -> None:
    """A copy of the product with the mutation, in `folder`."""
    shutil.copytree(SOURCES, folder / "incumbent")
    path = folder / "incumbent" / mutation.file
    path.write_text(path.read_text().replace(mutation.old, mutation.new))


def try_out(mutation: Mutation) -> Result:
    """Run its tests on the mutant. The test that dies has to die again: else it was the machine.

    Raises RuntimeError if they could not be run. Without a mutation they are those of `make test`.
    """
    with tempfile.TemporaryDirectory(prefix="incumbent-mutant-") as made:
        place(mutation, Path(made))
        died = ""
        for _ in range(_TRIES):
            died = _died(Path(made), mutation.tests)
            if not died or _died(Path(made), [died.partition("[")[0]]):
                return Result(mutation.digest, died)
    raise RuntimeError(f"{died} died now and then only")


def environment_of(sources: Path) -> dict[str, str]:
    """The product of this folder is imported, and compiled once for all processes of a test."""
    kept = {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(sources)}


def failed_of(output: str) -> str:
    """The first test that failed, by what pytest wrote."""
    found = _FAILED.search(output)
    return found[1] if found else ""


def _died(sources: Path, tests: Sequence[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += ["-m", THIN]
    try:
        ran = subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env=environment_of(sources),
            capture_output=True,
            text=True,
            timeout=_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return tests[0]
    found = failed_of(ran.stdout)
    if ran.returncode == 0:
        return ""
    if ran.returncode == 1 and found:
        return found
    raise RuntimeError(f"{tests} could not be run:\n{ran.stdout[-2000:]}{ran.stderr[-1000:]}")
