"""A fleet in simulated time: no slot twice, none without a record, and planted bugs are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from incumbent.cron import agenda, executor, judging, ledger
from incumbent.cron.ledger import SlotState
from incumbent.cron.schedule import Every, cron_schedule, slot_id
from incumbent.cron.spec import CatchUp, JobSpec
from incumbent.model import Ask
from tests import tiers
from tests.cron import simulation
from tests.cron.quick import remembering
from tests.cron.simulation import (
    EPOCH,
    Plan,
    SimInstance,
    SimPort,
    World,
    drawn_plan,
    simulate,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HARSH = Plan(days=0.6, crash_every=3 * 3600.0, outage_every=2 * 3600.0, dark_every=21_600.0)


@pytest.mark.left(tiers.SEEDS, "0.2-2")
@pytest.mark.parametrize(("days", "seed"), [(0.2, 2), (HARSH.days, 0), (HARSH.days, 1)])
def test_each_slot_runs_at_most_once_and_is_on_record(days: float, seed: int) -> None:
    with remembering():
        outcome = simulate(replace(HARSH, days=days, seed=seed))
    assert outcome.faults == (), f"seed {seed}: {outcome}"
    assert outcome.slots > 1500 * days
    # The plan is harsh enough to show something.
    assert outcome.states["lost"] > 0
    assert outcome.states["missed"] > 0


@pytest.mark.left(tiers.NET)
def test_a_simulation_that_remembers_answers_shows_what_one_without_shows() -> None:
    plan = replace(HARSH, days=0.2, seed=3)
    with remembering():
        quick = simulate(plan)
    assert replace(quick, seconds=0.0) == replace(simulate(plan), seconds=0.0)


@pytest.mark.left(tiers.LONG)
def test_fifty_instances_with_their_clocks_five_minutes_apart_agree() -> None:
    hours = (3600.0, 21_600.0, 86_400.0)
    with remembering():
        outcome = simulate(replace(HARSH, instances=50, jobs=3, intervals=hours, days=2.0, seed=7))
    assert outcome.faults == (), outcome
    assert outcome.slots > 50


HOUR = 3600.0
BEHIND = Plan(
    instances=4,
    jobs=6,
    days=0.3,
    intervals=(60.0, 300.0, 900.0),
    errors=(0.0, 0.0, -HOUR, -1.5 * HOUR, -2 * HOUR),
    keeps=(3, 20),
)


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize(("days", "seed"), [(0.1, 1), (BEHIND.days, 0), (BEHIND.days, 1)])
def test_clocks_one_to_two_hours_behind_run_nothing_that_the_ledger_has_forgotten(
    days: float, seed: int
) -> None:
    with remembering():
        outcome = simulate(replace(BEHIND, days=days, seed=seed))
    assert outcome.faults == (), f"seed {seed}: {outcome}"


SPRING, AUTUMN = 1_774_738_800.0, 1_792_879_200.0
"""2026-03-28T23:00Z and 2026-10-24T22:00Z: midnight in Berlin before its clocks are changed."""
NIGHTLY = ("30 2 * * *", "0 3 * * *", "*/20 * * * *", "15 1-4 * * *")


@pytest.mark.left(tiers.MEET, "errors0-spring", "errors1-autumn", "errors2-spring")
@pytest.mark.parametrize("start", [SPRING, AUTUMN], ids=["spring", "autumn"])
@pytest.mark.parametrize("errors", [(0.0,), (0.0, -HOUR, HOUR), (0.0, 0.0, -2 * HOUR)])
def test_a_night_with_a_change_of_clocks_and_wrong_clocks_runs_nothing_twice(
    start: float, errors: tuple[float, ...]
) -> None:
    schedules = tuple(cron_schedule(it, "Europe/Berlin") for it in NIGHTLY)
    plan = Plan(jobs=8, days=0.4, start=start, schedules=schedules, errors=errors, keeps=(2, 20))
    outcome = simulate(plan)
    assert outcome.faults == (), outcome
    assert outcome.slots > 60


@pytest.mark.left(tiers.SEEDS, "0")
@pytest.mark.parametrize("seed", range(12))
def test_no_slot_runs_twice_whatever_comes_together(seed: int) -> None:
    plan = drawn_plan(seed)
    with remembering():
        outcome = simulate(plan)
    assert outcome.faults == (), f"{plan}: {outcome}"


DARK = (3, 4, 5, 6, 7)
"""Hours at which nobody was up."""


@pytest.mark.parametrize(
    ("rule", "run"),
    [
        (CatchUp("no"), ()),
        (CatchUp("last"), (7,)),
        (CatchUp("all", limit=2), (6, 7)),
        (CatchUp("all", limit=10), DARK),
        (CatchUp("all", limit=10, window=3.2 * HOUR), (5, 6, 7)),
    ],
)
def test_what_nobody_was_up_for_is_caught_up_as_asked_and_the_rest_is_on_record(
    rule: CatchUp, run: tuple[int, ...]
) -> None:
    world = World(Plan())
    spec = JobSpec(name="job", schedule=Every(HOUR), command=("true",), catch_up=rule)
    fleet = [SimInstance(world, index, [spec]) for index in range(3)]
    for instance in fleet:
        instance.start()
    world.run_until(EPOCH + 2.5 * HOUR)
    for instance in fleet:
        instance.stop()
    world.run_until(EPOCH + 7.8 * HOUR)
    for instance in fleet:
        instance.start()
    world.run_until(EPOCH + 8.5 * HOUR)
    names = {hour: slot_id(EPOCH + hour * HOUR) for hour in (*DARK, 8)}
    executed = tuple(hour for hour in DARK if world.executed["job", names[hour]])
    assert executed == run
    assert world.executed["job", names[8]] == 1
    ranges = [(first, last) for _, first, last, _ in world.covered]
    for hour in set(DARK) - set(run):
        due = EPOCH + hour * HOUR
        covered = any(first <= due <= last for first, last in ranges)
        assert covered or world.recorded["job", names[hour]] is SlotState.MISSED
    for held in world.held.values():
        held.machine.note_forked()


# -- planted bugs ----------------------------------------------------------------------------------

MILD = Plan(
    jobs=6,
    days=0.2,
    crash_every=1800.0,
    outage_every=1800.0,
    dark_every=7200.0,
    lost_answers=0.01,
    stop_at_fault=True,
)


def claims_no_slot(patch: pytest.MonkeyPatch) -> None:
    """The plain lock: a fast job ends before the slowest clock reaches the minute."""
    take = SimPort.take

    async def without(self: SimPort, key: Any, claim: str, ask: Ask, until: float) -> Any:
        return await take(self, key, claim, replace(ask, slot=None), until)

    patch.setattr(SimPort, "take", without)
    patch.setattr(ledger.Ledger, "begin", _begins_blindly)


async def _begins_blindly(self: ledger.Ledger, run: Any) -> bool:
    await self._put_field(f"run/{run.slot}", ledger.encode(run), None)
    return True


def nobody_looks_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agenda.Dispatcher, "check_at", lambda *_: None)


def missed_slots_are_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judging, "_wait_or_miss", lambda *_: None)


def the_dead_are_not_declared_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judging, "orphans", lambda _: [])


def an_end_is_written_without_the_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "ByClaim", lambda *_: None)
    # Who was cut off for long tells of its end all the same.
    patch.setattr(simulation, "POLICY", simulation.POLICY)
    patch.setattr(simulation.SimRun, "turn", _ends_however_late)


def _ends_however_late(self: simulation.SimRun) -> None:
    world = self.instance.world
    if world.t >= self.ends + 40:
        self._end()
    else:
        world.at(self.ends + 40, self.turn)


def an_unanswered_claim_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forgets(self: agenda.Dispatcher, *_: object) -> None:
        self._failures = 0

    patch.setattr(agenda.Dispatcher, "note_unanswered", forgets)
    patch.setattr(judging, "gaps", lambda *_: [])
    patch.setattr(executor, "gaps", lambda *_: [])


def a_lost_run_is_overwritten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "ByVersion", lambda _: None)
    patch.setattr(judging, "orphans", _all_that_run)


def _all_that_run(record: Any) -> Any:
    from incumbent.cron.ledger import open_runs

    return open_runs(record.fields)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    claims_no_slot,
    nobody_looks_again,
    missed_slots_are_not_written,
    the_dead_are_not_declared_lost,
    an_end_is_written_without_the_token,
    an_unanswered_claim_is_forgotten,
    a_lost_run_is_overwritten,
]


def begin_runs_what_was_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "is_finished", lambda *_: False)


def nobody_remembers_what_was_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "joined", lambda spans: tuple(spans)[:-1])


def a_slot_of_an_hour_ago_begins_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger.Ledger, "begin", ledger.Ledger.create)


@pytest.mark.left(tiers.NET)
@pytest.mark.parametrize(
    "plant",
    [
        begin_runs_what_was_forgotten,
        nobody_remembers_what_was_removed,
        a_slot_of_an_hour_ago_begins_unseen,
    ],
    ids=lambda it: it.__name__,
)
def test_a_planted_bug_that_needs_wrong_clocks_is_seen_by_chance(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(12):
        if simulate(replace(drawn_plan(seed), stop_at_fault=True)).faults:
            return
    pytest.fail("nobody saw it")


@pytest.mark.left(tiers.NET)
@pytest.mark.parametrize("plant", BUGS, ids=lambda it: it.__name__)
def test_a_planted_bug_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(4):
        if simulate(replace(MILD, seed=seed)).faults:
            return
    pytest.fail("nobody saw it")


@pytest.mark.left(tiers.NET)
def test_without_a_bug_the_same_plans_show_no_fault() -> None:
    for seed in range(2):
        assert simulate(replace(MILD, seed=seed)).faults == ()
