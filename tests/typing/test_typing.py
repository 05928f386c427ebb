"""A type checker of a user finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import incumbent
from tests import tiers
from tests.typing.checkers import mypy, programs, wanted

pytestmark = pytest.mark.slow


@pytest.mark.left("make type runs it, too")
def test_mypy_says_of_each_program_what_its_comments_say(tmp_path: Path) -> None:
    # What the drivers' own types cost is left to `make type`.
    files = [file for file in programs() if file.name != "right_drivers.py"]
    assert mypy(files, tmp_path) == wanted(files, pyright=False)


def test_each_wrong_program_is_wrong_to_both_checkers_and_no_right_one_is() -> None:
    for file in programs():
        announced = [bool(wanted([file], pyright=pyright)) for pyright in (False, True)]
        assert announced == [file.name.startswith("wrong_")] * 2


def test_nothing_that_users_call_takes_or_returns_any() -> None:
    assert not [
        f"{name}: {annotation}"
        for name in incumbent.__all__
        for where, call in _calls(getattr(incumbent, name))
        for annotation in _annotations(call)
        if re.search(r"\bAny\b", annotation.replace("Coroutine[Any, Any, ", ""))
    ]


def _calls(of: object) -> Iterator[tuple[str, Callable[..., object]]]:
    """The constructor, the public methods and the properties of a class; a function itself."""
    if inspect.isfunction(of):
        yield of.__name__, of
    for name, member in inspect.getmembers_static(of) if inspect.isclass(of) else ():
        call = member.fget if isinstance(member, property) else member
        public = not name.startswith("_") or name in {"__init__", "__enter__", "__aenter__"}
        if public and inspect.isfunction(call):
            yield name, call


def _annotations(call: Callable[..., object]) -> Iterator[str]:
    signature = inspect.signature(call)
    yield from (str(each.annotation) for each in signature.parameters.values())
    yield str(signature.return_annotation)
