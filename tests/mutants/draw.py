"""Draw changes of the product by a seed, and see which of them the tests notice.

    python -m tests.mutants.draw [--seed N] [--count N] [--jobs N] [--folder F] [--within SECONDS]
                                 [--tier thin|rest] [--list] [--write PAGE]

The same seed draws the same changes from the same source. First all tests of the tier run once, on
a copy that notes which of them come to which change. Then each change is tried on those tests, the
quick ones first, up to the first that fails; a slow one fails twice, else it was the machine.
`--tier rest` tries what `make test` did not notice on what it leaves to `make test-all`. What is
known stays in the folder and is not run again; `--write` puts the table into a page.

A changed line may kill whatever it can reach (`kill -1`): the tests of a change run in a namespace
of processes of their own. That needs Linux, and root.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from tests import tiers
from tests.mutants import equal, reach
from tests.mutants.__main__ import say, write
from tests.mutants.change import Change, drawn
from tests.mutants.mutation import SOURCES, environment_of, failed_of
from tests.support.servers import ROOT

MARKS = {"thin": tiers.THIN, "rest": tiers.REST}
QUICK = 30
"""How many tests are tried first: most changes die of one of them."""
PATIENCE = 900.0
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
"""What a command is run with that must not reach any process of others."""
# A first process that reaps, and is none of the tests.
_WITH_INIT = (*APART, "sh", "-c", '"$@"; exit $?', "sh")
BEGIN, END = "<!-- made by tests.mutants.draw -->", "<!-- end of drawn -->"


@dataclass(frozen=True)
class Result:
    """What came of a change in a tier: the test that it died of, and how many were tried."""

    digest: str
    tier: str
    died: str
    tried: int
    reached: int


def try_out(change: Change, tests: Sequence[str], seconds: Sequence[float]) -> tuple[str, int]:
    """The first test that fails on the changed product, twice, and how many ran until then."""
    with tempfile.TemporaryDirectory(prefix="incumbent-drawn-") as made:
        copy = Path(made) / "incumbent"
        shutil.copytree(SOURCES, copy)
        (copy / change.file).write_text(change.applied((SOURCES / change.file).read_text()))
        tried = 0
        for group in _groups(tests, seconds):
            left = group
            while left:
                died = _died(Path(made), left)
                quick = died and seconds[tests.index(died)] < reach.QUICK
                if died and (quick or _died(Path(made), [died])):
                    return died, tried + len(group)
                left = left[left.index(died) + 1 :] if died in left else []
            tried += len(group)
        return "", tried


def _groups(tests: Sequence[str], seconds: Sequence[float]) -> Iterator[list[str]]:
    """The quick ones, what takes a minute, and all others."""
    minute = max(QUICK, sum(so_far < 60 for so_far in accumulate(seconds)))
    for group in (tests[:QUICK], tests[QUICK:minute], tests[minute:]):
        if group:
            yield list(group)


def _died(sources: Path, tests: Sequence[str]) -> str:
    options = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "--timeout=60")
    try:
        ran = subprocess.run(
            [*_WITH_INIT, sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env=environment_of(sources),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return tests[0]
    if ran.returncode == 0:
        return ""
    found = failed_of(ran.stdout)
    # A timeout ends the process of the tests, and what cannot be imported fails before a test.
    return found if found in tests else tests[0]


def can_be_apart() -> bool:
    """Whether a command runs here that sees no process of others."""
    try:
        return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def main() -> int:
    """See the module."""
    asked = _parser().parse_args()
    chosen = drawn(asked.seed, asked.count)
    if asked.list:
        say("\n".join(change.text for change in chosen))
        return 0
    if not can_be_apart():
        say("nothing is tried: no process namespace of its own (unshare --pid, as root on Linux)")
        return 1
    asked.folder.mkdir(exist_ok=True)
    results = asked.folder / "results"
    known = read(results)
    if asked.tier == "rest":
        chosen = [one for one in chosen if not _died_of(one, known, "thin")]
    left = [change for change in chosen if (change.digest, asked.tier) not in known]
    one = partial(_one, tier=asked.tier, reached=_reached(asked, left), within=asked.within)
    with ThreadPoolExecutor(asked.jobs) as pool:
        tries = {pool.submit(one, change): change for change in left}
        for done in as_completed(tries):
            result, change = done.result(), tries[done]
            known[result.digest, result.tier] = result
            with results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            say(f"{change.text}: {result.died or f'SURVIVED {result.tried} of {result.reached}'}")
    if asked.write:
        write(asked.write, page(asked.seed, drawn(asked.seed, asked.count), known), BEGIN, END)
    return 0


def _one(change: Change, *, tier: str, reached: reach.Reached, within: float) -> Result:
    tests = reached.of(change)
    seconds = [reached.seconds[test] for test in tests]
    fit = sum(so_far < within for so_far in accumulate(seconds))
    died, tried = try_out(change, tests[:fit], seconds[:fit]) if fit else ("", 0)
    return Result(change.digest, tier, died, tried, len(tests))


def _reached(asked: argparse.Namespace, left: Sequence[Change]) -> reach.Reached:
    folder: Path = asked.folder / asked.tier
    if not left:
        return reach.Reached()
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        reach.record(left, folder, ("-m", MARKS[asked.tier]), asked.jobs)
        (folder / "done").touch()
    return reach.read(folder)


def _died_of(change: Change, known: dict[tuple[str, str], Result], tier: str) -> str:
    result = known.get((change.digest, tier))
    return result.died if result else ""


def read(path: Path) -> dict[tuple[str, str], Result]:
    """What was found before, by change and tier."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [Result(**json.loads(line)) for line in lines]
    return {(one.digest, one.tier): one for one in found}


def page(seed: int, chosen: Sequence[Change], known: dict[tuple[str, str], Result]) -> str:
    """Figures, and what survived."""
    tried = [one for one in chosen if (one.digest, "thin") in known]
    thin = [one for one in tried if _died_of(one, known, "thin")]
    rest = [one for one in tried if _died_of(one, known, "rest")]
    unseen = [one for one in tried if one not in thin and one not in rest]
    same = [one for one in unseen if equal.why(one)]
    since = [one for one in unseen if equal.since(one)]
    lived = [one for one in unseen if one not in same and one not in since]
    asked = sum((one.digest, "rest") in known for one in lived)
    rows = [
        ("drawn", len(chosen)),
        ("tried", len(tried)),
        ("`make test` notices", len(thin)),
        ("only `make test-all` notices", len(rest)),
        ("survived, and does the same as before", len(same)),
        ("survived, and a test that was written for it notices it", len(since)),
        ("survived", len(lived)),
        ("of these tried on the rest of `make test-all`", asked),
    ]
    return "\n\n".join(
        (
            f"Seed {seed}: `make test` notices {len(thin)} of {len(tried)} that were tried.",
            "| changes | |\n|---|---|\n"
            + "\n".join(f"| {what} | {count} |" for what, count in rows),
            _listed("Noticed by `make test-all` alone:", rest, known),
            _listed("Survived:", lived, known),
            _listed("Noticed by a test that was written for it:", since, known),
            _listed("Does the same as before:", same, known),
        )
    )


def _listed(title: str, changes: Sequence[Change], known: dict[tuple[str, str], Result]) -> str:
    lines = [
        f"- `` {one.text} ``{': ' if about else ''}{about}"
        for one in changes
        for about in [_about(one, known)]
    ]
    return f"{title}\n\n" + ("\n".join(lines) or "- none")


def _about(change: Change, known: dict[tuple[str, str], Result]) -> str:
    if died := _died_of(change, known, "rest"):
        return f"`{died.rpartition('::')[2]}`"
    reached = sum(
        known[change.digest, tier].reached for tier in MARKS if (change.digest, tier) in known
    )
    if test := equal.since(change):
        return f"`{test}`"
    return equal.why(change) or ("" if reached else "no test comes to it")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.draw", description=__doc__)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(".drawn"))
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds of tests")
    parser.add_argument("--tier", choices=[*MARKS], default="thin")
    parser.add_argument("--list", action="store_true", help="only say what would be changed")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
