"""What `make size` and `make profile` measure is what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture import roads, size, source
from tests.architecture.size import LIMITS, Limit, Sizes

ONE = """\
# why


class Host:
    def _once(self) -> int:
        return 1

    def _twice(self) -> int:
        return self._once() + sum(map(self._passed, [1]))

    def _passed(self, one: int) -> int:
        return self._hook() + one

    def _hook(self) -> int:
        raise NotImplementedError

    def both(self) -> int:
        return self._twice() + self._twice()
"""
TWO = """\
class _Host:
    def _hook(self) -> int:
        return 2


def _long() -> None:
    print(1)
    print(2)
    print(3)
    print(4)
    print(5)


_long()
"""


@pytest.fixture
def sizes(tmp_path: Path) -> Sizes:
    (tmp_path / "stores" / "mysql").mkdir(parents=True)
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "take.lua").write_text("-- why\nreturn 1\n")
    (tmp_path / "stores" / "mysql" / "apart.sql").write_text("-- why\nselect 1\n")
    (tmp_path / "notes.txt").write_text("is no code\n")
    return Sizes.of(tmp_path)


def test_comment_lines_and_engines_with_a_budget_of_their_own_do_not_count(sizes: Sizes) -> None:
    assert sizes.all_lines == 18 + 14 + 2 + 2
    assert sum(sizes.counted) == 17 + 14 + 1
    assert len(sizes.counted) == 3
    assert sizes.folders == {"(top)": 34, "stores/mysql": 2}


def test_a_name_that_two_classes_bear_is_found_whatever_its_underscore(sizes: Sizes) -> None:
    assert sizes.homonyms == {"Host": ["one.py:4", "two.py:1"]}


def test_a_short_function_that_is_called_once_is_found_unless_it_is_passed_or_a_hook(
    sizes: Sizes,
) -> None:
    assert sizes.called_once == ["one.py:5 _once"]


def test_a_figure_beyond_its_limit_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = {name: Limit(10**6, 0) for name in LIMITS}
    monkeypatch.setattr(size, "LIMITS", everything | {"comment lines of 100": Limit(0, 4, True)})
    assert size.main([]) == 0
    monkeypatch.setitem(size.LIMITS, "files", Limit(10, 0))
    assert size.main([]) == 1
    assert capsys.readouterr().out.count("BEYOND THE LIMIT") == 1


def test_a_limit_is_never_beyond_its_aim() -> None:
    assert [name for name, it in LIMITS.items() if it.allows(it.aim) is False] == []
    assert Limit(10, 5).can_move(9)
    assert not Limit(10, 5).can_move(10)
    assert not Limit(5, 5).can_move(3)
    assert Limit(2, 4, at_least=True).can_move(3)
    assert not Limit(4, 4, at_least=True).can_move(5)


def test_every_limit_is_measured() -> None:
    assert Sizes.of(source.PACKAGE).figures().keys() == LIMITS.keys()


def test_the_page_of_sizes_is_about_right() -> None:
    page = (source.PACKAGE.parents[1] / "docs" / "design" / "sizes.md").read_text()
    rows = re.findall(r"^\| `?([\w/]+?)/?`? \| ([\d,]+) \|", page, re.MULTILINE)
    said = {name.replace("top", "(top)"): int(lines.replace(",", "")) for name, lines in rows}
    counted = Sizes.of(source.PACKAGE).folders
    assert said.keys() == counted.keys()
    off = {name: counted[name] - lines for name, lines in said.items()}
    assert {name: by for name, by in off.items() if abs(by) > max(250, counted[name] / 5)} == {}


def test_the_road_of_a_lease_is_the_files_that_it_passes_through() -> None:
    found = roads.roads("memory:")
    assert all(road.calls >= len(road.functions) >= len(road.files) > 5 for road in found.values())
    assert "stores/memory.py" in found["acquire"].files
    assert [name for name, road in found.items() if "try_acquire" in called(road)] == ["refusal"]


def called(road: roads.Road) -> set[str]:
    """The names of its functions, without those of their classes."""
    return {name.rpartition(".")[2] for _, name in road.functions}


def test_two_roads_are_added_up_without_what_they_share() -> None:
    one = roads.Road(2, {("a.py", "f")}, {"a.py"}, set())
    two = roads.Road(3, {("a.py", "f"), ("b.py", "C.g")}, {"a.py", "b.py"}, {("b.py", "C")})
    assert (one | two).calls == 5
    assert (one | two).size == (2, 2, 1)
