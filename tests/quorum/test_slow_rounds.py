"""Contenders whose rounds take a good part of the time that a request has.

All servers are well, nothing is lost; a round takes 40 to 80 ms of the 167 that a lease of one
second gives to a request. Connections are kept when an answer comes late, as the store keeps them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from incumbent.errors import StoreError
from incumbent.stores.quorum import changes
from incumbent.stores.quorum.changes import Edit
from incumbent.stores.quorum.take import _QuorumTake, take
from tests.quorum import claimant
from tests.quorum.bugs import Bugs, planted
from tests.quorum.claimant import KEY, Claimant, SimPanel
from tests.quorum.simulator import PROFILES, History
from tests.quorum.world import Network, Process

CALM = 5.0
EIGHT = replace(
    PROFILES["network"],
    masters=(3,),
    contenders=8,
    holds=(0.0, 0.05, 0.3),
    naps=(0.01, 0.05, 0.1),
    length=0.5,
    calm=CALM,
    beside=0.0,
)
NOBODY = replace(EIGHT, contenders=0)
WITHIN = 20.0
"""Seconds that a change has, where it has enough of them."""


class _Kept(dict[int, Any]):
    """Sessions that a late answer does not end."""

    def pop(self, *_: Any) -> Any:
        return None


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = SimPanel.__init__

    def keep(panel: SimPanel, *arguments: Any, **more: Any) -> None:
        begin(panel, *arguments, **more)
        panel.sessions = _Kept()

    monkeypatch.setattr(SimPanel, "__init__", keep)
    monkeypatch.setattr(Network, "_travel", lambda self: self.heap.dice.uniform(0.02, 0.04))


@pytest.fixture
def outcomes(slow: None, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What became of all takes, by the names of their types."""
    counts = Counter[str]()

    async def counted(*arguments: Any) -> Any:
        try:
            outcome = await take(*arguments)
        except Exception as error:
            counts[type(error).__name__] += 1
            raise
        counts[type(outcome).__name__] += 1
        return outcome

    monkeypatch.setattr(claimant, "take", counted)
    return counts


def longest_gap(start: int, histories: int = 3) -> float:
    """The longest time without a grant, true time."""
    longest = 0.0
    with planted(Bugs()):
        for seed in range(start, start + histories):
            sight = History(EIGHT, seed, Bugs()).run()
            assert not sight.wrong, (seed, sight.wrong)
            times = [EIGHT.length, *(at for at in sight.grants if at > EIGHT.length), CALM]
            longest = max(longest, *(b - a for a, b in pairwise(times)))
    return longest


def test_contenders_in_slow_rounds_split_the_vote_neither_for_ever_nor_into_doubt(
    outcomes: Counter[str],
) -> None:
    start = random.SystemRandom().randrange(10**9)
    assert longest_gap(start) < 2.5, start
    assert outcomes["Granted"] > 50, (start, outcomes)
    assert outcomes["OutcomeUnknown"] < 0.08 * outcomes.total(), (start, outcomes)


def test_who_begins_rounds_that_do_not_fit_any_more_leaves_doubts(
    outcomes: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        _QuorumTake, "took", property(lambda _: 0.0, lambda *_: None), raising=False
    )
    longest_gap(0)
    assert outcomes["OutcomeUnknown"] > 0.12 * outcomes.total(), outcomes


def told_after_changing_one_entry(start: int, contenders: int, histories: int = 10) -> list[float]:
    """Seconds after which each of them, who begin together, has its change; inf if it gave up."""
    found: list[float] = []

    async def change(one: Claimant) -> None:
        began = one.process.now()
        await one.panel.open(began + WITHIN)
        try:
            await changes.change(*(one.panel, KEY, "f:x", lambda *_: Edit(b"1 x"), began + WITHIN))
            found.append(one.process.now() - began)
        except StoreError:
            found.append(inf)

    with planted(Bugs()):
        for seed in range(start, start + histories):
            world = History(NOBODY, seed, Bugs())
            for at in range(contenders):
                process = Process(world.heap, world.network, f"p{at}")
                one = Claimant(process, world.machines, "m", world.sight, world.dice)
                process.start(change(one))
            world.heap.run(WITHIN + 1)
    return found


@pytest.mark.usefixtures("slow")
def test_changes_in_slow_rounds_do_not_knock_each_other_out_for_long() -> None:
    start = random.SystemRandom().randrange(10**9)
    told = told_after_changing_one_entry(start, contenders=5)
    assert len(told) == 50
    assert max(told) < WITHIN / 2, (start, sorted(told)[-5:])


@pytest.mark.usefixtures("slow")
def test_changes_tried_again_sooner_than_a_turn_takes_knock_each_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "_DOUBLINGS", -7)
    assert max(told_after_changing_one_entry(0, contenders=5)) > WITHIN / 2
