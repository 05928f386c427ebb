"""Clocks that are set back: rhythms go on, fixed times are not repeated, no slot runs twice."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.cron.agenda import Agenda, ClaimOrder, Dispatcher, LedgerOrder
from incumbent.cron.events import JobMetrics
from incumbent.cron.fleet import Peers, SignOfLife
from incumbent.cron.folds import FOLD, NO_FOLD, Fold, encode_fold, fold_number, fold_of
from incumbent.cron.judging import CLOCK_SPREAD, gaps, is_ahead, next_fold
from incumbent.cron.ledger import (
    PRUNED,
    RUN,
    Ledger,
    SlotRecord,
    SlotState,
    encode,
    is_finished,
    runs_of,
)
from incumbent.cron.schedule import Every, Schedule, cron_schedule, slot_id
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.model import Field, Key, Record
from incumbent.runtime.link import link_for
from incumbent.stores.plan import run_blocking as drive
from tests import tiers
from tests.cron.fleet import CronFleet, real_processes
from tests.cron.simulation import EPOCH, Plan, SimInstance, World
from tests.support.needs import needs
from tests.support.waiting import eventually
from tests.support.wall import Wall

HOUR, MINUTE = 3600.0, 60.0
NOW = 1_795_000_000.0
"""Ten minutes and 40 s after an hour."""


def run_of(due: float, token: int, name: str = "", **more: Any) -> SlotRecord:
    return SlotRecord(name or slot_id(due), SlotState.OK, due, "i1", token, due, **more)


def record_of(*runs: SlotRecord, **fields: bytes) -> Record:
    written = {RUN + run.slot: Field(encode(run), 1) for run in runs}
    others = {name: Field(value, 1) for name, value in fields.items()}
    return Record(Key("n", "job"), (), 0.0, {**written, **others}, {})


# -- when there is a fold --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "latest_wall", "others", "expected"),
    [
        # Our clock was set back: what it has shown, or a clock of the fleet may have, comes again.
        (40 * MINUTE, 40 * MINUTE, [], (0, 40 * MINUTE)),
        (60, 60, [], (0, 60)),
        (100, 60, [], (0, 100)),
        # Nobody is there, and no clock may be so far apart: after a restart.
        (40 * MINUTE, 0, [], (0, 40 * MINUTE)),
        # A clock that is ahead as clocks may be, and ours was not set back.
        (CLOCK_SPREAD - 1, 0, [], None),
        (60, 3, [], None),
        (-60, 0, [], None),
        # Another lives where the record is: it is our clock that is behind.
        (40 * MINUTE, 40 * MINUTE, [40 * MINUTE], None),
        (40 * MINUTE, 0, [35 * MINUTE, 0], None),
        (60, 60, [58], None),
        # The others are with us, some of them a little ahead.
        (40 * MINUTE, 40 * MINUTE, [0, -200, 200], (200, 40 * MINUTE)),
        # Some clock was a year ahead: no fold is as long as that.
        (366 * 86_400, 0, [], None),
    ],
)
def test_slots_come_again_if_no_clock_is_where_the_record_is(
    ahead: float, latest_wall: float, others: list[float], expected: tuple[float, float] | None
) -> None:
    found = next_fold(
        record_of(run_of(NOW - HOUR, 1), run_of(NOW + ahead, 2)),
        NOW,
        NOW + latest_wall,
        [NOW + other for other in others],
    )
    assert found == (None if expected is None else Fold(2, *(NOW + at for at in expected)))


def test_what_has_run_since_the_clock_was_set_back_does_not_come_again() -> None:
    """It has the largest token, although others are on record far ahead."""
    early, since = run_of(NOW + 40 * MINUTE, 5), run_of(NOW + 30, 9)
    assert next_fold(record_of(early, since), NOW, NOW, []) == Fold(2, since.due, early.due)


def test_what_was_removed_from_the_ledger_comes_again_too() -> None:
    spans = json.dumps([[NOW - HOUR, NOW + HOUR]]).encode()
    assert is_ahead(record_of(**{PRUNED: spans}).fields, NOW, NOW)
    assert next_fold(record_of(**{PRUNED: spans}), NOW, NOW, []) == Fold(2, NOW, NOW + HOUR)


def test_a_fold_that_is_under_way_is_no_reason_for_another() -> None:
    fold = Fold(2, NOW - 600, NOW + 1800)
    plain = [run_of(NOW + at, 1) for at in range(-600, 1801, 60)]
    again = [run_of(NOW + at, 9, f"{slot_id(NOW + at)}~2") for at in range(-540, 1, 60)]
    found = record_of(*plain, *again, fold=encode_fold(fold))
    assert not is_ahead(found.fields, NOW, NOW + 1800)
    assert next_fold(found, NOW, NOW + 1800, []) is None


def test_a_clock_that_is_set_back_twice_makes_a_fold_of_both_times() -> None:
    fold = Fold(2, NOW - 600, NOW + 1800)
    again = [run_of(NOW + at, 9, f"{slot_id(NOW + at)}~2") for at in range(-540, 1, 60)]
    found = record_of(run_of(NOW + 1800, 1), *again, fold=encode_fold(fold))
    here = NOW - 1200
    # The instants up to the end of the first fold were used before it, and are not over.
    assert next_fold(found, here, NOW, []) == Fold(3, here, NOW + 1800)


@pytest.mark.parametrize("name", ["2026-zzz", "5f1e1b2a", "9", "2026-11-26T10:00:00+01:00"])
def test_slots_that_others_named_are_no_instants(name: str) -> None:
    assert not is_ahead(record_of(run_of(NOW, 1, name)).fields, NOW, NOW)


@pytest.mark.parametrize(
    ("schedule", "rhythm"),
    [
        (Every(2), True),
        (cron_schedule("* * * * *"), True),
        (cron_schedule("*/10 * * * *"), True),
        (cron_schedule("0 * * * *"), True),
        (cron_schedule("@hourly"), True),
        (cron_schedule("5 */2 * * *"), True),
        (cron_schedule("*/2 * * * * *"), True),
        (cron_schedule("30 5 * * *"), False),
        (cron_schedule("0 8-18 * * *"), False),
        (cron_schedule("@daily"), False),
        (cron_schedule("0 30 5 * * *"), False),
    ],
)
def test_a_rhythm_is_what_debians_cron_calls_a_wildcard_job(
    schedule: Schedule, rhythm: bool
) -> None:
    assert schedule.keeps_rhythm == rhythm


# -- names -----------------------------------------------------------------------------------------


def test_a_slot_in_a_fold_is_named_by_the_time_for_which_it_comes() -> None:
    fold, slot = Fold(3, NOW, NOW + HOUR), JobSlot.at(NOW + 20)
    assert fold.named(slot).name == f"{slot.name}~3"
    assert fold.named(replace(slot, name=f"{slot.name}~2")).name == f"{slot.name}~3"
    assert fold.named(fold.named(slot)) == fold.named(slot)
    for other in (
        JobSlot.at(NOW),
        JobSlot.at(NOW + HOUR + 1),
        JobSlot("manual/x", NOW + 20),
        slot.next_attempt(),
    ):
        assert fold.named(other) == other
    retry = fold.named(slot).next_attempt()
    assert retry.name == f"{slot.name}~3#2"
    assert fold_number(retry.name) == 3
    assert JobSlot.from_holder(retry.name, 0.0) == JobSlot(retry.name, slot.due, 2, only_check=True)


@pytest.mark.parametrize("value", [b"", b"[]", b"null", b'{"number": "x"}', b'{"number": 2}'])
def test_a_fold_that_cannot_be_read_is_none(value: bytes) -> None:
    assert fold_of({FOLD: Field(value, 1)}) is NO_FOLD
    assert NO_FOLD.named(JobSlot.at(NOW)) == JobSlot.at(NOW)


@pytest.mark.parametrize("name", ["2026-11-26T10:00:00Z~", "x~y", "x~²", "x~1", "x#2~2"])
def test_what_is_no_number_is_the_first_time(name: str) -> None:
    assert fold_number(name) == 1


# -- the ledger in a fold --------------------------------------------------------------------------

FOLDED = Fold(2, NOW - 600, NOW + 1800)


def test_what_ran_in_a_time_that_was_taken_back_is_older_than_what_ran_since() -> None:
    before, taken_back = run_of(NOW - 700, 1), run_of(NOW + 60, 2)
    again, after = run_of(NOW - 540, 3, f"{slot_id(NOW - 540)}~2"), run_of(NOW + 1860, 4)
    found = record_of(after, again, taken_back, before, fold=encode_fold(FOLDED))
    assert [run.token for run, _ in runs_of(found.fields).values()] == [1, 2, 3, 4]


def test_what_was_removed_or_missed_one_time_may_run_the_next() -> None:
    slot = slot_id(NOW)
    missed = replace(run_of(NOW + 60, 0), state=SlotState.MISSED, count=9, first=NOW - 60)
    fields = record_of(missed, pruned=json.dumps([[NOW - 90, NOW - 60]]).encode()).fields
    assert is_finished(fields, slot, NOW)
    assert not is_finished(fields, f"{slot}~2", NOW)
    again = replace(missed, slot=f"{missed.slot}~2")
    assert is_finished(record_of(again).fields, f"{slot}~2", NOW)
    assert not is_finished(record_of(again).fields, slot, NOW)
    removed = record_of(**{"pruned~2": json.dumps([[NOW, NOW]]).encode()}).fields
    assert is_finished(removed, f"{slot}~2", NOW)
    assert not is_finished(removed, slot, NOW)


def test_a_run_under_an_outdated_name_does_not_begin() -> None:
    """Its instance has not heard of the fold: another one may run the instant as ...~2."""
    link = link_for("memory:outdated names")
    ledger = Ledger(link.port, Key("n", "job"))
    assert drive(ledger.write_fold({}, FOLDED))
    run = replace(run_of(NOW, 0), state=SlotState.RUNNING)
    assert not drive(ledger.begin(run))
    assert drive(ledger.begin(replace(run, slot=f"{run.slot}~2")))


def test_of_two_that_write_a_fold_one_does() -> None:
    link = link_for("memory:two folds")
    ledger = Ledger(link.port, Key("n", "job"))
    assert drive(ledger.write_fold({}, FOLDED))
    assert not drive(ledger.write_fold({}, FOLDED._replace(since=NOW)))
    seen = drive(ledger.read()).fields
    assert fold_of(seen) == FOLDED
    assert drive(ledger.write_fold(seen, FOLDED._replace(number=3)))


def test_a_prune_in_a_fold_keeps_what_ran_last() -> None:
    link = link_for("memory:pruned in a fold")
    ledger, key = Ledger(link.port, Key("n", "job")), Key("n", "job")
    early = [run_of(NOW + at, 1) for at in range(0, 600, 60)]
    again = [run_of(NOW + at, 2, f"{slot_id(NOW + at)}~2") for at in range(-540, 1, 60)]
    for run in (*early, *again):
        link.store.put(key, RUN + run.slot, encode(run), None, inf)
    drive(ledger.write_fold({}, FOLDED))
    drive(ledger.prune(5, inf, NOW))
    fields = drive(ledger.read()).fields
    assert list(runs_of(fields)) == [run.slot for run in again[-5:]]
    for run in early:
        assert is_finished(fields, run.slot, run.due), "it does not run again"


def test_what_comes_again_is_no_gap() -> None:
    spec = JobSpec(name="job", schedule=Every(60), command=("true",), keep_runs=5000)
    since = NOW // 60 * 60 - 3000
    facts = json.dumps({"schedule": "every 1m", "since": since}).encode()
    fold = Fold(2, since + 600, since + 1800)
    runs = [run_of(since + at, 1) for at in range(60, 600, 60)]
    runs += [run_of(since + at, 2) for at in range(1860, 3000, 60)]
    assert [slot.due for slot in gaps(spec, record_of(*runs, job=facts))]
    found = gaps(spec, record_of(*runs, job=facts, fold=encode_fold(fold)))
    assert [slot.due for slot in found] == [since + 600]


# -- what an instance asks for ---------------------------------------------------------------------


def test_what_may_come_again_is_looked_up_and_what_is_folded_is_claimed_at_once() -> None:
    spec = JobSpec(name="job", schedule=Every(60), command=("true",))
    begun = NOW // 60 * 60
    it = Dispatcher([spec], Agenda([spec], begun), lambda: 0.5)
    (order,) = it.orders(60, begun + 60)
    assert isinstance(order, ClaimOrder)
    here = begun - 40 * MINUTE
    assert it.orders(61, here) == []
    (order,) = it.orders(121, here + 60)
    assert isinstance(order, LedgerOrder)
    it.folds["job"] = Fold(2, here, begun + 60)
    (order,) = it.orders(181, here + 120)
    assert isinstance(order, ClaimOrder)
    assert order.slot.name == f"{slot_id(here + 120)}~2"


def test_the_clocks_of_those_that_live_are_at_least_what_they_said() -> None:
    peers = Peers()
    present = [
        SignOfLife("me", 0, NOW + HOUR),
        SignOfLife("a", 0, NOW),
        SignOfLife("dead", 0, NOW + HOUR),
    ]
    assert peers.clocks(present, 100.0, "me") == [NOW, NOW + HOUR]
    present[1] = SignOfLife("a", 0, NOW + 30)
    assert peers.clocks(present, 130.0, "me") == [NOW + 30, NOW + HOUR + 30]
    present[1] = SignOfLife("a", 0, NOW + 60)
    assert peers.clocks(present, 195.0, "me") == [NOW + 60], "it is gone"
    peers.clocks(present[:2], 196.0, "me")
    assert peers._seen.keys() == {"me", "a"}, "the dead are not kept"


def test_the_next_run_is_told_by_the_clock_as_it_is() -> None:
    spec = JobSpec(name="job", schedule=Every(60), command=("true",))
    numbers, hour = JobMetrics(), NOW // HOUR * HOUR

    def following(now: float) -> float:
        found = {it.metric: it.value for it in numbers.samples([spec], now)}
        return found["incumbent_job_next_run_timestamp_seconds"]

    assert following(hour + 10) == hour + 60
    assert following(hour + 20) == hour + 60
    assert following(hour - 40 * MINUTE) == hour - 39 * MINUTE


# -- a fleet in simulated time ---------------------------------------------------------------------


class Fleet:
    """Instances without a fault but for their clocks; what ran when, in real time."""

    def __init__(self, clocks: Sequence[float], every: float = 60.0) -> None:
        self.world = World(Plan(instances=len(clocks), lost_answers=0.0, lasts=(0.1,)))
        self.ran: list[tuple[float, str]] = []
        rhythm = JobSpec(name="job", schedule=Every(every), command=("true",), keep_runs=20)
        nightly = JobSpec(name="fixed", schedule=cron_schedule("20 * 1 1 *"), command=("true",))
        fixed = replace(nightly, schedule=cron_schedule("20 0,1,2,3 * * *"))
        self.instances = [
            SimInstance(self.world, index, [rhythm, fixed]) for index in range(len(clocks))
        ]
        begins = self.world.begins

        def noted(job: str, slot: str, due: float, until: float) -> None:
            if job == "job":
                self.ran.append((self.world.t, slot))
            begins(job, slot, due, until)

        self.world.begins = noted  # type: ignore[method-assign]  # to see when
        for instance, offset in zip(self.instances, clocks, strict=True):
            instance.offset = offset
            instance.start()

    def go_on(self, seconds: float) -> None:
        self.world.run_until(self.world.t + seconds)

    def set(self, index: int, offset: float) -> None:
        instance = self.instances[index]
        instance._drawn_offset = lambda: offset  # type: ignore[method-assign]  # as a test wants it
        instance.set_clock()

    def restart(self, index: int) -> None:
        self.instances[index].stop()
        self.instances[index].start()

    def longest_pause(self, since: float) -> float:
        times = [since, *(at for at, _ in self.ran if at >= since), self.world.t]
        return max(later - sooner for sooner, later in pairwise(times))

    def end(self) -> None:
        """No slot ran twice, none beside another, each is on record."""
        for claim in self.world.held.values():
            claim.machine.note_forked()
        assert self.world.faults == []
        ran = Counter(name for _, name in self.ran)
        assert max(ran.values()) == 1, ran.most_common(3)

    def fixed(self) -> list[str]:
        return sorted(slot for (job, slot), _ in self.world.executed.items() if job == "fixed")


@pytest.mark.left(tiers.MEET, "1-120.0", "3-2400.0", "1-10440.0", "1-18000.0")
@pytest.mark.parametrize("back", [2 * MINUTE, 40 * MINUTE, 2.9 * HOUR, 5 * HOUR])
@pytest.mark.parametrize("size", [1, 3])
def test_after_all_clocks_were_set_back_a_rhythm_goes_on(size: int, back: float) -> None:
    fleet = Fleet([back] * size)
    fleet.go_on(HOUR)
    since = fleet.world.t
    for index in range(size):
        fleet.set(index, 0.0)
    fleet.go_on(back + HOUR)
    # A ttl at most until the others are seen to be back, too.
    assert fleet.longest_pause(since) <= 60 + 60
    again = [name for _, name in fleet.ran if "~2" in name]
    assert len(again) >= min(back, HOUR) / 60 - 3
    assert "~" not in fleet.ran[-1][1], "once the time is reached, names are plain again"
    fleet.end()


@pytest.mark.parametrize("size", [2, 4])
def test_an_instance_whose_clock_was_ahead_leaves_the_others_their_rhythm(size: int) -> None:
    """It has used the slots that the others have yet to reach."""
    fleet = Fleet([40 * MINUTE, *[0.0] * (size - 1)])
    fleet.go_on(20 * MINUTE)
    fleet.set(0, 0.0)
    since = fleet.world.t
    fleet.go_on(2 * HOUR)
    assert fleet.longest_pause(since) <= 60 + 60
    fleet.end()


def test_an_instance_whose_clock_alone_is_behind_repeats_nothing() -> None:
    fleet = Fleet([0.0, 0.0, 0.0])
    fleet.go_on(HOUR)
    fleet.set(1, -40 * MINUTE)
    since, before = fleet.world.t, len(fleet.ran)
    fleet.go_on(30 * MINUTE)
    assert not any("~" in name for _, name in fleet.ran)
    assert len(fleet.ran) - before == 30
    assert fleet.longest_pause(since) <= 61
    fleet.end()


def test_a_step_forward_and_back_leaves_a_rhythm_its_rhythm() -> None:
    fleet = Fleet([0.0])
    fleet.go_on(HOUR)
    for offset in (HOUR, 0.0, 40 * MINUTE, -HOUR, 0.0):
        since = fleet.world.t
        fleet.set(0, offset)
        fleet.go_on(10 * MINUTE)
        assert fleet.longest_pause(since) <= 121, offset
    fleet.go_on(2 * HOUR)
    fleet.end()


def test_a_restart_after_the_clock_was_set_back_changes_nothing() -> None:
    fleet = Fleet([40 * MINUTE])
    fleet.go_on(20 * MINUTE)
    fleet.instances[0].stop()
    fleet.instances[0].offset = 0.0
    since = fleet.world.t
    fleet.instances[0].start()
    fleet.go_on(HOUR)
    assert fleet.longest_pause(since) <= 61
    fleet.end()


def test_instances_that_are_set_back_one_after_the_other_go_on_together() -> None:
    fleet = Fleet([40 * MINUTE] * 3)
    fleet.go_on(HOUR)
    since = fleet.world.t
    for index in range(3):
        fleet.set(index, 0.0)
        fleet.go_on(5 * MINUTE)
    fleet.go_on(HOUR)
    assert fleet.longest_pause(since) <= 121
    fleet.end()


def test_fixed_times_are_not_repeated() -> None:
    fleet = Fleet([HOUR])
    fleet.go_on(30 * MINUTE)
    assert len(fleet.fixed()) == 1
    fleet.set(0, 0.0)
    fleet.go_on(3 * HOUR)
    assert fleet.fixed() == [slot_id(EPOCH + hour * HOUR + 20 * MINUTE) for hour in (1, 2, 3)]
    fleet.end()


# -- real processes --------------------------------------------------------------------------------


@pytest.fixture
def wall() -> Iterator[Wall]:
    made = Wall()
    yield made
    made.close()


JOBS = """
[[job]]
name = "beat"
every = "2s"
command = "echo beat@$INCUMBENT_LEASE_SLOT >> $FOLDER/ran"
[[job]]
name = "stars"
schedule = "*/2 * * * * *"
command = "echo stars@$INCUMBENT_LEASE_SLOT >> $FOLDER/ran"
"""


# Ahead, and back; behind, and back again.
ONCE = (0, 40, 0, -2400, 0)
AGAIN = (0, 40, 0, -2400, 40, -7200, 0)


@real_processes
@needs(shutil.which("cc") is not None, "a preloaded library")
@pytest.mark.left(tiers.LONG, "3-once")
@pytest.mark.parametrize(
    ("size", "shifts"),
    [
        pytest.param(3, ONCE, id="3-once"),
        pytest.param(1, AGAIN, id="1-again"),
        pytest.param(3, AGAIN, id="3-again"),
    ],
)
def test_jobs_go_on_while_the_clock_of_their_host_is_set_back_and_forth(
    tmp_path: Path, wall: Wall, size: int, shifts: Sequence[float]
) -> None:
    fleet = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, JOBS, env=wall.environment)

    def ran(job: str) -> int:
        return sum(name.startswith(f"{job}@") for name in fleet.ran())

    try:
        for _ in range(size):
            fleet.start()
        for seconds in shifts:
            wall.set(seconds)
            for job, count in {job: ran(job) for job in ("beat", "stars")}.items():
                eventually(lambda: ran(job) >= count + 2, within=60)  # noqa: B023 - asked at once
    finally:
        fleet.stop()
    assert max(fleet.ran().values()) == 1, "no slot twice"
    assert any("~" in name for name in fleet.ran())


@real_processes
@needs(shutil.which("cc") is not None, "a preloaded library")
def test_jobs_of_a_fleet_go_on_when_the_clock_of_one_is_set_back(
    tmp_path: Path, wall: Wall
) -> None:
    fleet = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, JOBS)
    other = Wall()
    try:
        for clock in (wall, other, other):
            fleet.env = clock.environment
            fleet.start()
        for seconds in (60, 0, -2400, 2400, 0):
            wall.set(seconds)
            count = sum(fleet.ran().values())
            eventually(lambda: sum(fleet.ran().values()) >= count + 4, within=60)  # noqa: B023
    finally:
        fleet.stop()
        other.close()
    assert max(fleet.ran().values()) == 1, "no slot twice"


@real_processes
@needs(shutil.which("cc") is not None, "a preloaded library")
def test_a_job_at_a_fixed_time_is_not_repeated(tmp_path: Path, wall: Wall) -> None:
    begins = clock.wall() // 60 * 60 + 60
    minute = datetime.fromtimestamp(begins, UTC).strftime("%M")
    jobs = f"""
[[job]]
name = "fixed"
schedule = "0 {minute} 0-23 * * *"
command = "echo fixed@$INCUMBENT_LEASE_SLOT >> $FOLDER/ran"
"""
    fleet = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, jobs, env=wall.environment)
    try:
        # Its time comes after the start, and again.
        wall.set(begins - 15 - clock.wall())
        fleet.start()
        eventually(fleet.ran, within=60)
        wall.set(begins - 5 - clock.wall())
        eventually(lambda: len(fleet.events("clock")) == 1)
        time.sleep(10)
    finally:
        fleet.stop()
    assert list(fleet.ran().values()) == [1]
