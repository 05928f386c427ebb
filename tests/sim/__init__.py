"""The simulator: whole histories of the real protocols in virtual time, judged in true time.

    from tests.sim import run
    run("network", range(10_000))          # raises SimulationFailure, which shows the history

A world is made from a seed and a profile. Its processes run the very coroutines that the blocking
and the asynchronous driver run; its server is the executable specification of the store contract.
On the command line: `python -m tests.sim --profile network --seeds 0:10000`.
"""

from __future__ import annotations

from tests.sim.judge import Violation
from tests.sim.profiles import PROFILES, Profile
from tests.sim.runner import SimulationFailure, Tally, replay, run

__all__ = ["PROFILES", "Profile", "SimulationFailure", "Tally", "Violation", "replay", "run"]
