"""The table of mutations speaks of the code as it is. `make mutants` runs it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.mutants.__main__ import page
from tests.mutants.mutation import AREAS, Result, place, stands
from tests.mutants.table import MUTATIONS
from tests.support.servers import ROOT

CASES = ROOT / "src/incumbent/testing/contract"
NAMED = [
    (test.partition("::")[0], test.rpartition("::")[2].partition("[")[0] if "::" in test else "")
    for one in MUTATIONS
    for test in one.tests
]
"""File and function of each test that a mutation names."""


def test_the_text_that_a_mutation_changes_stands_once() -> None:
    assert not [f"{one.file}: {one.old!r}" for one in MUTATIONS if stands(one) != 1]
    assert not [one.about for one in MUTATIONS if one.old == one.new]


def test_the_tests_that_have_to_fail_exist() -> None:
    cases = "".join(path.read_text() for path in CASES.glob("*.py"))
    texts = {file: (ROOT / file).read_text() + cases for file, _ in NAMED}
    assert not [f"{file}::{name}" for file, name in NAMED if f"def {name}" not in texts[file]]


def test_there_are_sixty_and_six_of_each_area() -> None:
    areas = Counter(one.area for one in MUTATIONS)
    assert set(areas) == set(AREAS)
    assert len(MUTATIONS) >= 60
    assert min(areas.values()) >= 6


def test_no_two_are_the_same() -> None:
    assert len({(one.file, one.old, one.new) for one in MUTATIONS}) == len(MUTATIONS)
    assert len({one.about for one in MUTATIONS}) == len(MUTATIONS)


def test_a_mutant_is_the_product_with_one_change(tmp_path: Path) -> None:
    one = MUTATIONS[0]
    place(one, tmp_path)
    mutant = (tmp_path / "incumbent" / one.file).read_text()
    assert one.new in mutant
    assert mutant.replace(one.new, one.old) == (ROOT / "src/incumbent" / one.file).read_text()


def test_the_page_names_what_died_and_what_survived() -> None:
    first, second = MUTATIONS[:2]
    known = {
        first.digest: Result(first.digest, "tests/top/test_x.py::test_y[z]"),
        second.digest: Result(second.digest, ""),
    }
    made = page(MUTATIONS, known)
    assert "2 mutations: 1 died, 1 survived." in made
    assert "`test_y` (top/test_x.py)" in made
    assert "none, see below" in made
