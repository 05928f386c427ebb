"""The simulator bites: each planted bug is caught by the profile that is named for it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests import tiers
from tests.sim import PROFILES, SimulationFailure, run
from tests.sim.mutants import MUTANTS, WITHIN, Mutant

pytestmark = pytest.mark.slow


@pytest.mark.left(tiers.NET)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = PROFILES[mutant.profile]
    if mutant.overlaps_only:
        profile = replace(profile, strict_proofs=False)
    mutant.plant(monkeypatch)

    with pytest.raises(SimulationFailure) as caught:
        run(profile, range(WITHIN))

    found = caught.value
    took = f"{found.rule}, after {found.histories} histories of {profile.name}"
    sys.stdout.write(f"{mutant.name}: {took}\n")
    assert found.rule in mutant.rules, str(found)
