"""The shape of the package: who may import whom, how long things get, which words are used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import incumbent
from tests.architecture import source
from tests.architecture.layers import (
    AVOIDED,
    DRIVERS,
    LAYERS,
    LONGEST_FILE,
    LONGEST_FUNCTION,
    NO_BARE_TOKEN,
    NO_HANDLER,
    PEEKING,
    PUBLIC_ALL_THE_SAME,
    PURE,
    SOCKETS,
    SOCKETS_OUTSIDE_NET,
    SPOKEN,
    TELL_APART,
    TRANSPORTS,
    WIDE,
    WORLD,
    height_of,
    layer_of,
    within,
)

MODULES = sorted(source.modules())
# An `__init__` only collects names; what it collects has a place of its own.
PLACED = [name for name in MODULES if not source.is_package(name)]


def test_every_module_has_its_layer() -> None:
    assert "errors" in MODULES
    homeless = [name for name in MODULES if height_of(name) == len(LAYERS)]
    assert not homeless, "place them in tests/architecture/layers.py"


def test_imports_run_downwards_only() -> None:
    assert not [
        f"{module} ({layer_of(module)}) imports {used or 'incumbent'}"
        for module in PLACED
        for used in source.own_imports(module)
        if height_of(used) > height_of(module)
    ]


def test_a_package_file_only_collects_names() -> None:
    assert not [
        f"{package}, line {node.lineno}: {type(node).__name__}"
        for package in sorted(set(MODULES) - set(PLACED))
        for node in source.tree(package).body
        if not collects(node)
    ]


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


def outside(module: str) -> set[str]:
    """The packages that a module imports anything of."""
    return {name.partition(".")[0] for name in source.imports(module)}


def test_every_layer_is_of_modules_that_exist() -> None:
    placed = [place for places in (*LAYERS.values(), PURE) for place in places]
    assert not [place for place in placed if not any(within(it, place) for it in MODULES)]


def is_pure(module: str) -> bool:
    return any(within(module, place) for place in PURE)


def test_a_decision_knows_nothing_of_the_world() -> None:
    assert not [
        f"{module} imports {used}"
        for module in PLACED
        if is_pure(module)
        for used in outside(module) & WORLD
    ]


def test_a_decision_rests_on_decisions_alone() -> None:
    assert not [
        f"{module} imports {used}"
        for module in PLACED
        if is_pure(module)
        for used in source.own_imports(module)
        if not is_pure(used)
    ]


def test_a_driver_is_imported_by_its_own_store_only() -> None:
    assert not [
        f"{module} imports {used}"
        for module in MODULES
        for used in outside(module) & DRIVERS.keys()
        if not any(within(module, place) for place in DRIVERS[used])
    ]


def test_nothing_in_the_product_rests_on_an_assert() -> None:
    """A wrong type must raise what it is, also where -O drops asserts; the shipped tests assert."""
    assert not [
        f"{module}, line {node.lineno}"
        for module in MODULES
        if not within(module, "testing")
        for node in source.nodes(module)
        if isinstance(node, ast.Assert)
    ]


def test_what_a_signal_handler_raises_is_not_taken_for_an_error_of_the_system() -> None:
    """Each wide `except` around what talks to a store tells the two apart."""
    around = [
        name
        for name in MODULES
        if any(
            within(name, place)
            for place in ("net", "stores", "protocol", "runtime", "locks.inside")
        )
    ]
    found = {module: mistaking_handlers(source.tree(module)) for module in around}
    assert {name: places for name, places in found.items() if places} == {
        name: set(places) for name, places in NO_HANDLER.items()
    }


def mistaking_handlers(tree: ast.AST) -> set[str]:
    """The functions that catch a wide class, and neither raise it again nor look who raised it."""
    functions = [
        it for it in ast.walk(tree) if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or node.type is None:
            continue
        inside = [list(ast.walk(it)) for it in (node, node.type)]
        caught = {it.id for it in inside[1] if isinstance(it, ast.Name)}
        called = {
            getattr(it.func, "id", getattr(it.func, "attr", ""))
            for it in inside[0]
            if isinstance(it, ast.Call)
        }
        again = any(isinstance(it, ast.Raise) and it.exc is None for it in inside[0])
        if caught & WIDE and not again and not called & TELL_APART:
            around = [it for it in functions if it.lineno <= node.lineno <= (it.end_lineno or 0)]
            found.add(max(around, key=lambda it: it.lineno).name)
    return found


def test_sockets_to_stores_are_in_net_only() -> None:
    stores = [name for name in MODULES if within(name, "stores")]
    assert {
        name: used
        for name in stores
        if (used := {*source.imports(name, at_run_time=True)} & SOCKETS)
    } == SOCKETS_OUTSIDE_NET
    assert not [
        f"{name}, line {node.lineno}: {node.attr}"
        for name in stores
        for node in source.nodes(name)
        if isinstance(node, ast.Attribute) and node.attr in TRANSPORTS
    ]


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: set(source.own_imports(name, at_run_time=True)) - {name} for name in PLACED}
    while leaves := {name for name, used in graph.items() if not used & graph.keys()}:
        graph = {name: used for name, used in graph.items() if name not in leaves}
    assert not graph, f"these import each other: {sorted(graph)}"


def test_what_is_private_is_read_within_its_package_only() -> None:
    assert not [
        f"{module}, line {node.lineno}: {ast.unparse(node)}"
        for module in MODULES
        for node in private_reads_of_others(module)
    ]


def private_reads_of_others(module: str) -> list[ast.Attribute]:
    package = module.rpartition(".")[0]
    # A package and the one that it lies in: they share their privacy.
    near = [n for n in source.own_imports(module) if within(package, n.rpartition(".")[0])]
    known = set().union(*(source.private_names(name) for name in (module, *near)))
    allowed = known | PUBLIC_ALL_THE_SAME | PEEKING.get(module, set())
    return [node for node in source.private_reads(module) if node.attr not in allowed]


def test_files_stay_short() -> None:
    lines = {
        name: path.read_text(encoding="utf-8").count("\n")
        for name, path in source.modules().items()
    }
    assert not {name: count for name, count in lines.items() if count > LONGEST_FILE}


def test_functions_stay_short() -> None:
    assert not [
        f"{module}: {function.name} has {source.length(function)} lines"
        for module in MODULES
        for function in source.functions(module)
        if source.length(function) > LONGEST_FUNCTION
    ]


def avoided(module: str) -> frozenset[str]:
    return AVOIDED.difference(*(words for place, words in SPOKEN.items() if within(module, place)))


def test_public_names_keep_to_the_vocabulary() -> None:
    assert not [
        f"{module}, line {line}: {name}"
        for module in MODULES
        for name, line in source.public_names(module)
        if name[0] != "_" and (avoided(module) & set(words(name)) or is_bare_token(module, name))
    ]


def is_bare_token(module: str, name: str) -> bool:
    return name == "token" and any(within(module, place) for place in NO_BARE_TOKEN)


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


def test_every_public_name_is_found_where_it_is_said_to_be() -> None:
    assert all(getattr(incumbent, name) for name in incumbent.__all__)
