"""When the waiters of a store that cannot notify them look at it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise, repeat

import pytest

from incumbent.model import Key
from incumbent.rules.record import NOTHING, Grant, Line, Waiter
from incumbent.stores import polling
from incumbent.stores.plan import run_blocking
from incumbent.stores.polling import IN_LINE, LOCAL, Looks
from incumbent.stores.registers import Incarnation, Seen

KEY = Key("default", "hot")
HELD = Grant("holder", "me", 1, 10_000_000, 0, 1 << 60)
LINE = Line(tuple(Waiter(f"{place}", "me", 1_000_000, False) for place in range(20)))


class Hands:
    """A clock that only waiting moves; as a Wakeup, nobody wakes it."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time

    def wake(self) -> None: ...

    async def wait(self, until: float) -> None:
        self.time = max(self.time, until)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(polling, "_now", hands.now)
    return hands


def pauses(hands: Hands, place: int, changes: Iterator[int]) -> list[float]:
    """Those between the looks of a waiter in a second, in seconds."""
    looked: list[float] = []

    async def look(_key: Key, _until: float) -> Seen:
        looked.append(hands.time)
        record = NOTHING._replace(changes=next(changes), grants=(HELD,), line=LINE)
        return Seen(record, None, 1_000, 0, Incarnation("id"))

    seen = f"id:1{IN_LINE}{place}"
    run_blocking(Looks(LOCAL).wait(KEY, seen, hands.time + 1.0, hands, look))
    return [after - before for before, after in pairwise(looked)]


@pytest.mark.parametrize(("place", "pause"), [(1, 0.004), (4, 0.01), (15, 0.025)])
def test_while_a_line_moves_those_who_are_next_look_most_often(
    hands: Hands, place: int, pause: float
) -> None:
    found = pauses(hands, place, count(1))
    assert found == pytest.approx([pause] * len(found))
    assert len(found) >= 39


def test_while_nothing_changes_a_waiter_looks_less_and_less_often(hands: Hands) -> None:
    found = pauses(hands, 1, repeat(1))
    assert found[:3] == pytest.approx([0.004, 0.005, 0.00625])
    assert found == sorted(found)
    assert found[-1] == pytest.approx(0.025)
