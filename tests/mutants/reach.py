"""Which tests come to the places that are drawn: a copy of the product says so.

At each place the copy calls `hit`, which notes the test that pytest names in the environment.
Processes that a test starts inherit that name.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.change import Change
from tests.mutants.mutation import SOURCES, environment_of
from tests.support.servers import ROOT

MODULE = "incumbent_reached"
_HIT = """
import os
_known = set()
def hit(place):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (place, test) not in _known:
        _known.add((place, test))
        try:
            file = os.open({file!r}, os.O_WRONLY | os.O_APPEND)
            os.write(file, f"{{place}}\\t{{test}}\\n".encode())
            os.close(file)
        except OSError:
            pass
"""
QUICK = 0.3
"""Seconds."""
_TOOK = re.compile(r"^([0-9.]+)s (?:call|setup|teardown) +(tests/.+)$", re.MULTILINE)


@dataclass
class Reached:
    """By place the tests that come to it; by test how long it took."""

    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def of(self, change: Change) -> list[str]:
        """Quick ones first, and of these the files first whose subject the change seems to be.

        Only tests of this run, and not what pytest was asked for inside a test.
        """
        found = self.tests.get(change.place, set()) & self.seconds.keys()
        here = Counter(map(_file, found))
        all_of = self._sizes()

        def order(test: str) -> tuple[bool, float, str, float]:
            file, seconds = _file(test), self.seconds[test]
            if seconds > QUICK:
                return True, seconds, file, 0.0
            return False, -(here[file] ** 2) / all_of[file], file, seconds

        return sorted(found, key=order)

    def _sizes(self) -> Counter[str]:
        """How many tests there are of each file."""
        return Counter(map(_file, self.seconds))


def _file(test: str) -> str:
    return test.partition("::")[0]


def marked(source: str, changes: Iterable[Change]) -> str:
    """The source with a call at each place that can carry one."""
    inserts: list[tuple[int, int, str]] = []
    for change in changes:
        call = f"__import__({MODULE!r}).hit({change.place!r})"
        statement = change.new == "pass"
        # Its own brackets: what is returned may be a tuple without any.
        before, after = (f"{call}; ", "") if statement else (f"({call}, (", "))[1]")
        longest = change.end - change.start
        # What begins at the same character is opened from the outside in, and closed the other way.
        mine = [(change.start, -longest, before), (change.end, longest - (1 << 30), after)]
        try:
            ast.parse(_with(source, [*inserts, *mine]))
        except SyntaxError:  # a pattern of `match`: its place stays unknown
            continue
        inserts += mine
    return _with(source, inserts)


def _with(source: str, inserts: list[tuple[int, int, str]]) -> str:
    for at, _, text in sorted(inserts, key=lambda one: one[:2], reverse=True):
        source = source[:at] + text + source[at:]
    return source


def record(changes: Sequence[Change], folder: Path, tests: Sequence[str], workers: int) -> None:
    """Run the tests on a marked copy; what was reached goes to `folder`."""
    copy, hits = folder / "marked", folder / "hits"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(SOURCES, copy / "incumbent")
    hits.write_text("")
    hits.chmod(0o666)  # some tests start processes of another user
    (copy / f"{MODULE}.py").write_text(_HIT.format(file=str(hits.resolve())))
    for file in {change.file for change in changes}:
        source = (SOURCES / file).read_text()
        here = [change for change in changes if change.file == file]
        (copy / "incumbent" / file).write_text(marked(source, here))
    options = ("-n", str(workers), "--dist", "worksteal", "--durations=0", "-vv")
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", *tests]
    with (folder / "log").open("w") as log:
        subprocess.run(command, cwd=ROOT, env=environment_of(copy), stdout=log, check=False)


def read(folder: Path) -> Reached:
    """What `record` left."""
    found = Reached()
    log = (folder / "log").read_text()
    failed = {line.split()[1] for line in log.splitlines() if line.startswith(("FAILED", "ERROR"))}
    for seconds, test in _TOOK.findall(log):
        if test not in failed:
            found.seconds[test] += float(seconds)
    for line in (folder / "hits").read_text().splitlines():
        place, _, test = line.partition("\t")
        found.tests[place].add(test)
    return found
