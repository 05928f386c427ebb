"""Random troubles of a minority of real masters: never two that can prove it, and tokens grow.

`python -m tests.quorum.campaign` runs thousands; INCUMBENT_QUORUM_SCHEDULES sets how many run here.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests import tiers
from tests.quorum.campaign import finished_seeds, keep, run_all
from tests.quorum.fleet import Fleet, NobodyLed, Outcome
from tests.quorum.judge import Sight
from tests.quorum.schedule import FAULTS_LAST, KINDS, Schedule, Trouble, draw, from_text, smaller
from tests.stores.quorum.world import Members

pytestmark = pytest.mark.crowd(tiers.MANY)

FEW, BATCH, JOBS = 2, 14, 6
TRIALS = int(os.environ.get("INCUMBENT_QUORUM_SCHEDULES", "60"))
BATCHES = (FEW, *[BATCH] * ((TRIALS - FEW) // BATCH))
"""Schedules in a test; `make test` runs the first."""


@pytest.mark.left(tiers.SEEDS, "0")
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", range(len(BATCHES)))
def test_no_random_schedule_lets_two_prove_it_or_a_token_shrink(part: int) -> None:
    start = random.SystemRandom().randrange(10**9)
    outcomes: list[Outcome] = []
    failed: list[str] = []

    def hear(schedule: Schedule, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Exception):
            failed.append(f"{outcome!r}: {schedule.text}")
            return
        outcomes.append(outcome)
        if outcome.wrong:
            failed.append(outcome.report)

    run_all([draw(seed) for seed in range(start, start + BATCHES[part])], JOBS, hear)
    assert not failed, f"part {part}, seeds from {start}:\n" + "\n".join(failed)
    # Else nobody was there who could have overlapped.
    assert sum(len(outcome.sight.spans) > 2 for outcome in outcomes) > BATCHES[part] // 3


@pytest.mark.left(tiers.NET)
@pytest.mark.slow
@pytest.mark.server
def test_the_judge_sees_two_holders_where_a_single_master_forgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same contenders on one server, which promises less: it is wiped during each term."""

    def single(self: Members) -> str:
        return f"redis://{self.all[0].address}?restart_wait=0"

    monkeypatch.setattr(Members, "url", single)
    wipes = tuple(Trouble(0.15 * at, "wiped", 0, 0.0) for at in range(1, 16))
    with Fleet(1) as fleet:
        tries = (fleet.run(Schedule(seed, 1, wipes)) for seed in range(5))
        assert any("both" in said for outcome in tries for said in outcome.wrong)


# Two of three, again and again: more than a minority, which costs the lease but gives it to no two.
WIPES_OF_TWO = tuple(Trouble(0.12 * at, "wiped", at % 2, 0.0) for at in range(1, 16))


@pytest.mark.left(tiers.NET)
@pytest.mark.slow
@pytest.mark.server
def test_two_of_three_wiped_in_turn_give_two_holders_only_without_the_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Fleet(3) as fleet:
        assert not fleet.run(Schedule(0, 3, WIPES_OF_TWO)).wrong
    with_it = Members.url
    monkeypatch.setattr(Members, "url", lambda self: with_it(self, "restart_wait=0"))
    with Fleet(3) as fleet:
        tries = (fleet.run(Schedule(seed, 3, WIPES_OF_TWO)) for seed in range(8))
        assert any("both" in said for outcome in tries for said in outcome.wrong)


def told(sight: Sight, who: str, token: int, begin: float, until: float, end: int = 0) -> None:
    sight.hear(who, {"token": token, "at": begin, "until": until, "end": end})


def test_the_judge_knows_what_was_proved() -> None:
    sight = Sight()
    told(sight, "a", 1, 10.0, 11.0)
    told(sight, "a", 1, 10.2, 11.2)
    told(sight, "b", 2, 11.3, 12.0)
    assert not sight.wrong
    told(sight, "c", 3, 11.9, 13.0)
    assert len(sight.wrong) == 1


def test_a_lease_that_was_given_back_early_overlaps_nothing() -> None:
    sight = Sight()
    told(sight, "a", 1, 10.0, 11.0)
    told(sight, "a", 1, 10.5, 10.5, end=1)
    told(sight, "b", 2, 10.6, 11.6)
    assert not sight.wrong


def test_a_token_that_shrinks_is_seen() -> None:
    sight = Sight()
    told(sight, "a", 2, 10.0, 11.0)
    told(sight, "b", 1, 12.0, 13.0)
    assert len(sight.wrong) == 1


def test_every_schedule_spares_a_majority_and_every_kind_is_drawn() -> None:
    drawn = [draw(seed) for seed in range(500)]
    assert {trouble.kind for one in drawn for trouble in one.troubles} >= set(KINDS)
    for schedule in drawn:
        assert from_text(schedule.text) == schedule
        for trouble in schedule.troubles:
            assert 0 <= trouble.at < FAULTS_LAST + 0.2
            at_once = [one for one in of_masters(schedule) if one.at <= trouble.at <= ends(one)]
            assert len({one.who for one in at_once}) <= schedule.members // 2


def ends(trouble: Trouble) -> float:
    return trouble.at + trouble.lasts


def of_masters(schedule: Schedule) -> list[Trouble]:
    return [one for one in schedule.troubles if one.kind in KINDS]


def test_a_smaller_schedule_lacks_one_trouble() -> None:
    schedule = draw(7)
    assert all(len(less.troubles) == len(schedule.troubles) - 1 for less in smaller(schedule))


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert finished_seeds(results) == set()
    for seed in (3, 5):
        keep(results, Counter(), draw(seed), Outcome(draw(seed), Sight(), 0.1))
    keep(results, Counter(), draw(7), NobodyLed("nobody"))
    # Nothing was judged: tried again next time.
    keep(results, Counter(), draw(9), OSError("no port"))
    assert finished_seeds(results) == {3, 5, 7}
