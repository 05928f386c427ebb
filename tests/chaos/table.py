"""Results on disk, one line of JSON a seed, and the tables of the page that are made from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path

from tests.chaos.runner import Outcome
from tests.chaos.schedule import (
    ISOLATIONS,
    KINDS,
    SHARES,
    STORES,
    draw,
    draw_shared,
    may_overlap,
)

BEGIN, END = "<!-- made by make chaos -->", "<!-- end -->"
_BY = {"fair": "arrival (`--fair`)", "priority": "`--priority`"}
BEGIN_SHARED, END_SHARED = "<!-- made by make chaos, shared -->", "<!-- end of shared -->"


@dataclass(frozen=True)
class Result:
    """What is kept of a schedule; the rest of it follows from its seed.

    `impossible`: why two may have lived at once; empty, and `wrong` is a defect.
    """

    seed: int
    isolation: str
    kinds: tuple[str, ...]
    leaders: int
    wrong: str
    impossible: str
    shares: str = ""
    store: str = ""
    order: str = ""


def result_of(outcome: Outcome) -> Result:
    schedule, sight = outcome.schedule, outcome.sight
    return Result(
        schedule.seed,
        schedule.isolation,
        schedule.kinds,
        len(sight.terms),
        sight.wrong,
        may_overlap(schedule, schedule.isolation),
        schedule.shares,
        schedule.store,
        schedule.order,
    )


def add(path: Path, result: Result) -> None:
    """One write a line: a run that was ended leaves no half of one behind."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, (json.dumps(asdict(result)) + "\n").encode())
    finally:
        os.close(fd)


def read(path: Path) -> list[Result]:
    """The results of all seeds; those of another drawing of the schedules do not count."""
    if not path.exists():
        return []
    known = [json.loads(line) for line in path.read_text().splitlines()]
    results = [Result(**{**line, "kinds": tuple(line["kinds"])}) for line in known]
    return [one for one in results if _is_drawn_so(one)]


def _is_drawn_so(result: Result) -> bool:
    schedule = (draw_shared if result.shares else draw)(result.seed)
    drawn = (schedule.shares, schedule.order, schedule.store, schedule.isolation, schedule.kinds)
    return drawn == (result.shares, result.order, result.store, result.isolation, result.kinds)


# -- the page --------------------------------------------------------------------------------------


def write(page: Path, results: Sequence[Result], *, shared: bool = False) -> None:
    """Replace what is between the marks of the page."""
    begin, end = (BEGIN_SHARED, END_SHARED) if shared else (BEGIN, END)
    head, _, rest = page.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    made = shared_tables(results) if shared else tables(results)
    page.write_text(f"{head}{begin}\n{made}\n{end}{tail}")


def shared_tables(results: Sequence[Result]) -> str:
    judged = [one for one in results if not one.impossible]
    wrong = sum(bool(one.wrong) for one in judged)
    said = (
        f"{len(results)} schedules (seeds {_span(results)}), {len(judged)} judged:"
        f" **{wrong} with too many at once, or a token that came twice**."
    )
    by_share = [
        (f"{shares} on {name}", [one for one in of_store if one.shares == shares])
        for shares in SHARES
        for name, of_store in _by_store(judged)
    ]
    rows = _grid("who shares, and the fault", [*by_share, *_by_kind(judged)], least=2)
    apart = _impossible(results, "What nobody can prevent, counted apart:", least=2)
    return f"{said}\n\n{rows}\n\n{apart}"


def tables(results: Sequence[Result]) -> str:
    judged = [one for one in results if not one.impossible]
    wrong = sum(bool(one.wrong) for one in judged)
    followed = sum(one.leaders > 1 for one in judged)
    said = (
        f"{len(results)} schedules (seeds {_span(results)}), {len(judged)} judged:"
        f" **{wrong} with an overlap or a term that did not grow**."
        f" In {followed} of them somebody followed while the schedule ran, which is when two could"
        f" have lived; {sum(len(one.kinds) == 1 for one in judged)} had one fault, the others"
        " two or three."
    )
    by_order = [
        (f"by {name}", [one for one in judged if one.order == order]) for order, name in _BY.items()
    ]
    by_store = "### Store by store\n\n" + _grid("store", [*_by_store(judged), *by_order])
    by_fault = "### Fault by fault\n\n" + _grid("fault, alone or with others", _by_kind(judged))
    return "\n\n".join([said, by_store, by_fault, _by_pair(judged), _impossible(results)])


def _span(results: Sequence[Result]) -> str:
    seeds = [one.seed for one in results]
    return f"{min(seeds)} to {max(seeds)}" if seeds else "none"


def _by_store(judged: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    return [(store, [one for one in judged if one.store == store]) for store in STORES]


def _by_kind(judged: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    return [(kind, [one for one in judged if kind in one.kinds]) for kind in KINDS]


def _by_pair(judged: Sequence[Result]) -> str:
    kinds = sorted({_victim(kind) for kind in KINDS})
    rows = [
        (" + ".join(pair), [one for one in judged if _has_pair(one, pair)])
        for pair in combinations_with_replacement(kinds, 2)
    ]
    return "### Pairs, by whom they befell\n\n" + _grid("both in one schedule", rows)


def _victim(kind: str) -> str:
    last = kind.rpartition(" ")[2]
    if last in ("supervisor", "guard", "child"):
        return last
    return "store" if last in ("server", "empty", "locked", "flush", "cut") else "network"


def _has_pair(result: Result, pair: tuple[str, str]) -> bool:
    victims = [_victim(kind) for kind in result.kinds]
    if pair[0] in victims:
        victims.remove(pair[0])
    else:
        return False
    return pair[1] in victims


def _grid(first: str, rows: Iterable[tuple[str, list[Result]]], least: int = 1) -> str:
    head = "".join(f" {isolation} |" for isolation in ISOLATIONS)
    lines = [f"| {first} |{head}", "|---|" + "---|" * len(ISOLATIONS)]
    for name, of_row in rows:
        if of_row:
            cells = "".join(f" {_cell(of_row, isolation, least)} |" for isolation in ISOLATIONS)
            lines.append(f"| {name} |{cells}")
    return "\n".join(lines)


def _cell(results: Iterable[Result], isolation: str, least: int) -> str:
    """Overlaps of trials, and how many of the trials saw a successor."""
    here = [one for one in results if one.isolation == isolation]
    wrong = sum(bool(one.wrong) for one in here)
    followed = sum(one.leaders > least for one in here)
    return f"{wrong} of {len(here)} ({followed})" if here else "none drawn"


_APART = "### What nobody can prevent (counted apart, never as passed)"


def _impossible(results: Sequence[Result], title: str = _APART, least: int = 1) -> str:
    by_reason: dict[str, list[Result]] = {}
    for one in results:
        if one.impossible:
            by_reason.setdefault(one.impossible, []).append(one)
    rows = sorted(by_reason.items())
    return f"{title}\n\n" + (_grid("reason", rows, least) if rows else "None was drawn.")
