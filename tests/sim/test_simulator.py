"""Ten thousand histories of each kind of world, and no rule is broken.

INCUMBENT_SIM_SEED moves the seeds; a failure prints its profile, its seed and its history.
"""

from __future__ import annotations

import os

import pytest

from tests import tiers
from tests.sim import PROFILES, Profile, SimulationFailure, replay, run
from tests.sim.__main__ import main
from tests.sim.judge import Judge, Violation
from tests.sim.mutants import BY_NAME
from tests.sim.regressions import REGRESSIONS, Regression
from tests.sim.world import World

FIRST = int(os.environ.get("INCUMBENT_SIM_SEED", "0"))
# `make test` runs the first part of each profile, which is the smallest.
FEW, PART, PARTS = 100, 1_100, 10
KEEPING = [profile for profile in PROFILES.values() if not profile.overlaps]


def part(number: int) -> range:
    first = FIRST + (FEW + (number - 1) * PART if number else 0)
    return range(first, first + (PART if number else FEW))


@pytest.mark.left(tiers.SEEDS, "*-0")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
@pytest.mark.parametrize("profile", KEEPING, ids=lambda profile: profile.name)
def test_no_history_breaks_a_rule(profile: Profile, number: int) -> None:
    tally = run(profile, part(number))
    # Worlds in which hardly anybody gets a lease would prove nothing.
    assert tally.acquired > tally.histories
    assert tally.overlaps == 0


@pytest.mark.left(tiers.SEEDS, "0")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
def test_a_store_that_forgets_lets_beliefs_overlap_and_tokens_grow(number: int) -> None:
    # The documented limit: were there none, the judge would be blind.
    assert run("forgetful", part(number)).overlaps > 0


@pytest.mark.parametrize("known", REGRESSIONS, ids=lambda known: known.mutant)
def test_a_history_that_once_broke_a_rule_keeps_it(known: Regression) -> None:
    run(known.profile, [known.seed])


@pytest.mark.parametrize("known", REGRESSIONS, ids=lambda known: known.mutant)
def test_the_seed_of_a_regression_still_shows_the_defect(
    known: Regression, monkeypatch: pytest.MonkeyPatch
) -> None:
    BY_NAME[known.mutant].plant(monkeypatch)
    with pytest.raises(SimulationFailure):
        run(known.profile, [known.seed])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_seed_is_one_history(profile: str) -> None:
    for seed in range(FIRST, FIRST + 20):
        assert replay(profile, seed) == replay(profile, seed)


def test_every_world_ends_and_leaves_no_lease_behind() -> None:
    world = World(PROFILES["calm"], FIRST)
    world.play()
    assert all(process.dead for process in world.processes)


def test_a_failure_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: Judge, *_: object) -> None:
        self.fail("example", "planted")

    monkeypatch.setattr(Judge, "succeeded", breaks)
    assert main(["--profile", "calm", "--seeds", "7:9"]) == 1
    said = capsys.readouterr().out
    assert "example: planted" in said
    assert "python -m tests.sim --profile calm --seeds 7:8" in said


def test_a_trace_is_a_history_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "calm", "--seeds", "3", "--trace"]) == 0
    said = capsys.readouterr().out
    assert "acquire(" in said
    assert "is given back by" in said


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "calm", "--seeds", "0:50"]) == 0
    assert "calm: 50 histories" in capsys.readouterr().out


def test_a_judge_that_sees_two_believers_says_so() -> None:
    violation = Violation("overlap", "two of them")
    assert violation.rule == "overlap"
    assert "two of them" in str(violation)
