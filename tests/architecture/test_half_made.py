"""An object whose making failed, or was interrupted by a signal, ends without a word."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

import pytest

from tests.support.servers import ROOT

SRC = ROOT / "src"


def classes_that_clean_up() -> Iterator[tuple[str, str]]:
    """Module and name of each class that has `__del__`."""
    for path in sorted(SRC.rglob("*.py")):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts)
        text = path.read_text()
        # Each worker collects this, and to parse all files would take it a second.
        for node in ast.walk(ast.parse(text)) if "def __del__" in text else ():
            if isinstance(node, ast.ClassDef) and any(
                isinstance(part, ast.FunctionDef) and part.name == "__del__" for part in node.body
            ):
                yield module, node.name


FOUND = list(classes_that_clean_up())


def test_there_are_such_classes() -> None:
    assert ("incumbent.protocol.claim", "Claim") in FOUND
    assert ("incumbent.net.wire", "BlockingWire") in FOUND


@pytest.mark.parametrize(("module", "name"), FOUND)
def test_an_object_that_was_never_made_is_collected_quietly(module: str, name: str) -> None:
    half_made = getattr(importlib.import_module(module), name)
    # pytest turns what `__del__` complains of into a failure; calling it says at once where.
    half_made.__new__(half_made).__del__()


def test_a_claim_whose_drawing_fails_leaves_no_complaint_behind() -> None:
    from incumbent.protocol.claim import Claim

    class NoRandom:
        def draw_claim(self) -> str:
            raise OSError("no random numbers")

    with pytest.raises(OSError, match="no random numbers"):
        Claim(NoRandom(), None)  # type: ignore[arg-type]  # it fails before it uses the rest
