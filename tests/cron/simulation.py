"""A fleet of cron instances in simulated time: clocks apart, crashes, outages, a year in minutes.

It runs the code of the real instances (`Executor`, `Dispatcher`, `judge`, `Ledger`) against the
executable specification of a store. What is made up: processes, their runs, time and chance.

    python -m tests.cron.simulation --instances 50 --jobs 1000 --days 365 --seed 1
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import inf

from incumbent.cron.executor import Executor
from incumbent.cron.fleet import PRESENCE, PRESENT_EVERY, UP, encode
from incumbent.cron.folds import fold_number
from incumbent.cron.judging import CLOCK_SPREAD, MISSED_AFTER
from incumbent.cron.ledger import RUN, SLOT_KEEP, SlotRecord, SlotState, decode
from incumbent.cron.schedule import Every, Schedule, slot_id
from incumbent.cron.spec import CatchUp, JobSlot, JobSpec
from incumbent.errors import NotAcquired, OutcomeUnknown, StoreUnavailable
from incumbent.lease import LeaseState
from incumbent.model import (
    PLAIN,
    Ask,
    Field,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Refused,
    Renewal,
    Renewed,
    RenewOutcome,
    Stored,
    TakeOutcome,
)
from incumbent.model import Slot as StoreSlot
from incumbent.policy import make_policy
from incumbent.protocol.acquire import acquire
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.port import Debt
from incumbent.protocol.release import release, settle
from incumbent.stores.base import NO_LIMITS
from incumbent.stores.memory import MemoryTable
from incumbent.stores.plan import run_blocking as drive
from tests.cron.quick import QuickTable, quiet, remembering

EPOCH = 1_767_225_600.0
NAMESPACE = "sim"
POLICY = make_policy(15)
SETTLE = 3 * MISSED_AFTER
"""Seconds of peace at the end, after which everything has to be on record."""


@dataclass(frozen=True)
class Plan:
    """How much, and how bad. Rates are mean times between, in seconds."""

    instances: int = 5
    jobs: int = 10
    days: float = 3.0
    seed: int = 1
    crash_every: float = 6 * 3600.0
    outage_every: float = 12 * 3600.0
    dark_every: float = 2 * 86_400.0
    """The whole fleet is down."""
    start: float = EPOCH
    schedules: tuple[Schedule, ...] = ()
    """Instead of intervals."""
    intervals: tuple[float, ...] = (60.0, 900.0, 3600.0, 21_600.0, 86_400.0)
    spread: float = 0.0
    """Seconds by which the intervals of any two jobs differ, so that they are not due together."""
    jump_every: float = 4 * 3600.0
    """A clock is set, forward or back, within what clocks may be apart, and off by an error."""
    errors: tuple[float, ...] = (0.0,)
    """Seconds by which a clock may be wrong beyond that: one is drawn whenever it is set."""
    keeps: tuple[int, ...] = (20, 100)
    """How many runs the ledger of a job keeps, by turns."""
    keep_for: float = inf
    lost_answers: float = 0.002
    lasts: tuple[float, ...] = (0.1, 1.0, 5.0, 20.0, 90.0)
    """Seconds: most runs are quick, some last for many renewals."""
    frail: float = 0.0
    """Share of runs whose process is killed between its claim and its first work."""
    stop_at_fault: bool = False
    tell_every: float = inf
    """Seconds of simulated time between lines that tell how far it has come."""


@dataclass
class World:
    """Time, events, and the store with all that was ever put on record there."""

    plan: Plan
    t: float = field(init=False)
    chance: random.Random = field(init=False)
    table: MemoryTable = field(default_factory=QuickTable)
    heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    events: int = 0
    outage_until: float = -inf
    recorded: dict[tuple[str, str], SlotState] = field(default_factory=dict)
    covered: list[tuple[str, float, float, int]] = field(default_factory=list)
    signs: dict[str, Callable[[], float]] = field(default_factory=dict)
    """The clock of each instance at its last sign of life."""
    executed: Counter[tuple[str, str]] = field(default_factory=Counter)
    executing: dict[str, tuple[str, float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    claims: int = 0
    requests: int = 0
    held: dict[int, Claim] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.t = self.plan.start
        self.chance = random.Random(self.plan.seed)

    def at(self, when: float, act: Callable[[], None]) -> None:
        self.events += 1
        heappush(self.heap, (max(when, self.t), self.events, act))

    def run_until(self, end: float) -> None:
        hasty = self.plan.stop_at_fault
        while self.heap and self.heap[0][0] <= end and not (hasty and self.faults):
            self.t, _, act = heappop(self.heap)
            act()
        self.t = end

    # -- the judge, who sees everything ---------------------------------------------------------

    def was_put(self, key: Key, name: str, value: bytes | None) -> None:
        if not name.startswith(RUN) or value is None:
            return
        run = decode(name.removeprefix(RUN), value)
        assert run is not None
        before = self.recorded.get((key.name, run.slot))
        # The same end again is a request that was repeated, for its answer was lost.
        if before is not None and before.ended and before is not run.state:
            self.faults.append(f"{key.name} {run.slot}: {before} became {run.state}")
        self.recorded[key.name, run.slot] = run.state
        if run.count > 1:
            self.covered.append((key.name, run.since, run.due, fold_number(run.slot)))

    def begins(self, job: str, slot: str, due: float, until: float) -> None:
        self.executed[job, slot] += 1
        if any(
            name == job and first <= due <= last and number == fold_number(slot)
            for name, first, last, number in self.covered
        ):
            self.faults.append(f"{job} {slot} ran, and is on record as missed")
        if self.executed[job, slot] > 1:
            self.faults.append(f"{job} {slot} ran twice")
        other = self.executing.get(job)
        if other is not None and other[1] > self.t:
            self.faults.append(f"{job} {slot} ran beside {other[0]}")
        self.executing[job] = (slot, until)


class SimPort:
    """One process's line to the store: it may be cut, and answers may get lost."""

    limits = NO_LIMITS

    def __init__(self, world: World, cut: Callable[[], bool]) -> None:
        self._world = world
        self._cut = cut
        self.debts: list[Debt] = []

    def now(self) -> float:
        return self._world.t

    def draw_claim(self) -> str:
        return f"{self._world.chance.getrandbits(128):032x}"

    def jitter(self) -> float:
        return self._world.chance.random()

    def owe(self, debt: Debt) -> None:
        self.debts.append(debt)

    def log_outage(self, key: Key, error: object, *_: float | None) -> None:
        pass

    async def sleep_until(self, instant: float) -> None:
        pass

    def _ask(self) -> bool:
        """True if the request is applied and its answer lost."""
        world = self._world
        world.requests += 1
        if self._cut() or world.t < world.outage_until:
            raise StoreUnavailable("cut off")
        if world.chance.random() >= world.plan.lost_answers:
            return False
        if world.chance.random() < 0.5:
            raise OutcomeUnknown("the request was lost")
        return True

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        lost, world = self._ask(), self._world
        world.claims += 1
        outcome = world.table.take(key, claim, ask, world.t, world.t)
        if lost:
            raise OutcomeUnknown("the answer was lost")
        return outcome

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        self._ask()
        return [self._world.table.renew(it, self._world.t) for it in renewals]

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        lost, t = self._ask(), self._world.t
        outcome = self._world.table.give(key, claim, token, t, t, parting)
        if lost:
            raise OutcomeUnknown("the answer was lost")
        return outcome

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        lost = self._ask()
        outcome = self._world.table.put(key, field, value, guard, self._world.t)
        if isinstance(outcome, Stored):
            self._world.was_put(key, field, value)
        if lost:
            raise OutcomeUnknown("the answer was lost")
        return outcome

    async def read(self, key: Key, until: float) -> Record:
        self._ask()
        record = self._world.table.read(key, self._world.t)
        if key.name != PRESENCE:
            return record
        # Written when somebody asks: signs of life would be most of what a simulation does.
        signs = {
            f"{UP}{name}": Field(encode(since=0.0, seen=sign()), 1)
            for name, sign in self._world.signs.items()
        }
        return replace(record, fields=signs)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        raise AssertionError("nobody waits here")


@dataclass
class SimRun:
    """A run in the making: renewed every few seconds for as long as its process lives."""

    instance: SimInstance
    spec: JobSpec
    held: Claim
    run: SlotRecord
    ends: float

    def turn(self) -> None:
        world, life = self.instance.world, self.instance.life
        if life != self.born or self.over:
            self._forget()
            return
        machine = self.held.machine
        if world.t >= self.ends:
            self._end()
        elif not machine.valid(world.t) or world.t >= machine.stop_at:
            # It is stopped inside its lease, and cannot say so.
            self._forget()
        else:
            self._renew()
            world.at(min(self.ends, world.t + POLICY.ttl / 5), self.turn)

    def __post_init__(self) -> None:
        self.born = self.instance.life
        self.over = False
        self.instance.world.held[id(self)] = self.held

    def _forget(self) -> None:
        """As a process that is gone: it neither believes nor gives back."""
        self.over = True
        self.held.machine.note_forked()
        self.instance.world.held.pop(id(self), None)

    def _renew(self) -> None:
        machine, port = self.held.machine, self.instance.port
        machine.note_renewal_sent(self.instance.world.t)
        try:
            (outcome,) = drive(port.renew([self.held.renewal()], inf))
        except (StoreUnavailable, OutcomeUnknown):
            machine.note_unrenewed()
            return
        if isinstance(outcome, Renewed):
            machine.note_renewed(self.instance.world.t)
        else:
            machine.note_gone("taken")

    def _end(self) -> None:
        world, instance = self.instance.world, self.instance
        ledger = instance.executor.ledger(self.spec.name)
        state = SlotState.FAILED if int(self.ends * 1000) % 10 == 0 else SlotState.OK
        try:
            drive(ledger.record_state(self.run, state, self.held.id, ended=instance.wall()))
        except OutcomeUnknown:
            self._again()
            return
        except StoreUnavailable:
            self._again()
            return
        self.over = True
        if self.held.machine.state is LeaseState.HELD:
            drive(release(instance.port, self.held))
        self._forget()
        if world.chance.random() < 0.3:
            instance.try_(
                lambda: drive(
                    ledger.prune(self.spec.keep_runs, self.spec.keep_for, instance.wall())
                )
            )

    def _again(self) -> None:
        world = self.instance.world
        if self.held.machine.valid(world.t):
            world.at(world.t + 1.0, self.turn)
        else:
            self._forget()


class SimInstance:
    """One instance: up or down, with a clock of its own. Also its Launcher."""

    def __init__(self, world: World, index: int, specs: Sequence[JobSpec]) -> None:
        self.world = world
        self.index = index
        self.specs = specs
        self.offset = self._drawn_offset()
        self.life = self.turns = self.crashes = 0
        self._told = self._last_sign = -inf
        self.up = False
        self.cut_until = -inf
        self.port = SimPort(world, lambda: world.t < self.cut_until)
        self.executor = self._executor()

    def wall(self) -> float:
        return self.world.t + self.offset

    def _drawn_offset(self) -> float:
        chance = self.world.chance
        return chance.uniform(-CLOCK_SPREAD / 2, CLOCK_SPREAD / 2) + chance.choice(
            self.world.plan.errors
        )

    def _executor(self) -> Executor:
        name = f"i{self.index}"
        return Executor(self.specs, NAMESPACE, self.port, self, quiet, self.wall, name)

    def start(self) -> None:
        self.life += 1
        self.up = True
        self.port = SimPort(self.world, lambda: self.world.t < self.cut_until)
        self.executor = self._executor()
        self._begin(self.life)

    def _begin(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        world = self.world
        if world.t < max(world.outage_until, self.cut_until):
            world.at(world.t + 2.0, lambda: self._begin(life))
            return
        records = world.table.scan(NAMESPACE, "", world.t)
        self.executor.begin(records)
        known = {it.key.name: it.fields for it in records}
        for spec in self.specs:
            self.try_(partial(self.executor.register, spec, known.get(spec.name, {})))
        self._turn(life)
        self._told = self.world.t
        self.world.signs[f"i{self.index}"] = self._sign

    def _sign(self) -> float:
        """The clock at the last sign of life, as Presence writes one."""
        if not self.up:
            return self._last_sign
        world = self.world
        if world.t >= max(world.outage_until, self.cut_until):
            self._told += (world.t - self._told) // PRESENT_EVERY * PRESENT_EVERY
            self._last_sign = self._told + self.offset
        return self._last_sign

    def stop(self) -> None:
        if self.up and self.executor.ledger_read:
            self._sign()
        self.crashes += self.up
        self.life += 1
        self.up = False

    def set_clock(self) -> None:
        self.offset = self._drawn_offset()
        self._told = self.world.t
        if self.up and self.executor.ledger_read:
            # An instance looks at its clock every few seconds.
            self._turn(self.life)

    def _turn(self, life: int, turn: int = -1) -> None:
        if life != self.life or not self.up or turn not in (-1, self.turns):
            return
        self.turns += 1
        self.executor.carry_out_orders()
        debts, self.port.debts = self.port.debts, []
        for debt in debts:
            if self.world.t < debt.until and not self.try_(partial(self._settle, debt)):
                self.port.debts.append(debt)
        wait = min(self.executor.next_in(), 1.0 if self.port.debts else inf)
        turn = self.turns
        self.world.at(self.world.t + max(wait, 0.001), lambda: self._turn(life, turn))

    def _settle(self, debt: Debt) -> None:
        drive(settle(self.port, debt, 1.0))

    def start_if_down(self) -> None:
        if not self.up:
            self.start()

    def try_(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except (StoreUnavailable, OutcomeUnknown):
            return False
        return True

    # -- Launcher ------------------------------------------------------------------------------

    def claim(self, spec: JobSpec, slot: JobSlot) -> Claim | Refused:
        name = slot.name
        store_slot = StoreSlot(name, SLOT_KEEP)
        ask = Ask(POLICY.ttl, f"i{self.index}", meta=name.encode(), slot=store_slot)
        said: list[object] = []
        wanted = LeaseRequest(Key(NAMESPACE, spec.name), ask, ask, POLICY)
        try:
            return drive(acquire(self.port, wanted, 0, said.append))
        except NotAcquired:
            return next(it for it in reversed(said) if isinstance(it, Refused))

    def launch(self, spec: JobSpec, slot: JobSlot, grant: Claim) -> None:
        world = self.world
        if world.chance.random() < world.plan.frail / 2:
            self._dies(spec, slot, grant)
            return
        token, wall = grant.machine.token, self.wall()
        run = SlotRecord(
            slot.name,
            SlotState.RUNNING,
            slot.due,
            f"i{self.index}",
            token,
            wall,
            attempt=slot.attempt,
        )
        try:
            begun = drive(self.executor.ledger(spec.name).begin(run))
        except (StoreUnavailable, OutcomeUnknown):
            drive(release(self.port, grant, undo_slot=True))
            self.executor.dispatcher.claim_at(spec.name, slot, world.t + 0.5)
            return
        if not begun or not grant.machine.valid(world.t):
            drive(release(self.port, grant, undo_slot=True))
            if not begun:
                self.executor.dispatcher.check_at(spec.name, slot, world.t)
            return
        if world.chance.random() < world.plan.frail / 2:
            self._dies(spec, slot, grant)
            return
        took = world.chance.choice(world.plan.lasts)
        ends = world.t + took
        sim = SimRun(self, spec, grant, run, ends)
        world.begins(spec.name, slot.name, slot.due, world.t)
        world.at(world.t + min(took, POLICY.ttl / 5), sim.turn)

    def _dies(self, spec: JobSpec, slot: JobSlot, grant: Claim) -> None:
        """The run's process is killed; its instance sees that, and looks when the lease is over."""
        grant.machine.note_forked()
        self.executor.dispatcher.check_at(spec.name, slot, self.world.t + POLICY.ttl)

    def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
        pass


# -- a campaign ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a simulation showed."""

    faults: tuple[str, ...]
    slots: int
    states: Counter[str]
    claims: int
    requests: int
    crashes: int
    seconds: float


def drawn_plan(seed: int) -> Plan:
    """Of each kind of trouble something or nothing, so that pairs and triples of them come up."""
    chance, hour = random.Random(seed), 3600.0
    errors = (
        (0.0,),
        (0.0, 0.0, -1.0, -1.5, -2.0),
        (0.0, 2.0),
        (0.0, 0.0, -26.0),
        (0.0, 5.0, -5.0),
        (0.0, 0.0, 0.0, 365 * 24.0),
    )
    return Plan(
        instances=chance.choice((2, 3, 5)),
        jobs=chance.choice((3, 6)),
        days=chance.choice((0.15, 0.3)),
        seed=seed,
        crash_every=chance.choice((0.5, 6.0)) * hour,
        outage_every=chance.choice((1.0, 12.0)) * hour,
        dark_every=chance.choice((2.0, 48.0)) * hour,
        intervals=chance.choice(((60.0, 300.0, 900.0), (60.0, 7200.0), (120.0, 600.0, hour))),
        jump_every=chance.choice((0.5, 4.0, inf)) * hour,
        errors=tuple(it * hour for it in chance.choice(errors)),
        keeps=chance.choice(((3, 40), (20, 100))),
        keep_for=chance.choice((inf, 6 * hour)),
        lost_answers=chance.choice((0.0, 0.002, 0.02)),
        frail=chance.choice((0.0, 0.05)),
    )


def make_specs(plan: Plan) -> list[JobSpec]:
    rules = (CatchUp("no"), CatchUp("last"), CatchUp("all", 5, 6 * 3600.0))
    return [
        JobSpec(
            name=f"job{number}",
            schedule=_schedule(plan, number),
            command=("true",),
            catch_up=rules[number % len(rules)],
            overlap="queue" if number % 4 == 3 else "skip",
            retries=number % 2,
            keep_runs=plan.keeps[number % len(plan.keeps)],
            keep_for=plan.keep_for,
        )
        for number in range(plan.jobs)
    ]


def _schedule(plan: Plan, number: int) -> Schedule:
    if plan.schedules:
        return plan.schedules[number % len(plan.schedules)]
    return Every(plan.intervals[number % len(plan.intervals)] + number * plan.spread)


def simulate(plan: Plan) -> Outcome:
    """Run it, and judge what happened."""
    began = time.monotonic()
    world = World(plan)
    specs = make_specs(plan)
    fleet = [SimInstance(world, index, specs) for index in range(plan.instances)]
    end = plan.start + plan.days * 86_400.0
    for instance in fleet:
        world.at(plan.start + world.chance.uniform(0, 30), instance.start)
        _plan_crashes(world, instance, end)
        _plan_jumps(world, instance, end)
    _plan_outages(world, fleet, end)
    _tell_now_and_then(world, began)
    world.run_until(end)
    world.outage_until = -inf
    for instance in fleet:
        instance.cut_until = -inf
        if plan.errors != (0.0,):
            # Somebody has noticed: whatever is not on record by then is not on record ever.
            instance.stop()
            instance.offset = 0.0
        instance.start_if_down()
    world.run_until(end + SETTLE)
    slots = _check_all_on_record(world, specs, end)
    for held in world.held.values():
        held.machine.note_forked()
    states = Counter(str(state) for state in world.recorded.values())
    crashes = sum(instance.crashes for instance in fleet)
    spent = time.monotonic() - began
    faults = tuple(world.faults)
    return Outcome(faults, slots, states, world.claims, world.requests, crashes, spent)


def _tell_now_and_then(world: World, began: float) -> None:
    every = world.plan.tell_every
    if every == inf:
        return

    def tell() -> None:
        day, spent = (world.t - world.plan.start) / 86_400, time.monotonic() - began
        sys.stderr.write(f"day {day:.0f}: {world.claims} claims, {spent:.0f} s\n")
        world.at(world.t + every, tell)

    world.at(world.t + every, tell)


def _plan_crashes(world: World, instance: SimInstance, end: float) -> None:
    when = world.t + world.chance.expovariate(1 / world.plan.crash_every)
    while when < end:
        down = world.chance.choice((1.0, 30.0, 600.0, 7200.0))
        world.at(when, instance.stop)
        world.at(when + down, instance.start_if_down)
        when += down + 1 + world.chance.expovariate(1 / world.plan.crash_every)


def _plan_jumps(world: World, instance: SimInstance, end: float) -> None:
    if world.plan.jump_every == inf:
        return
    when = world.t + world.chance.expovariate(1 / world.plan.jump_every)
    while when < end:
        world.at(when, instance.set_clock)
        when += world.chance.expovariate(1 / world.plan.jump_every)


def _plan_outages(world: World, fleet: Sequence[SimInstance], end: float) -> None:
    chance, plan = world.chance, world.plan
    when = world.t + chance.expovariate(1 / plan.outage_every)
    while when < end:
        lasts = chance.choice((2.0, 20.0, 200.0, 1500.0))
        if chance.random() < 0.5:
            world.at(when, partial(setattr, world, "outage_until", when + lasts))
        else:
            one = chance.choice(fleet)
            world.at(when, partial(setattr, one, "cut_until", when + lasts))
        when += chance.expovariate(1 / plan.outage_every)
    when = world.t + chance.expovariate(1 / plan.dark_every)
    while when < end:
        lasts = chance.choice((60.0, 1200.0, 10_000.0))
        for it in fleet:
            world.at(when, it.stop)
            later = when + lasts + chance.uniform(0, 60)
            world.at(later, it.start_if_down)
        when += lasts + chance.expovariate(1 / plan.dark_every)


def _check_all_on_record(world: World, specs: Sequence[JobSpec], end: float) -> int:
    """Every slot was recorded once, as whatever; none is left as running.

    Where clocks are hours apart there may be slots of which nothing is on record.
    """
    complete = world.plan.errors == (0.0,)
    slots = 0
    for spec in specs:
        ranges = [(first, last) for job, first, last, _ in world.covered if job == spec.name]
        # Before the first instance registered it a job had no slots.
        due = spec.schedule.next_after(world.plan.start + CLOCK_SPREAD)
        while due is not None and due < end - CLOCK_SPREAD:
            slots += 1
            state = world.recorded.get((spec.name, slot_id(due)))
            if (
                complete
                and state is None
                and not any(first <= due <= last for first, last in ranges)
            ):
                world.faults.append(f"{spec.name} {slot_id(due)}: nothing on record")
            elif state is not None and not state.ended:
                world.faults.append(f"{spec.name} {slot_id(due)}: {state} for ever")
            due = spec.schedule.next_after(due)
    return slots


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("instances", 50), ("jobs", 1000), ("days", 365), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    # Most of what there is stays to the end: looking through it for garbage takes a third.
    gc.set_threshold(200_000, 50, 100)
    bad = 0
    for seed in range(given.seed, given.seed + given.rounds):
        # Long intervals: what is rare is what a year is about.
        hours = tuple(it * 3600.0 for it in (24, 48, 168, 168, 168, 720, 2160, 8000))
        plan = Plan(given.instances, given.jobs, given.days, seed, intervals=hours)
        week = 7 * 86_400.0
        plan = replace(plan, crash_every=week, outage_every=week / 2, jump_every=week)
        plan = replace(plan, dark_every=4 * week, spread=61.0)
        with remembering():
            outcome = simulate(replace(plan, tell_every=30 * 86_400.0))
        bad += bool(outcome.faults)
        told = (
            f"{outcome.slots} slots, {outcome.claims} claims, {outcome.crashes} crashes, "
            f"{dict(outcome.states)}"
        )
        faults = "".join(f"  {fault}\n" for fault in outcome.faults[:20])
        sys.stdout.write(f"seed {seed}: {told}, {outcome.seconds:.0f} s\n{faults}")
        sys.stdout.write(f"{len(outcome.faults)} faults\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
