"""Results on disk, one line of JSON a seed, and the table of the page that is made from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from tests.combined.plan import DIMENSIONS, Plan
from tests.combined.worlds import WORLDS
from tests.history.checker import Broken

BEGIN: Final = "<!-- made by python -m tests.combined -->"
END: Final = "<!-- end of combined -->"


@dataclass(frozen=True)
class Result:
    """What is kept of a plan; the rest of it follows from its seed."""

    world: str
    seed: int
    kinds: tuple[str, ...]
    broken: tuple[str, ...]


def result_of(world: str, plan: Plan, broken: Sequence[Broken]) -> Result:
    """One line."""
    rules = tuple(sorted({one.rule for one in broken}))
    return Result(world, plan.seed, tuple(sorted(plan.kinds)), rules)


def add(path: Path, result: Result) -> None:
    """One write a line: a run that was ended leaves no half of one behind."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, (json.dumps(asdict(result)) + "\n").encode())
    finally:
        os.close(fd)


def read(path: Path) -> list[Result]:
    """The results of all seeds; those of another drawing of the plans do not count."""
    if not path.exists():
        return []
    known = [json.loads(line) for line in path.read_text().splitlines()]
    results = [
        Result(one["world"], one["seed"], tuple(one["kinds"]), tuple(one["broken"]))
        for one in known
    ]
    return [one for one in results if _is_drawn_so(one)]


def _is_drawn_so(result: Result) -> bool:
    return tuple(sorted(WORLDS[result.world].draw(result.seed).kinds)) == result.kinds


def write(page: Path, results: Sequence[Result]) -> None:
    """Replace what is between the marks of the page."""
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{grid(results)}\n{END}{tail}")


def grid(results: Sequence[Result]) -> str:
    """A cell: histories that broke a rule, of those that had both."""
    head = "".join(f" {name} |" for name in WORLDS)
    lines = [f"| both in one history |{head}", "|---|" + "---|" * len(WORLDS)]
    for pair in combinations(DIMENSIONS, 2):
        cells = "".join(f" {_cell(results, name, pair)} |" for name in WORLDS)
        lines.append(f"| {' + '.join(pair)} |{cells}")
    total = "".join(f" {_sum(one for one in results if one.world == name)} |" for name in WORLDS)
    return "\n".join([*lines, f"| all |{total}"])


def _cell(results: Sequence[Result], world: str, pair: tuple[str, str]) -> str:
    return _sum(
        one
        for one in results
        if one.world == world and all(set(one.kinds) & set(DIMENSIONS[name]) for name in pair)
    )


def _sum(results: Iterable[Result]) -> str:
    found = list(results)
    return f"{sum(bool(one.broken) for one in found)} of {len(found)}" if found else "not played"
