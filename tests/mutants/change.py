"""Changes of the product: one operator, number, condition or statement each, drawn by a seed."""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.mutants.mutation import SOURCES

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

    @property
    def place(self) -> str:
        return f"{self.file}:{self.start}-{self.end}"

    @property
    def digest(self) -> str:
        """Changes with the changed file."""
        changed = self.applied((SOURCES / self.file).read_text())
        return hashlib.sha256(f"{self.file}\0{changed}".encode()).hexdigest()[:16]


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


@cache
def every() -> list[Change]:
    """Of the whole product, in the order of its files."""
    return [
        change
        for path in sorted(SOURCES.rglob("*.py"))
        for file in [path.relative_to(SOURCES).as_posix()]
        if not file.startswith(LEFT_OUT)
        for change in changes(file, path.read_text())
    ]


def drawn(seed: int, count: int) -> list[Change]:
    """The same for the same seed and source; in the order in which they were drawn."""
    return random.Random(seed).sample(every(), min(count, len(every())))
