"""The guard's search for descendants, without any."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent.supervise import guard
from incumbent.supervise.plan import begun
from tests.support.needs import needs

pytestmark = needs(sys.platform == "linux", "the guard needs Linux")


@pytest.mark.parametrize("empty", [1, 2])
def test_one_that_forked_while_it_was_looked_for_is_found(
    monkeypatch: pytest.MonkeyPatch, empty: int
) -> None:
    """A daemon that leaves by two forks is missed once a fork, and no more often."""
    rounds = iter([[101], *[[]] * empty, [102]])
    killed: list[int] = []

    def send(pids: Iterable[int], _signum: int) -> None:
        killed.extend(pids)

    monkeypatch.setattr(guard, "marked", lambda _mark: next(rounds, []))
    monkeypatch.setattr(guard, "send", send)
    searching = guard._GuardProcess.__new__(guard._GuardProcess)
    searching._group = 0
    searching._kill_group(b"mark")
    assert killed == [101, 102]


def test_what_is_left_in_a_namespace_is_killed_when_its_term_ends() -> None:
    killed: list[str] = []
    ending = guard._GuardProcess.__new__(guard._GuardProcess)
    ending._isolation, ending._group = "pidns", 7
    ending._init = cast("Any", SimpleNamespace(kill=lambda: killed.append("init")))
    ending._watch = begun(1, 10.0)
    ending._end()
    assert (killed, ending._init, ending._group) == (["init"], None, 0)
