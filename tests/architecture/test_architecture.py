"""The shape of the package: who may import whom, how long things get, which words are used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.architecture import source
from tests.architecture.layers import (
    AVOIDED,
    DRIVERS,
    LAYERS,
    LONGEST_FILE,
    LONGEST_FUNCTION,
    NO_BARE_TOKEN,
    PEEKING,
    PUBLIC_ALL_THE_SAME,
    ROOT,
)

MODULES = sorted(source.modules())
# An `__init__` only collects names; what it collects has a place of its own.
PLACED = [name for name in MODULES if not source.is_package(name)]


def within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def level(module: str) -> int:
    """The height of a module's layer."""
    if not module:
        return [layer.name for layer in LAYERS].index(ROOT)
    matches = [
        (len(name), height)
        for height, layer in enumerate(LAYERS)
        for name in layer.modules
        if within(module, name)
    ]
    assert matches, f"incumbent.{module} has no layer: place it in tests/architecture/layers.py"
    return max(matches)[1]


def test_the_package_is_found() -> None:
    assert "errors" in MODULES


@pytest.mark.parametrize("module", PLACED)
def test_imports_run_downwards_only(module: str) -> None:
    here = level(module)
    upwards = [
        f"{module} ({LAYERS[here].name}) imports {used or 'incumbent'}"
        for used in source.own_imports(module)
        if level(used) > here
    ]
    assert not upwards


@pytest.mark.parametrize("package", sorted(set(MODULES) - set(PLACED)))
def test_a_package_file_only_collects_names(package: str) -> None:
    strays = [node for node in source.tree(package).body if not collects(node)]
    assert not [f"line {node.lineno}: {type(node).__name__}" for node in strays]


def collects(node: ast.stmt) -> bool:
    """A docstring, imports, those for types, tables of names, and a lazy `__getattr__`."""
    if isinstance(node, ast.FunctionDef):
        return node.name in {"__getattr__", "__dir__"}
    if isinstance(node, ast.Expr):
        # pytest must be told of a suite before it is imported, or its asserts explain nothing.
        tells_pytest = "register_assert_rewrite" in ast.unparse(node)
        return isinstance(node.value, ast.Constant) or tells_pytest
    kinds = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
    return isinstance(node, kinds) or source.is_for_types(node)


@pytest.mark.parametrize("module", PLACED)
def test_a_decision_knows_nothing_of_the_world(module: str) -> None:
    banned = LAYERS[level(module)].banned
    used = {name.partition(".")[0] for name in source.imports(module)}
    assert not used & banned


@pytest.mark.parametrize("module", MODULES)
def test_a_driver_is_imported_by_its_own_store_only(module: str) -> None:
    used = {name.partition(".")[0] for name in source.imports(module)}
    strays = {
        name
        for name in used & DRIVERS.keys()
        if not any(within(module, place) for place in DRIVERS[name])
    }
    assert not strays


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: set(source.own_imports(name, at_run_time=True)) - {name} for name in PLACED}
    while leaves := {name for name, used in graph.items() if not used & graph.keys()}:
        graph = {name: used for name, used in graph.items() if name not in leaves}
    assert not graph, f"these import each other: {sorted(graph)}"


@pytest.mark.parametrize("module", MODULES)
def test_what_is_private_is_read_within_its_package_only(module: str) -> None:
    package = module.rpartition(".")[0]
    # A package and the one that it lies in: they share their privacy.
    near = [n for n in source.own_imports(module) if within(package, n.rpartition(".")[0])]
    known = set().union(*(source.private_names(name) for name in (module, *near)))
    allowed = known | PUBLIC_ALL_THE_SAME | PEEKING.get(module, set())
    strays = [node for node in source.private_reads(module) if node.attr not in allowed]
    assert not [f"line {node.lineno}: {ast.unparse(node)}" for node in strays]


@pytest.mark.parametrize("module", MODULES)
def test_files_stay_short(module: str) -> None:
    lines = source.modules()[module].read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST_FILE


@pytest.mark.parametrize("module", MODULES)
def test_functions_stay_short(module: str) -> None:
    long = {f.name: source.length(f) for f in source.functions(module)}
    assert not {name: lines for name, lines in long.items() if lines > LONGEST_FUNCTION}


@pytest.mark.parametrize("module", MODULES)
def test_public_names_keep_to_the_vocabulary(module: str) -> None:
    names = [(name, line) for name, line in source.public_names(module) if name[0] != "_"]
    avoided = [f"line {line}: {name}" for name, line in names if AVOIDED & set(words(name))]
    assert not avoided
    if any(within(module, place) for place in NO_BARE_TOKEN):
        assert not [f"line {line}" for name, line in names if name == "token"]


def words(name: str) -> list[str]:
    """`is_owner` and `IsOwner` are made of the same words."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def test_what_users_import_loads_no_driver_and_no_event_loop() -> None:
    used = "incumbent.Lock, incumbent.AsyncLock, incumbent.Client, incumbent.Election"
    script = f"import sys, incumbent; {used}; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"redis", "hiredis", "sqlite3", "asyncio"} & set(loaded)
