"""The histories of simulated fleets, judged by the checker of whole histories as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from unittest.mock import patch

import pytest

from incumbent.cron.judging import CLOCK_SPREAD
from incumbent.cron.ledger import SlotState
from incumbent.cron.schedule import slot_id
from tests import tiers
from tests.cron import simulation
from tests.cron.simulation import EPOCH, Plan, World, make_specs, simulate
from tests.history.checker import check
from tests.history.events import Due, Entry, History, Run

FLEETS = Plan(instances=3, jobs=4, days=0.2, crash_every=1800.0, outage_every=3600.0)
_RAN = {SlotState.OK: "ok", SlotState.FAILED: "failed"}


@dataclass
class Told(World):
    """A world that tells who ran what when."""

    runs: list[Run] = field(default_factory=list)

    def begins(self, job: str, slot: str, due: float, until: float) -> None:
        self.runs.append(Run("", job, slot, slot, self.t, inf))
        super().begins(job, slot, due, until)


def history_of(plan: Plan) -> History:
    """Runs, what the ledger says in the end, and what was due in the middle of it."""
    made: list[Told] = []

    def world(plan: Plan) -> Told:
        made.append(Told(plan))
        return made[-1]

    with patch.object(simulation, "World", world):
        simulate(plan)
    told = History(list(made[0].runs))
    world_ran = {(run.key, run.slot) for run in made[0].runs}
    for (job, slot), state in made[0].recorded.items():
        # A run whose instance died is lost; so is a claim that never became one.
        ran = state in _RAN or (job, slot) in world_ran
        told.tell(Entry(job, slot, _RAN.get(state, str(state)), slot if ran else ""))
    for due in _due(plan, made[0]):
        told.tell(due)
    return told


def _due(plan: Plan, world: Told) -> Iterator[Due]:
    end = EPOCH + plan.days * 86_400.0 - CLOCK_SPREAD
    for spec in make_specs(plan):
        at = spec.schedule.next_after(EPOCH + CLOCK_SPREAD)
        while at is not None and at < end:
            # Of very many missed ones a single record speaks for all.
            if not any(job == spec.name and a <= at <= b for job, a, b, _ in world.covered):
                yield Due(spec.name, slot_id(at), at, end)
            at = spec.schedule.next_after(at)


@pytest.mark.left(tiers.SEEDS, "1")
@pytest.mark.parametrize("seed", range(3))
def test_the_ledger_of_a_fleet_has_no_gap_and_its_slots_run_once(seed: int) -> None:
    history = history_of(replace(FLEETS, seed=seed))
    assert len(list(history.of(Run))) > 50
    assert check(history) == []


def test_a_run_that_is_left_out_of_the_ledger_is_seen() -> None:
    history = history_of(FLEETS)
    ran = next(history.of(Run))
    history.events = [
        event
        for event in history.events
        if not (isinstance(event, Entry) and (event.key, event.slot) == (ran.key, ran.slot))
    ]
    history.tell(Due(ran.key, ran.slot, 0.0, 0.0))
    assert {broken.rule for broken in check(history)} == {"ledger"}


def test_a_slot_that_runs_once_more_is_seen() -> None:
    history = history_of(FLEETS)
    history.tell(next(history.of(Run)))
    assert {broken.rule for broken in check(history)} == {"slot"}
