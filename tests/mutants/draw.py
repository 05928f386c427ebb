"""Draw changes of the product by a seed, and see which of them a selection of tests notices.

    python -m tests.mutants.draw [--seed N] [--count N] [--jobs N] [--results FILE]
                                 [--list] [-- arguments of pytest]

Each change is one operator, number, condition or statement of src/incumbent. The same seed draws
the same changes from the same source. A line of JSON a change goes to FILE; one that is there, with
the same file and the same arguments, is not run again. Without arguments the tests are those of
`make test`: `-- -m full` are those that it leaves to `make test-all`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.mutants.__main__ import keep, read, say
from tests.mutants.mutation import SOURCES, Result
from tests.support.servers import ROOT

RESULTS = Path(".drawn.jsonl")
THIN = ("-m", "not full")
WITHIN = 3600.0
# What people see of a demonstration, and what runs the tests, has no promise to break.
LEFT_OUT = ("demo", "testing")

_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True)
class Change:
    """In `file` (below src/incumbent) the characters from `start` to `end` become `new`."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def text(self) -> str:
        old, new = (" ".join(words.split()) for words in (self.old, self.new))
        return f"{self.file}:{self.line}: {old} -> {new}"

    def applied(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    def digest(self, tests: Sequence[str]) -> str:
        """Changes with the changed file and with the selection of tests."""
        changed = self.applied((SOURCES / self.file).read_text())
        return hashlib.sha256("\0".join([self.file, changed, *tests]).encode()).hexdigest()[:16]


def changes(file: str, source: str) -> Iterator[Change]:
    """All of one file, in the order of its text."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def place(line: int, column: int) -> int:
        text = source[lines[line - 1] : lines[line]].encode()
        return lines[line - 1] + len(text[:column].decode())

    whole = ast.parse(source)
    for node, new in sorted(_mutated(whole), key=lambda pair: _where(pair[0])):
        start = place(node.lineno, node.col_offset)
        end = place(node.end_lineno or node.lineno, node.end_col_offset or 0)
        yield Change(file, node.lineno, start, end, source[start:end], new)


def _where(node: ast.expr | ast.stmt) -> tuple[int, int, int]:
    return node.lineno, node.col_offset, node.end_col_offset or 0


def _mutated(whole: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Each place that can be changed, with what stands there then."""
    for function in ast.walk(whole):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in _inside(statement):
                yield from _of_statement(node)
                yield from _of_expression(node)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Not into functions, which have their own turn, nor annotations, nor formatted text."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr):
        return
    yield node
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children if name != "annotation" else ():
            if isinstance(child, ast.AST):
                yield from _inside(child)


def _of_statement(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield value, "None"


def _of_expression(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OTHER:
            other = ast.Compare(node.left, [_other(op)], node.comparators)
            yield node, f"({ast.unparse(other)})"
        case ast.BoolOp(op=op):
            yield node, f"({ast.unparse(ast.BoolOp(_other(op), node.values))})"
        case ast.BinOp(op=op) if type(op) in _OTHER and not _is_text(node):
            yield node, f"({ast.unparse(ast.BinOp(node.left, _other(op), node.right))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, str(value + 1)


def _other(op: ast.AST) -> Any:
    return _OTHER[type(op)]()


def _is_text(node: ast.BinOp) -> bool:
    """Strings and tuples that are joined: another operator would only be a TypeError."""
    kinds = ast.JoinedStr | ast.Tuple | ast.List
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def drawn(seed: int, count: int) -> list[Change]:
    """The same for the same seed and source; in the order in which they were drawn."""
    found = [
        change
        for path in sorted(SOURCES.rglob("*.py"))
        for file in [path.relative_to(SOURCES).as_posix()]
        if not file.startswith(LEFT_OUT)
        for change in changes(file, path.read_text())
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def try_out(change: Change, tests: Sequence[str]) -> Result:
    """Run the tests on a copy of the product with the change, up to the first that fails."""
    with tempfile.TemporaryDirectory(prefix="incumbent-drawn-") as made:
        copy = Path(made) / "incumbent"
        shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / change.file).write_text(change.applied((SOURCES / change.file).read_text()))
        return Result(change.digest(tests), _died(Path(made), tests))


def _died(sources: Path, tests: Sequence[str]) -> str:
    options = ("-x", "-q", "--no-header", "-p", "no:cacheprovider")
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    # Code that cannot be imported fails before a test has a name.
    return "" if ran.returncode == 0 else (failed or [f"exit code {ran.returncode}"])[0]


def main() -> int:
    """See the module."""
    asked = _parser().parse_args()
    tests = tuple(word for word in asked.tests if word != "--") or THIN
    chosen = drawn(asked.seed, asked.count)
    if asked.list:
        say("\n".join(change.text for change in chosen))
        return 0
    known = read(asked.results)
    left = [change for change in chosen if change.digest(tests) not in known]
    with ThreadPoolExecutor(asked.jobs) as pool:
        tries = pool.map(partial(try_out, tests=tests), left)
        for change, result in zip(left, tries, strict=True):
            known[result.digest] = result
            keep(asked.results, result)
            say(f"{change.text}: {result.died or 'SURVIVED'}")
    survived = [change for change in chosen if not known[change.digest(tests)].died]
    say(f"seed {asked.seed}: {len(chosen) - len(survived)} of {len(chosen)} died; survived:")
    say("\n".join(change.text for change in survived) or "none")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.draw", description=__doc__)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="only say what would be changed")
    parser.add_argument("tests", nargs="*", help="arguments of pytest, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
