"""What befalls the masters and the contenders, as data: drawn from a seed, printed, made smaller.

At most a minority of the masters is in trouble at one time, and one trouble may follow on the heels
of another. Nothing happens here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

TTL = 1.0
CONTENDERS = ("sync", "sync", "async")
FAULTS_LAST = 2.4
"""Seconds from the first grant in which troubles begin."""

ON_PROCESS = ("killed", "killed and emptied", "frozen")
ON_DATA = ("wiped",)
ON_NETWORK = ("cut off", "refusing", "slow", "answers lost", "half cut off", "torn")
KINDS = (*ON_PROCESS, *ON_DATA, *ON_NETWORK)
LOSES_DATA = ("killed and emptied", "wiped")
OF_CONTENDERS = ("contender stopped", "contender killed")


@dataclass(frozen=True)
class Trouble:
    """`kind` befalls master (or contender) `who` at `at` and ends at `at + lasts`, in seconds."""

    at: float
    kind: str
    who: int
    lasts: float


@dataclass(frozen=True)
class Schedule:
    """All that is drawn."""

    seed: int
    members: int
    troubles: tuple[Trouble, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted(one.kind for one in self.troubles))

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


def from_text(text: str) -> Schedule:
    """The schedule that `text` prints."""
    said = json.loads(text)
    return Schedule(
        said["seed"], said["members"], tuple(Trouble(**one) for one in said["troubles"])
    )


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    dice = random.Random(seed)
    members = dice.choice((3, 3, 5))
    troubles = list(_episodes(dice, members))
    if dice.random() < 0.35:
        troubles.append(_of_contender(dice))
    return Schedule(seed, members, tuple(sorted(troubles, key=lambda one: one.at)))


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """The same with one trouble fewer."""
    for one in schedule.troubles:
        left = tuple(other for other in schedule.troubles if other is not one)
        yield replace(schedule, troubles=left)


def _episodes(dice: random.Random, members: int) -> Iterator[Trouble]:
    at = _rounded(dice.uniform(0.0, 0.4))
    while at < FAULTS_LAST:
        count = dice.randint(1, members // 2)
        together = [_on_master(dice, at, who) for who in dice.sample(range(members), count)]
        yield from together
        over = max(one.at + one.lasts for one in together)
        # Often at once: a rolling restart.
        at = _rounded(over + dice.choice((0.02, 0.02, 0.3, 0.6)))


def _on_master(dice: random.Random, at: float, who: int) -> Trouble:
    kind = dice.choice(KINDS)
    once = kind in (*ON_DATA, "torn")
    lasts = 0.0 if once else dice.choice((0.05, 0.3, 0.6, 1.2))
    return Trouble(_rounded(at + dice.choice((0.0, 0.0, 0.1))), kind, who, lasts)


def _of_contender(dice: random.Random) -> Trouble:
    kind = dice.choice(("contender stopped", "contender stopped", "contender killed"))
    at = _rounded(dice.uniform(0.1, FAULTS_LAST - 1.2))
    return Trouble(at, kind, dice.randrange(len(CONTENDERS)), dice.choice((0.4, 1.2)))


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
