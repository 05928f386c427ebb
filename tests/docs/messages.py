"""The texts of our errors, as they stand in the source: what is fixed in each, `…` for the rest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

from tests.architecture import source
from tests.docs.blocks import ROOT

ERRORS = frozenset(
    {
        *("AcquireTimeout", "AlreadyReleased", "ConfigError", "LeaseLost", "LockError", "Misuse"),
        *("NotAcquired", "NotCandidate", "NotHeld", "OutcomeUnknown", "StoreError"),
        *("StoreUnavailable", "SpoiledFile", "UsageError", "ScheduleError", "CannotLaunch"),
        *("GuardFault", "wrong_option", "lease_lost", "_Failed", "_StateMeaning", "_ErrorMeaning"),
        *("_refused", "_bad_listen", "_bad_token", "_half_done", "_unknowable"),
    }
)
"""What makes an error: its class, or a function that puts the rest around the words."""

TABLES = frozenset({"_REFUSED", "REFUSED", "_ADVICE", "_LOST"})
"""Dictionaries of words that become a part of a message."""

SPOKEN = frozenset(
    {
        *("_why", "restart_words", "_starved_for", "_mismatch", "_does_not_fit"),
        *("_describe_refusal", "waits_for_itself", "permits_differ", "_held"),
    }
)
"""Functions that return words."""
GAP = "…"
OWN_WORDS = 8
"""Letters from which on a message is more than what it is put around."""


def text_of(node: ast.expr) -> str | None:
    """What a literal, an f-string or a sum of them says."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None and right is None else (left or GAP) + (right or GAP)
    return None


def texts_of(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return texts_of(node.body) + texts_of(node.orelse)
    text = text_of(node)
    return [] if text is None else [text]


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _of_call(node: ast.Call, values: dict[str, list[str]]) -> Iterator[str]:
    for given in node.args:
        yield from texts_of(given)
        if isinstance(given, ast.Name):
            yield from values.get(given.id, ())


def _sources() -> dict[str, list[ast.AST]]:
    """By path: all that stands in each file."""
    paths = source.modules()
    return {str(paths[module].relative_to(ROOT)): source.nodes(module) for module in paths}


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).extend(texts_of(node.value))
    return values


def _of_table(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    if not (isinstance(target, ast.Name) and target.id in TABLES):
        return
    for row in node.value.values if isinstance(node.value, ast.Dict) else ():
        yield from texts_of(row.elts[0] if isinstance(row, ast.Tuple) else row)


def _of_function(node: ast.FunctionDef) -> Iterator[str]:
    for part in ast.walk(node) if node.name in SPOKEN else ():
        if isinstance(part, ast.Return) and part.value is not None:
            yield from texts_of(part.value)


def _spoken(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, text) of everything that a reader may see."""
    values = _assigned(nodes)
    for node in nodes:
        texts: Iterable[str] = ()
        if isinstance(node, ast.Call) and _called(node) in ERRORS:
            texts = _of_call(node, values)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            texts = _of_table(node)
        elif isinstance(node, ast.FunctionDef):
            texts = _of_function(node)
        for text in texts:
            yield getattr(node, "lineno", 0), text


@cache
def messages() -> dict[str, str]:
    """Where each text stands, for all that have words of their own."""
    found = {}
    for path, nodes in _sources().items():
        if "testing/contract" in path:
            continue
        for line, text in _spoken(nodes):
            if " " in text and len(re.findall(r"[A-Za-z]", text)) >= OWN_WORDS:
                found[text] = f"{path}:{line}"
    return found


@cache
def all_texts() -> frozenset[str]:
    """Every text of the source, also those that become a message on their way."""
    nodes = [node for found in _sources().values() for node in found]
    return frozenset(
        text for node in nodes if isinstance(node, ast.expr) for text in texts_of(node)
    )
