"""Runs many histories, and tells the one that must not be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.sim.judge import Violation
from tests.sim.profiles import PROFILES, Profile
from tests.sim.world import World

__all__ = ["SimulationFailure", "Tally", "replay", "run"]


@dataclass(slots=True)
class Tally:
    """What happened in all histories together."""

    histories: int = 0
    acquired: int = 0
    lost: int = 0
    overlaps: int = 0


class SimulationFailure(AssertionError):
    """A violation, with what it takes to see it again."""

    def __init__(self, profile: Profile, seed: int, rule: str, trace: str, histories: int) -> None:
        super().__init__(
            f"profile {profile.name}, seed {seed}\n{trace}\nagain:"
            f" python -m tests.sim --profile {profile.name} --seeds {seed}:{seed + 1}"
        )
        self.profile = profile
        self.seed = seed
        self.rule = rule
        self.histories = histories
        """How many it took."""


def run(profile: Profile | str, seeds: Iterable[int]) -> Tally:
    """Run one history a seed; raises SimulationFailure at the first that breaks a rule."""
    kind = PROFILES[profile] if isinstance(profile, str) else profile
    tally = Tally()
    for seed in seeds:
        tally.histories += 1
        world = World(kind, seed)
        try:
            world.play()
        except Violation as broken:
            trace = replay(kind, seed)
            raise SimulationFailure(kind, seed, broken.rule, trace, tally.histories) from None
        tally.acquired += world.judge.acquired
        tally.lost += world.judge.losses
        tally.overlaps += world.judge.overlaps
    return tally


def replay(profile: Profile | str, seed: int) -> str:
    """One history, to read; it ends where a rule is broken, if one is."""
    kind = PROFILES[profile] if isinstance(profile, str) else profile
    history: list[str] = []
    try:
        World(kind, seed, history=history).play()
    except Violation:
        pass
    return "\n".join(history)
