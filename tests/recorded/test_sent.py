"""The stores see the requests that are recorded."""

from __future__ import annotations

import pytest

from tests.recorded.__main__ import ENGINES, compare

pytestmark = [
    pytest.mark.left(
        "20 s an engine; `python -m tests.recorded` shows all of one that was changed"
    ),
    pytest.mark.crowd("compares what is sent, and a busy machine has requests repeated"),
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_stores_see_the_same_requests_as_recorded(engine: str) -> None:
    """See CONTRIBUTING.md on a change that is meant."""
    assert compare(engine, "2", only_thin=True) == []
