"""Changes that are drawn by a seed: the same again, each in its place, and each another program."""

from __future__ import annotations

import ast
from dataclasses import replace

from tests.mutants import draw
from tests.mutants.mutation import SOURCES

SOURCE = """
def late(now: int = 0, /) -> bool:
    \"\"\"Whether it is.\"\"\"
    ä = now + 1
    if not ä < 5 and now:
        print(f"{now + 1}")
    return True
"""


def test_each_operator_number_condition_and_statement_is_a_change() -> None:
    found = {change.text for change in draw.changes("file.py", SOURCE)}
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


def test_the_same_seed_draws_the_same_changes() -> None:
    assert draw.drawn(7, 20) == draw.drawn(7, 20) != draw.drawn(8, 20)


def test_a_change_is_one_of_its_file_and_a_program_still() -> None:
    for change in draw.drawn(13, 100):
        source = (SOURCES / change.file).read_text()
        changed = change.applied(source)
        assert changed != source, change.text
        ast.parse(changed)


def test_a_change_is_run_again_for_other_tests_or_another_change() -> None:
    (change,) = draw.drawn(13, 1)
    other = replace(change, new="None" if change.new != "None" else "0")
    assert len({change.digest(("a",)), change.digest(("b",)), other.digest(("a",))}) == 3
