"""Contenders that split the vote on the two servers that are left of three."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from incumbent.errors import StoreError
from incumbent.model import Ask, Granted
from incumbent.stores.quorum import take as taking
from incumbent.stores.quorum.take import give, take
from tests.quorum.bugs import Bugs, planted
from tests.quorum.claimant import KEY, Claimant
from tests.quorum.simulator import PROFILES, History
from tests.quorum.world import Process

CONTENDERS, TURNS, WITHIN = 20, 10, 2.0
CALM = replace(PROFILES["network"], masters=(3,), contenders=0, beside=0.0)


async def nothing(until: float) -> None:
    """The third server refuses connections."""


async def contend(one: Claimant, at: int, outcomes: Counter[str]) -> None:
    now = one.process.now
    await one.panel.open(now() + 0.05)
    one.panel.open = nothing  # type: ignore[method-assign]
    for turn in range(TURNS):
        claim, until = f"claim{at:02}-{turn}", now() + WITHIN
        try:
            outcome = await take(one.panel, KEY, claim, Ask(10.0, f"p{at}"), until)
            outcomes[type(outcome).__name__] += 1
            if isinstance(outcome, Granted):
                await give(one.panel, KEY, claim, outcome.token, until)
        except StoreError as error:
            outcomes[type(error).__name__] += 1


@pytest.mark.parametrize("seed", [0, 1])
def test_twenty_contenders_without_one_server_all_get_an_answer(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "random", random.Random(seed).random)
    outcomes = Counter[str]()
    with planted(Bugs()):
        world = History(CALM, seed, Bugs())
        world.network.calm = True
        world.machines[seed].down = True
        for at in range(CONTENDERS):
            process = Process(world.heap, world.network, f"p{at}")
            one = Claimant(process, world.machines, "m", world.sight, world.dice)
            process.start(contend(one, at, outcomes))
        world.heap.run(TURNS * WITHIN)
    assert set(outcomes) == {"Granted", "Refused"}
    assert outcomes.total() == CONTENDERS * TURNS
