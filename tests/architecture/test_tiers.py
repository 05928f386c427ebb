"""The lists of tests/tiers.py speak of files that there are."""

from __future__ import annotations

from tests import tiers


def test_the_tiers_name_files_that_exist() -> None:
    names = {*tiers.TIMING, *tiers.CROWD, *tiers.TURNS, *(left.file for left in tiers.LEFT)}
    assert not [name for name in sorted(names) if not (tiers.TESTS / name).exists()]


def test_no_test_is_left_twice() -> None:
    names = [left.test for left in tiers.LEFT]
    assert sorted(names) == sorted(set(names))


def test_no_file_runs_at_two_times() -> None:
    assert not tiers.TIMING.keys() & tiers.CROWD.keys()
