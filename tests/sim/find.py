"""`python -m tests.sim.find`: the first seed at which each regression shows, for the table."""

from __future__ import annotations

import sys

import pytest

from tests.sim import SimulationFailure, run
from tests.sim.mutants import BY_NAME, WITHIN
from tests.sim.regressions import REGRESSIONS, Regression


def first_seed(regression: Regression) -> int | None:
    with pytest.MonkeyPatch.context() as patch:
        BY_NAME[regression.mutant].plant(patch)
        try:
            run(regression.profile, range(WITHIN))
        except SimulationFailure as found:
            return found.seed
    return None


if __name__ == "__main__":
    for known in REGRESSIONS:
        sys.stdout.write(f"{known.profile} {first_seed(known)} {known.mutant!r}\n")
