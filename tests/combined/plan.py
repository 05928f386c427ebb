"""Faults in combination, as data: drawn from a seed, printed, made smaller. Nothing happens here.

A plan draws two or three dimensions and one kind of fault from each. A world says which kinds it
can play, and what the numbers mean to it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

__all__ = ["DIMENSIONS", "Fault", "Plan", "draw", "from_text", "shrink", "smaller", "to_text"]

DIMENSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "clock": ("skew", "step", "drift"),
    "data": ("wipe", "restart empty", "restore", "unreplicated", "power", "record deleted"),
    "connectivity": ("cut one way", "held bytes", "surviving connection", "slow"),
    "role": ("switchover", "there and back", "failover", "promotion"),
    "process": ("frozen", "killed", "forked", "cancelled", "starved", "store frozen", "store down"),
    "configuration": ("ttls differ", "rolling change"),
}
_TIMES: Final = (1, 2, 4, 8)
_LASTS: Final = (0.1, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` and `lasts` in ttls, from when all is well. `who`: modulo those that there are.

    `size`: -1 to 1, of what a world calls the most.
    """

    kind: str
    at: float
    lasts: float = 0.0
    who: int = 0
    size: float = 0.0

    def __str__(self) -> str:
        what = f"{self.kind} of {self.who} for {self.lasts:.2f} ttl, {self.size:+.2f}"
        return f"{self.at:7.3f} ttl: {what}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. The seed draws everything that is no fault as well."""

    seed: int
    faults: tuple[Fault, ...]

    @property
    def ends(self) -> float:
        """In ttls: when the last fault is over."""
        return max((fault.at + fault.lasts for fault in self.faults), default=0.0)

    @property
    def kinds(self) -> frozenset[str]:
        """What happens in it."""
        return frozenset(fault.kind for fault in self.faults)

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}", *(f"  {fault}" for fault in self.faults)])


def draw(seed: int, plays: frozenset[str], times: Sequence[int] = _TIMES) -> Plan:
    """The plan of a seed, for a world that plays these kinds."""
    dice = random.Random(f"combined {seed}")
    offered = {
        name: [kind for kind in kinds if kind in plays] for name, kinds in DIMENSIONS.items()
    }
    names = [name for name, kinds in offered.items() if kinds]
    chosen = dice.sample(names, min(len(names), dice.choice((2, 2, 3))))
    kinds = [kind for name in chosen for kind in _often(dice, dice.choice(offered[name]), times)]
    dice.shuffle(kinds)
    return Plan(seed, tuple(sorted(_one_after_another(dice, kinds), key=lambda one: one.at)))


def _often(dice: random.Random, kind: str, times: Sequence[int]) -> list[str]:
    return [kind] * dice.choice(times)


def _one_after_another(dice: random.Random, kinds: Sequence[str]) -> Iterator[Fault]:
    """Together, a little later, or on the heels of the one before; often round the fleet."""
    at, who = dice.uniform(0.0, 2.0), dice.randrange(60)
    for kind in kinds:
        lasts, size = dice.choice(_LASTS), dice.choice((-1, 1)) * round(dice.uniform(0.2, 1), 3)
        yield Fault(kind, round(at, 3), lasts, who, size)
        at += dice.choice((0.05, dice.uniform(0.0, 2.0), lasts + dice.choice((0.02, 0.5, 1.5))))
        who = who + 1 if dice.random() < 0.5 else dice.randrange(60)


def smaller(plan: Plan) -> Iterator[Plan]:
    """The plans with one thing less; then those with one thing smaller."""
    for at in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:at] + plan.faults[at + 1 :])
    for at, fault in enumerate(plan.faults):
        for less in _less(fault):
            yield replace(plan, faults=(*plan.faults[:at], less, *plan.faults[at + 1 :]))


def _less(fault: Fault) -> Iterator[Fault]:
    if fault.lasts > 0.1:
        yield replace(fault, lasts=round(fault.lasts / 2, 3))
    if abs(fault.size) > 0.1:
        yield replace(fault, size=round(fault.size / 2, 3))


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The smallest plan found that fails as well."""
    for less in smaller(plan):
        if fails(less):
            return shrink(less, fails)
    return plan


def to_text(plan: Plan) -> str:
    """One line of JSON."""
    return json.dumps(asdict(plan))


def from_text(text: str) -> Plan:
    """What `to_text` wrote."""
    known = json.loads(text)
    return Plan(known["seed"], tuple(Fault(**fault) for fault in known["faults"]))
