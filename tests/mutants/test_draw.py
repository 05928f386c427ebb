"""Changes that are drawn by a seed: the same again, each in its place, and each another program."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers
from tests.mutants.change import changes, drawn
from tests.mutants.draw import APART, can_be_apart
from tests.mutants.mutation import SOURCES
from tests.mutants.reach import marked
from tests.support.needs import needs

SOURCE = """
def late(now: int = 0, /) -> bool:
    \"\"\"Whether it is.\"\"\"
    ä = now + 1
    if not ä < 5 and now:
        print(f"{now + 1}")
    return True
"""


def test_each_operator_number_condition_and_statement_is_a_change() -> None:
    found = {change.text for change in changes("file.py", SOURCE)}
    assert found == {
        "file.py:4: now + 1 -> (now - 1)",
        "file.py:4: 1 -> 2",
        "file.py:5: not ä < 5 and now -> (not (not ä < 5 and now))",
        "file.py:5: not ä < 5 and now -> (not ä < 5 or now)",
        "file.py:5: not ä < 5 -> (ä < 5)",
        "file.py:5: ä < 5 -> (ä <= 5)",
        "file.py:5: 5 -> 6",
        'file.py:6: print(f"{now + 1}") -> pass',
        "file.py:7: True -> None",
        "file.py:7: True -> False",
    }


@pytest.mark.left(tiers.NET)
def test_the_same_seed_draws_the_same_changes() -> None:
    assert drawn(7, 20) == drawn(7, 20) != drawn(8, 20)


@pytest.mark.left(tiers.NET)
@pytest.mark.slow
def test_a_change_is_one_of_its_file_and_a_program_still() -> None:
    for change in drawn(13, 30):
        source = (SOURCES / change.file).read_text()
        changed = change.applied(source)
        assert changed != source, change.text
        ast.parse(changed)


@pytest.mark.left(tiers.NET)
def test_another_change_has_another_digest() -> None:
    (change,) = drawn(13, 1)
    other = replace(change, new="None" if change.new != "None" else "0")
    assert change.digest != other.digest


def test_a_mark_at_each_place_leaves_the_program_as_it_is() -> None:
    found = list(changes("file.py", SOURCE))
    text = marked(SOURCE, found)
    assert all(change.place in text for change in found)
    reached: list[str] = []
    names = {"__import__": lambda _: type("Module", (), {"hit": reached.append})}
    space = {"__builtins__": {"print": lambda _: None, **names}}
    exec(text, space)
    assert space["late"](5) is True  # type: ignore[operator]
    assert set(reached) == {change.place for change in found}


def test_a_mark_leaves_a_tuple_without_brackets_whole() -> None:
    source = "def pair():\n    return 1, 2\n"
    text = marked(source, [one for one in changes("file.py", source) if one.new == "None"])
    space: dict[str, Any] = {"__builtins__": {"__import__": lambda _: SimpleNamespace(hit=id)}}
    exec(text, space)
    assert space["pair"]() == (1, 2)


def test_a_pattern_is_left_unmarked() -> None:
    source = "def f(x):\n    match x:\n        case 5:\n            return True\n"
    text = marked(source, changes("file.py", source))
    assert "case 5:" in text
    assert "hit" in text


@needs(can_be_apart(), "a process namespace of its own")
def test_what_is_tried_is_apart_from_every_process_of_others() -> None:
    command = [*APART, "sh", "-c", "readlink /proc/self/ns/pid; ls -d /proc/[0-9]*"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    inside, *seen = ran.stdout.split()
    assert inside != str(Path("/proc/self/ns/pid").readlink())
    assert 1 <= len(seen) <= 3
