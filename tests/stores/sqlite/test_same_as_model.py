"""`sqlite:` answers as the second model of the contract does, whatever is done in any order."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from incumbent.model import Queue
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.host import Host
from tests import tiers
from tests.rules.histories import Subject, play

_AT_ONCE = 10
QUEUES = [None, Queue(2.0, fair=True), Queue(8.0, fair=True)]
"""Fair ones: for how long others may be silent is the store's to choose."""


class Hands:
    """Two clocks that stand still but when they are moved."""

    def __init__(self) -> None:
        self.move(1_000.0, 1_800_000_000.0)

    def move(self, now: float, wall: float) -> None:
        self._now, self._wall = now, wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall


@pytest.mark.left(tiers.SEEDS, "0")
@pytest.mark.parametrize("first", range(0, 6 * _AT_ONCE, _AT_ONCE))
def test_the_file_answers_as_the_model_does(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        clock = Hands()
        host = Host(clock.now, clock.wall, "boot")
        store = SqliteEngine(tmp_path / f"{seed}.db", host=partial(lambda it: it, host)).store()
        play(seed, Subject(store, clock.move, queues=QUEUES, late_kept=0.0))
        store.close()
