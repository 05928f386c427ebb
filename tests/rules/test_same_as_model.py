"""The rules, over memory and over registers, say what the second model of the contract says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from incumbent.stores.deciding import Deciding
from incumbent.stores.memory import MemoryStore
from incumbent.stores.register_store import RegisterStore
from tests import tiers
from tests.rules.histories import Subject, play
from tests.rules.registers import DictRegisters


def memory() -> Subject:
    clocks = [0.0, 0.0]
    store = MemoryStore(lambda: clocks[0], lambda: clocks[1])

    def move(now: float, wall: float) -> None:
        clocks[:] = [now, wall]

    return Subject(store, move)


def registers() -> Subject:
    """As texts: each record is written and read again between any two operations."""
    kept = DictRegisters("nothing")

    def move(now: float, wall: float) -> None:
        kept.now, kept.wall = int(now * 1e6), int(wall * 1e6)

    store = RegisterStore(kept, Deciding("dict:", restart_wait=0.0))
    return Subject(store, move)


@pytest.mark.left(tiers.SEEDS, "*-0")
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize(("made", "histories"), [(memory, 100), (registers, 34)])
def test_the_rules_say_what_the_model_says(
    made: Callable[[], Subject], histories: int, part: int
) -> None:
    for seed in range(part * histories, (part + 1) * histories):
        play(seed, made())
