"""Defects that the simulator found, each with a seed that shows it while it is planted again.

A seed means its history only as long as the simulator draws the same chances in the same order.
When that changes, `python -m tests.sim.find` brings new seeds for this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Regression:
    """`mutant` is the defect as it was; see tests.sim.mutants."""

    profile: str
    seed: int
    mutant: str


REGRESSIONS = [
    # A first take arrived after the release, and nobody gave its ghost back.
    Regression("signals", 12, "a release forgets the take that got no answer"),
    # One of two takes in doubt was settled, the other came later and stayed.
    Regression("signals", 95, "a debt of two takes is settled by one release"),
    # A release that went unanswered was repeated without what at_least_for still asked.
    Regression("slots", 36, "a debt forgets at least for"),
]
