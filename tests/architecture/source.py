"""Reads the package with `ast`, without importing any of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "incumbent"
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, Path]:
    """Every module by its name under the package; the package itself is the empty name."""
    return {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def is_package(module: str) -> bool:
    return modules()[module].name == "__init__.py"


@cache
def nodes_of(text: str) -> list[ast.AST]:
    """All that stands in a file, the file itself first; parsed once for all who look at it."""
    return list(ast.walk(ast.parse(text)))


@cache
def nodes(module: str) -> list[ast.AST]:
    return nodes_of(modules()[module].read_text(encoding="utf-8"))


def tree(module: str) -> ast.Module:
    whole = nodes(module)[0]
    assert isinstance(whole, ast.Module)
    return whole


@cache
def imports(module: str, *, at_run_time: bool = False) -> list[str]:
    """Absolute dotted names of all that is imported anywhere in the file, also only for types."""
    found: list[str] = []
    for node in ast.walk(_without_types(tree(module))) if at_run_time else nodes(module):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found += _imported_from(module, node)
    return found


def _without_types(whole: ast.Module) -> ast.Module:
    kept = [node for node in whole.body if not is_for_types(node)]
    return ast.Module(kept, [])


def is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _imported_from(module: str, node: ast.ImportFrom) -> Iterator[str]:
    base = _base(module, node.level)
    origin = ".".join(part for part in (base, node.module) if part)
    for alias in node.names:
        # `from incumbent import clock` imports a module; `from x import f` a name of one.
        deeper = f"{origin}.{alias.name}"
        yield deeper if deeper.removeprefix("incumbent.") in modules() else origin


def _base(module: str, level: int) -> str:
    if not level:
        return ""
    parts = ["incumbent", *module.split(".")] if module else ["incumbent"]
    ups = level - 1 if is_package(module) else level
    return ".".join(parts[: len(parts) - ups])


def own_imports(module: str, *, at_run_time: bool = False) -> Iterator[str]:
    """The imported modules of the package, by their name under it."""
    for name in imports(module, at_run_time=at_run_time):
        if name == "incumbent" or name.startswith("incumbent."):
            yield name.removeprefix("incumbent").removeprefix(".")


def private_reads(module: str) -> Iterator[ast.Attribute]:
    """Every `x._y`, apart from those of `self`, `cls` and `super()`."""
    for node in nodes(module):
        if not isinstance(node, ast.Attribute) or not re.match("_[^_]", node.attr):
            continue
        if ast.unparse(node.value) not in {"self", "cls", "super()"}:
            yield node


@cache
def private_names(module: str) -> frozenset[str]:
    """What the module itself defines with one underscore before its name."""
    names: set[str] = set()
    for node in nodes(module):
        if isinstance(node, ast.ClassDef | FunctionNode):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            names.add(node.attr)
    return frozenset(name for name in names if name[0] == "_")


def functions(module: str) -> Iterator[FunctionNode]:
    for node in nodes(module):
        if isinstance(node, FunctionNode):
            yield node


def length(function: FunctionNode) -> int:
    """Lines of a function without its docstring and decorators."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def public_names(module: str) -> Iterator[tuple[str, int]]:
    """Names a user can come to write: of classes, functions, their arguments and fields."""
    for node in nodes(module):
        if isinstance(node, ast.ClassDef | FunctionNode):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno
