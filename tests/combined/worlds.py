"""The worlds that play plans, under one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.combined import leases, quorum, redis
from tests.combined.plan import Plan, draw, shrink
from tests.history.checker import Broken

__all__ = ["WORLDS", "World"]


@dataclass(frozen=True)
class World:
    """`real`: on real processes and servers, where a race may need more than one try."""

    name: str
    plays: frozenset[str]
    play: Callable[[Plan], list[Broken]]
    times: Sequence[int]
    real: bool = False

    def draw(self, seed: int) -> Plan:
        """The plan of a seed."""
        return draw(seed, self.plays, self.times)

    def shrink(self, plan: Plan, rule: str) -> Plan:
        """A smaller plan that breaks the same rule."""
        tries = 3 if self.real else 1

        def fails(less: Plan) -> bool:
            return any(one.rule == rule for _ in range(tries) for one in self.play(less))

        return shrink(plan, fails)


WORLDS: Final = {
    world.name: world
    for world in (
        World("leases", leases.PLAYS, leases.play, leases.TIMES),
        World("quorum", quorum.PLAYS, quorum.play, quorum.TIMES),
        World("redis", redis.PLAYS, redis.play, redis.TIMES, real=True),
    )
}
