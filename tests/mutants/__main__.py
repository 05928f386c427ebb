"""`make mutants`: change one line of the product at a time, and see which test dies.

    python -m tests.mutants [--area A] [--about WORDS] [--jobs N] [--results FILE] [--write PAGE]

A line of JSON a mutation goes to FILE; those that are there, with the same text, file and tests,
are not run again. Exit code 1 if one survived that should have died, or died of another test run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.mutants.mutation import AREAS, Mutation, Result, stands, try_out
from tests.mutants.table import MUTATIONS

RESULTS = Path(".mutants.jsonl")
BEGIN, END = "<!-- made by make mutants -->", "<!-- end of mutants -->"


def main() -> int:
    """See the module."""
    asked = _parser().parse_args()
    chosen = [one for one in MUTATIONS if asked.area in ("", one.area) and asked.about in one.about]
    rotten = [one.about for one in chosen if stands(one) != 1]
    if rotten:
        say(f"their old text does not stand once in the file: {rotten}")
        return 2
    known = read(asked.results)
    left = [one for one in chosen if one.digest not in known]
    with ThreadPoolExecutor(asked.jobs) as pool:
        for one, result in zip(left, pool.map(_try, left), strict=True):
            if isinstance(result, RuntimeError):
                say(f"{one.area}: {one.about}: not run, try again: {result}")
                continue
            known[result.digest] = result
            keep(asked.results, result)
            say(f"{one.area}: {one.about}: {result.died or 'SURVIVED'}")
    if asked.write:
        write(asked.write, page(MUTATIONS, known))
    return int(any(not _as_expected(one, known.get(one.digest)) for one in chosen))


def _try(one: Mutation) -> Result | RuntimeError:
    try:
        return try_out(one)
    except RuntimeError as error:
        return error


def _as_expected(one: Mutation, result: Result | None) -> bool:
    return result is not None and bool(result.died) != bool(one.survives)


def read(path: Path) -> dict[str, Result]:
    """What was found before."""
    if not path.exists():
        return {}
    lines = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {result.digest: result for result in lines}


def keep(path: Path, result: Result) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def write(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what is between the marks of the page."""
    head, _, rest = path.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def page(mutations: Sequence[Mutation], known: dict[str, Result]) -> str:
    """The tables, one an area, and what survived."""
    tried = [one for one in mutations if one.digest in known]
    died = [one for one in tried if known[one.digest].died]
    parts = [f"{len(tried)} mutations: {len(died)} died, {len(tried) - len(died)} survived."]
    for area in AREAS:
        rows = [_row(one, known[one.digest]) for one in tried if one.area == area]
        head = "| what is wrong | file | changed | the test that dies |\n|---|---|---|---|"
        parts.append(f"### {area[0].upper()}{area[1:]}\n\n{head}\n" + "\n".join(rows))
    survived = [f"- {one.about} (`{one.file}`): {one.survives}" for one in tried if one.survives]
    parts.append("### What survives\n\n" + ("\n".join(survived) or "None."))
    return "\n\n".join(parts)


def _row(one: Mutation, result: Result) -> str:
    died = result.died.rpartition("::")[2].partition("[")[0] if result.died else ""
    where = result.died.partition("::")[0].removeprefix("tests/")
    told = f"`{died}` ({where})" if died else "none, see below"
    return f"| {one.about} | `{one.file}` | {_code(one.text)} | {told} |"


def _code(text: str) -> str:
    cut = text if len(text) <= 150 else text[:147] + "..."
    return "`` " + cut.replace("|", "\\|") + " ``"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", default="", choices=["", *AREAS])
    parser.add_argument("--about", default="", help="only those with these words")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    return parser


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
