"""One name, one thing: a reader who has met a class knows it wherever its name comes up."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.architecture import source

SAME: dict[str, str] = {
    "Lock": "compat and tooz_driver have the names of the classes that they replace",
    "AsyncLock": "compat, likewise",
    "LockError": "compat, likewise",
    "World": "what a user of the pytest plugin has, and what the contract suite is told of a store",
}
"""Class names that several classes bear, each with its reason. It only becomes shorter."""


def test_a_class_name_is_borne_once() -> None:
    borne = defaultdict(list)
    for module in source.modules():
        for node in source.nodes(module):
            if isinstance(node, ast.ClassDef):
                borne[node.name.lstrip("_")].append(f"{module}.{node.name}")
    several = {name: places for name, places in borne.items() if len(places) > 1}
    new = {name: places for name, places in several.items() if name not in SAME}
    assert not new, f"another class has this name: {new}"
    assert set(SAME) == set(several), "take this name from the list"
