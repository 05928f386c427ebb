"""Each test runs in one tier, at one time, and the files of each are found without collecting."""

from __future__ import annotations

import pytest

from tests import tiers


def test_the_tiers_name_files_that_exist() -> None:
    assert not [name for name in sorted(tiers.files_left()) if not (tiers.TESTS / name).exists()]


def test_no_file_runs_at_two_times() -> None:
    assert not tiers.files_with("timing") & tiers.files_with("crowd")


@pytest.mark.parametrize("mark", ["timing", "crowd"])
def test_a_time_to_run_is_of_a_whole_file(mark: str) -> None:
    """The other tests of it would never run."""
    assert tiers.files_with(mark) == tiers.files_with(mark, wholly=True)


@pytest.mark.parametrize(
    ("text", "wholly"),
    [
        ("pytestmark = pytest.mark.left(tiers.LONG)\n", True),
        ('pytestmark = [\n    pytest.mark.server,\n    pytest.mark.left("a reason"),\n]\n', True),
        ('pytestmark = pytest.mark.left(tiers.LONG, "redis-*")\n', False),
        ("pytestmark = pytest.mark.server\n\n\n@pytest.mark.left(tiers.LONG)\n", False),
    ],
)
def test_a_file_that_is_left_wholly_is_known_by_its_text(text: str, wholly: bool) -> None:
    assert bool(tiers._WHOLLY.search(text)) == wholly


def test_what_make_quick_passes_over_has_nothing_for_it(request: pytest.FixtureRequest) -> None:
    """Looks at what runs beside it: at all of them in `make test`."""
    served = tiers.files_with_servers()
    theirs = [it for it in request.session.items if tiers.file_of(it) in served]
    others = {"slow", "server", "full"}
    assert not [it for it in theirs if not others & {mark.name for mark in it.iter_markers()}]
