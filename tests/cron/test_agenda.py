"""What is due when: no slot twice, none left out, whatever the clock does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incumbent.cron.agenda import CORRECTION, Agenda
from incumbent.cron.judging import STEP, missed_slots, start_of
from incumbent.cron.schedule import Every, FixedTimes, Schedule, cron_schedule
from incumbent.cron.spec import CatchUp, JobSlot, JobSpec

MONDAY = datetime.fromisoformat("2026-11-23T00:00:00Z").timestamp()
HOUR, DAY = 3600.0, 86_400.0


def job(name: str, schedule: Schedule | str, **changed: Any) -> JobSpec:
    made = cron_schedule(schedule) if isinstance(schedule, str) else schedule
    return replace(JobSpec(name=name, schedule=made, command=("true",)), **changed)


def said(agenda: Agenda, now: float) -> list[tuple[str, float, bool]]:
    return [(spec.name, slot.due - MONDAY, slot.only_check) for spec, slot in agenda.due(now)]


def between(schedule: Schedule, low: float, high: float) -> list[float]:
    found, instant = [], schedule.next_after(low)
    while instant is not None and instant <= high:
        found.append(instant)
        instant = schedule.next_after(instant)
    return found


def test_slots_come_in_order_and_then_in_the_order_of_the_file() -> None:
    jobs = [job("b", "*/10 * * * *"), job("a", "*/5 * * * *"), job("c", "0 * * * *")]
    agenda = Agenda(jobs, MONDAY)
    assert agenda.next_at == MONDAY + 300
    assert said(agenda, MONDAY + 299) == []
    assert said(agenda, MONDAY + 300) == [("a", 300, False)]
    assert said(agenda, MONDAY + 600) == [("b", 600, False), ("a", 600, False)]


def test_a_schedule_that_has_ended_leaves_the_agenda() -> None:
    agenda = Agenda([job("a", FixedTimes((MONDAY + 5,)))], MONDAY)
    assert said(agenda, MONDAY + 5) == [("a", 5, False)]
    assert agenda.next_at is None
    assert said(agenda, MONDAY + DAY) == []


RULES: list[tuple[CatchUp, list[float], list[float]]] = [
    (CatchUp("no"), [], [1, 2, 3, 4]),
    (CatchUp("last"), [4], [1, 2, 3]),
    (CatchUp("all", 2), [3, 4], [1, 2]),
    (CatchUp("all", 9), [1, 2, 3, 4], []),
    (CatchUp("all", 9, 2.6 * HOUR), [2, 3, 4], [1]),
    (CatchUp("last", 1, 0.4 * HOUR), [], [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("rule", "to_run", "missed"), RULES)
def test_what_was_missed_is_run_or_recorded_as_the_job_says(
    rule: CatchUp, to_run: list[float], missed: list[float]
) -> None:
    spec = job("a", "0 * * * *", catch_up=rule)
    now = MONDAY + 4.5 * HOUR
    wanted = (
        tuple(MONDAY + it * HOUR for it in to_run),
        tuple(MONDAY + it * HOUR for it in missed),
    )
    assert missed_slots(spec, MONDAY, now) == wanted


def test_a_punctual_slot_makes_up_for_the_ones_before_it() -> None:
    spec = job("a", "0 * * * *", catch_up=CatchUp("last"))
    now = MONDAY + 2 * HOUR + 5
    assert missed_slots(spec, MONDAY, now) == ((MONDAY + 2 * HOUR,), (MONDAY + HOUR,))


def test_what_is_known_from_the_ledger_is_caught_up_at_the_start() -> None:
    spec = job("a", "0 * * * *", catch_up=CatchUp("last"))
    agenda = Agenda([spec], MONDAY + 3.5 * HOUR, {"a": MONDAY + HOUR})
    assert said(agenda, MONDAY + 3.5 * HOUR) == [("a", 2 * HOUR, True), ("a", 3 * HOUR, False)]
    assert said(agenda, MONDAY + 3.5 * HOUR) == []


def test_a_job_of_which_nothing_is_known_has_missed_nothing() -> None:
    spec = job("a", "0 * * * *", catch_up=CatchUp("all"))
    assert said(Agenda([spec], MONDAY + 3.5 * HOUR), MONDAY + 3.5 * HOUR) == []


@pytest.mark.parametrize(
    ("schedule", "late", "run"),
    [
        ("0 * * * *", 59.9, True),
        ("0 * * * *", 60.0, False),
        (Every(15.0), 14.9, True),
        (Every(1.0), 1.9, True),
    ],
)
def test_a_slot_is_punctual_until_the_next_one_comes(
    schedule: Schedule | str, late: float, run: bool
) -> None:
    spec = job("a", schedule, catch_up=CatchUp("no"))
    agenda = Agenda([spec], MONDAY - 0.5)
    first = [(name, missed) for name, slot, missed in said(agenda, MONDAY + late) if slot == 0]
    assert first == [("a", not run)]


def test_of_very_many_missed_slots_only_the_last_are_named() -> None:
    spec = job("a", Every(1.0), keep_runs=100, catch_up=CatchUp("last"))
    agenda = Agenda([spec], MONDAY, {"a": MONDAY - 366 * DAY})
    found = said(agenda, MONDAY + 0.5)
    # As many as the history keeps, and such as the one record of all others begins with.
    assert len(found) == 104
    assert found[-2:] == [("a", -1, False), ("a", 0, False)]


# -- clocks ----------------------------------------------------------------------------------------


def test_a_fixed_time_waits_for_a_clock_that_was_set_back() -> None:
    agenda = Agenda([job("a", "1 0-3 * * *")], MONDAY)
    assert said(agenda, MONDAY + 60) == [("a", 60, False)]
    agenda.note_clock(MONDAY - HOUR)
    assert said(agenda, MONDAY - HOUR) == []
    assert agenda.next_at == MONDAY + HOUR + 60
    assert said(agenda, MONDAY + 60) == []
    assert said(agenda, MONDAY + HOUR + 60) == [("a", HOUR + 60, False)]


@pytest.mark.parametrize("schedule", ["* * * * *", "*/2 * * * * *", "@hourly", Every(60), Every(2)])
def test_a_rhythm_goes_on_at_once_by_a_clock_that_was_set_back(schedule: Schedule | str) -> None:
    spec = job("a", schedule)
    agenda, now = Agenda([spec], MONDAY), MONDAY + 2 * HOUR
    agenda.due(now)
    for back in (40 * 60, 6, CORRECTION - HOUR, CORRECTION + HOUR, 366 * DAY):
        now -= back
        assert agenda.note_clock(now)
        assert agenda.next_at == spec.schedule.next_after(now)
        # What the clock has shown before is looked up, for it may have run.
        (came,) = agenda.due(agenda.next_at or 0.0)
        assert agenda.may_be_returned(came[1], "a")


def test_a_clock_set_back_by_a_moment_is_waited_for() -> None:
    agenda = Agenda([job("a", Every(2))], MONDAY)
    assert said(agenda, MONDAY + 2) == [("a", 2, False)]
    assert not agenda.note_clock(MONDAY + 2 - STEP)
    assert agenda.next_at == MONDAY + 4


def test_what_is_on_record_beyond_our_clock_may_come_again() -> None:
    spec = job("a", "* * * * *")
    agenda = Agenda([spec], MONDAY, {"a": MONDAY + 300})
    assert agenda.next_at == MONDAY + 60
    assert agenda.may_be_returned(JobSlot.at(MONDAY + 300), "a")
    assert not agenda.may_be_returned(JobSlot.at(MONDAY + 360), "a")
    agenda.replace([replace(spec, retries=1)], MONDAY)
    assert agenda.may_be_returned(JobSlot.at(MONDAY + 300), "a")


def test_a_clock_that_was_wrong_by_far_starts_the_jobs_anew() -> None:
    agenda = Agenda([job("a", "0 * * * *")], MONDAY + 366 * DAY)
    assert said(agenda, MONDAY) == []
    assert agenda.next_at == MONDAY + HOUR
    assert said(agenda, MONDAY + HOUR) == [("a", HOUR, False)]


def test_a_correction_is_more_than_three_hours() -> None:
    agenda = Agenda([job("a", "30 22 * * *")], MONDAY)
    for back in (CORRECTION, CORRECTION - 60, CORRECTION):
        agenda.note_clock(MONDAY - back)
        assert agenda.next_at == MONDAY + 22.5 * HOUR
    agenda.note_clock(MONDAY - CORRECTION - 1)
    assert agenda.next_at == MONDAY - 1.5 * HOUR


def test_a_clock_set_forward_leaves_it_to_the_rule_for_catching_up() -> None:
    agenda = Agenda([job("a", "0 * * * *", catch_up=CatchUp("no"))], MONDAY)
    assert said(agenda, MONDAY + 2.5 * HOUR) == [("a", HOUR, True), ("a", 2 * HOUR, True)]
    assert agenda.next_at == MONDAY + 3 * HOUR


# -- reload ----------------------------------------------------------------------------------------


def test_a_reload_keeps_the_place_of_what_stayed() -> None:
    stays, goes, shifts = job("a", "0 * * * *"), job("b", "0 * * * *"), job("c", "0 * * * *")
    agenda = Agenda([stays, goes, shifts], MONDAY)
    half_past = MONDAY + 1.5 * HOUR
    changed = [job("new", "*/30 * * * *"), job("c", "15 * * * *"), replace(stays, retries=3)]
    changes = agenda.replace(changed, half_past)
    assert changes == {"added": ["new"], "removed": ["b"], "rescheduled": ["c"]}
    # The slot that came before the reload is still to be decided for the job that stayed.
    assert said(agenda, half_past) == [("a", HOUR, True)]
    due = agenda.due(MONDAY + 2 * HOUR)
    assert [(spec.name, spec.retries) for spec, _ in due] == [("new", 0), ("a", 3)]


# -- drawn at random -------------------------------------------------------------------------------

schedules = st.one_of(
    st.sampled_from([1.0, 7.5, 15.0, 60.0, 3600.0]).map(Every),
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "15 3 * * 1"]).map(
        lambda it: cron_schedule(it, "Europe/Berlin")
    ),
    st.lists(st.integers(0, 3 * 86_400), min_size=1, max_size=5, unique=True).map(
        lambda it: FixedTimes(tuple(MONDAY + second for second in sorted(it)))
    ),
)
modes: st.SearchStrategy[Literal["no", "last", "all"]] = st.sampled_from(["no", "last", "all"])
specs = st.builds(
    lambda schedule, mode, limit, window, jitter: job(
        "?", schedule, catch_up=CatchUp(mode, limit, window), jitter=jitter, keep_runs=50
    ),
    schedules,
    modes,
    st.integers(1, 60),
    st.floats(1, 5 * DAY),
    st.sampled_from([0.0, 0.0, 5.0, 600.0]),
)
# Three of its slots are punctual at once, beside as many late ones as it keeps.
EACH_SECOND = job("?", Every(1.0), catch_up=CatchUp("all", 50, 53.0), jitter=5.0, keep_runs=50)
forward = st.one_of(st.floats(0, 90), st.floats(0, 2 * HOUR))
steps = st.lists(st.one_of(forward, st.floats(-CORRECTION, 0)), max_size=12)


@settings(deadline=None)
@given(specs.filter(lambda spec: spec.schedule.keeps_rhythm), steps)
def test_a_rhythm_follows_the_clock_whatever_it_does(spec: JobSpec, moves: list[float]) -> None:
    spec, now = replace(spec, jitter=0.0), MONDAY
    agenda, schedule = Agenda([spec], MONDAY), spec.schedule
    for move in moves:
        now += move
        due = [slot.due for _, slot in agenda.due(now)]
        assert due == sorted(set(due))
        assert not due or (move >= 0 and due[-1] <= now)
        first, at_last = schedule.next_after(now), schedule.next_after(now + STEP)
        assert first is not None
        assert at_last is not None
        assert agenda.next_at is not None
        assert first <= agenda.next_at <= at_last


@settings(deadline=None)
@given(st.lists(specs, min_size=1, max_size=4), steps)
def test_no_slot_twice_none_left_out_and_all_in_order(
    drawn: list[JobSpec], moves: list[float]
) -> None:
    """Where a clock is set back, of jobs at fixed times: those alone wait for it."""
    if any(move < -STEP for move in moves):
        drawn = [spec for spec in drawn if not spec.schedule.keeps_rhythm]
    jobs = [replace(spec, name=f"j{number}") for number, spec in enumerate(drawn)]
    agenda, now, latest = Agenda(jobs, MONDAY), MONDAY, MONDAY
    named: dict[str, list[float]] = {spec.name: [] for spec in jobs}
    for move in moves:
        # Back from the latest time, however often: never a correction.
        now = max(now + move, latest - CORRECTION)
        latest = max(latest, now)
        due = agenda.due(now)
        assert [slot.due for _, slot in due] == sorted(slot.due for _, slot in due)
        for spec, slot in due:
            assert start_of(spec, slot.due) <= now
            named[spec.name].append(slot.due)
        assert agenda.next_at is None or agenda.next_at > latest or now < latest
    for spec in jobs:
        found = named[spec.name]
        assert max(Counter(found).values(), default=0) <= 1
        assert all(one < other for one, other in pairwise(found))
        ready = [
            it for it in between(spec.schedule, MONDAY, latest) if start_of(spec, it) <= latest
        ]
        kept = max(spec.keep_runs, spec.catch_up.limit)
        # Only what was overrun by more slots than are kept may go unnamed.
        left_out = set(ready) - set(found)
        assert not left_out or len(ready) > kept
        assert set(found) <= set(ready)
        assert ready[-1:] == sorted(found)[-1:]


@settings(deadline=None)
@example(EACH_SECOND, 0.0, 22_650.5)
@given(specs, st.floats(0, 2 * DAY), st.floats(0, DAY))
def test_to_run_and_missed_are_all_slots_and_the_rule_is_kept(
    spec: JobSpec, known: float, later: float
) -> None:
    last, now = MONDAY + known, MONDAY + known + later
    to_run, missed = missed_slots(spec, last, now)
    assert list(to_run) == sorted(set(to_run))
    assert not set(to_run) & set(missed)
    late = [it for it in to_run if now - start_of(spec, it) >= 60]
    allowed = {"no": 0, "last": 1, "all": spec.catch_up.limit}[spec.catch_up.mode]
    assert len(late) <= allowed
    assert all(it >= now - spec.catch_up.window for it in late)
    ready = [it for it in between(spec.schedule, last, now) if start_of(spec, it) <= now]
    kept = max(spec.keep_runs, spec.catch_up.limit)
    named = sorted({*to_run, *missed})
    assert named == ready[-kept - 4 :]
    # One that is missed is named, for its record counts those that are not.
    assert missed or named == ready


@settings(deadline=None)
@given(st.text("abc", min_size=1, max_size=5), st.integers(0, 10_000), st.floats(0.1, 7200))
def test_jitter_stays_within_its_bound_and_before_the_next_slot(
    name: str, count: int, jitter: float
) -> None:
    spec = job(name, "* * * * *", jitter=jitter)
    slot = MONDAY + 60 * count
    assert slot <= start_of(spec, slot) < slot + min(jitter, 60)
    assert start_of(spec, slot) == start_of(job(name, "* * * * *", jitter=jitter), slot)


def test_jitter_spreads_jobs_that_are_due_together() -> None:
    starts = {start_of(job(f"j{it}", "0 * * * *", jitter=60), MONDAY) for it in range(100)}
    assert len(starts) == 100
    assert max(starts) - min(starts) > 45
