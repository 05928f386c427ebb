"""One instance of a fleet: a loop that wakes when an order is due, asks the store, and sleeps.

    a slot is due ------------+              +--> claims and checks, by `executor` --> runs
    a run began or ended -----+--> a step ---+--> triggers of operators
    the control key changed --+              +--> sign of life, sweep

A second thread only reads the fleet's control key; the loop acts on the records that it passes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from math import ceil, inf
from typing import Any, Final

from incumbent import clock, meters
from incumbent.chance import draw_jitter
from incumbent.cron.events import Emit
from incumbent.cron.executor import Executor, Launcher
from incumbent.cron.fleet import (
    CONTROL,
    PRESENCE,
    PRESENT_EVERY,
    STALE,
    SWEEP,
    TRIGGER,
    Presence,
    is_job_name,
    pause_of,
    presences,
    triggers,
    up_now,
)
from incumbent.cron.news import JobNews
from incumbent.cron.runs import ALREADY_RECORDED, GAVE_BACK, STATE_OF, Runs
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.durations import backoff_delay
from incumbent.errors import NotAcquired, StoreError
from incumbent.locks.leases import release_unless_lost
from incumbent.locks.lock import Lock
from incumbent.meters import Sample
from incumbent.model import Key, Record
from incumbent.runtime.link import Link
from incumbent.serve.situation import Situation
from incumbent.stores.plan import run_blocking
from incumbent.supervise.kernel import DescriptorWaiter
from incumbent.unpatched import start_thread

AHEAD: Final = 15.0
"""Seconds ahead for which workers are prepared."""
# Prepared workers, about 13 MB each; the workers of more runs are forked when due, more slowly.
_MOST: Final = 24
# The factor on the even share of runs: chance spreads them unevenly over the instances.
_MORE: Final = 1.25
# Seconds for which surplus workers are kept, so that none ends in the middle of a burst.
_LINGER: Final = 3.0
# Seconds between two claims due at one instant, so that the instances of a fleet mix.
_SPREAD, _SPREAD_MOST = 0.004, 0.3
# Seconds before a single claim: up to the first by chance, and the second for each run here.
_FIRST_SPREAD, _A_RUN = 0.02, 0.005
# The count only says how many workers stand by and how fast this instance claims: it may be old.
_COUNT_EVERY: Final = 60.0
_WITHIN: Final = 1.0


class Capacity:
    """How many workers one instance prepares, and how fast it claims."""

    def __init__(self, link: Link, namespace: str) -> None:
        self._store = link.store
        self._key = Key(namespace, PRESENCE)
        self.instances = 1
        """The number of instances that are known to be up."""
        self._count_at = -inf
        self._kept = 0
        self._lower_at = -inf

    def workers(self, jobs: int, waiting: int, room: float) -> tuple[int, int]:
        """How many workers to have ready for slots due soon, and how many idle ones to keep.

        `jobs`: the jobs with a slot within AHEAD, for any instance. `waiting`: the slots for which
        there was no room here. `room`: how many more runs may begin here.
        """
        # None for a single job: all instances but one would prepare in vain.
        share = ceil(_MORE * jobs / self._up()) if jobs > 1 else 0
        wanted, now = int(min(_MOST, max(share, waiting), room)), clock.now()
        # More at once, fewer only after a while: a burst's slots come one after the other.
        if wanted >= self._kept or now >= self._lower_at:
            self._kept, self._lower_at = wanted, now + _LINGER
        return wanted, self._kept

    def pause(self, claims: int, refused: int, load: int, chance: float) -> float:
        """Seconds before one of `claims`; `refused`: refusals in a row; `chance`: from [0, 1)."""
        if claims == 1:
            return chance * _FIRST_SPREAD + min(load, 10) * _A_RUN
        # An instance that runs more than an even share leaves the next slots to others. An instance
        # that is refused again and again comes too late for most slots.
        slower = 0.5 + min(load * self.instances / claims, 4.0) + min(refused, 8) / 4
        return chance * 2 * slower * min(_SPREAD, _SPREAD_MOST / claims)

    def _up(self) -> int:
        now = clock.now()
        if now >= self._count_at:
            # Before it is asked: a store in an outage is not asked at each step.
            self._count_at = now + _COUNT_EVERY
            # Without this count workers are wasted, and nothing else happens.
            with suppress(StoreError), meters.asking():
                up = up_now(presences(self._store.read(self._key, now + _WITHIN)), clock.wall())
                self.instances = max(1, len(up))
        return self.instances


# -- the instance ----------------------------------------------------------------------------------

# Seconds after which the control key is read even without a notification.
_CONTROL_READ_EVERY: Final = 5.0
# Seconds within which the loop notices that the wall clock was set.
_LONGEST_SLEEP: Final = 5.0
# While it drains, the loop that calls `step` looks this often whether its time is over.
_DRAINING_SLEEP: Final = 0.5
# Seconds that a step may take with a slow store before the health page reports it.
_STEP_WITHIN: Final = 60.0
# Seconds by which the wall clock moves between two steps only if it was set.
_CLOCK_SET: Final = 1.0
_SCAN_WITHIN: Final = 30.0
# A request or two for each: more in one step would delay the slots that are due meanwhile.
_REGISTER_AT_ONCE: Final = 20
# The least seconds between signs of life, however short the ttl is.
_SIGN_LEAST: Final = 5.0
# A third of LOOK_BACK_FOR, so that a sweep or two may fail.
_SWEEP_EVERY: Final = 600.0
# Starts at a time: a start costs more than a run, and each finished start makes room for one.
_STARTS_MOST: Final = 32
_FULL_EVERY: Final = 60.0
_COUNTED: Final = 1000


class Instance:
    """One instance: see the module. `runs`: the runs of `launcher`, at most `max_runs` at a time.

    `ready`: whether the ledger was read. `stopped`: whether no slot is claimed any more.
    """

    def __init__(
        self,
        specs: Iterable[JobSpec],
        link: Link,
        namespace: str,
        holder: str,
        launcher: Launcher[Any],
        emit: Emit,
        runs: Runs[Any] | None = None,
        max_runs: float = inf,
        situation: Situation | None = None,
        news: JobNews | None = None,
    ) -> None:
        self.specs = tuple(specs)
        self._situation = situation or Situation(namespace, holder)
        self.ready = False
        self._link = link
        self._namespace = namespace
        self._emit = emit
        self._runs = Runs() if runs is None else runs
        self._max_runs = max_runs
        self._capacity = Capacity(link, namespace)
        self._waiting = 0
        self._full_logged = -inf
        self._news = news or JobNews(link, namespace, holder, emit)
        self._executor = Executor(
            self.specs, namespace, link.port, launcher, emit, clock.wall, holder, self._news.noted
        )
        self._waiter = DescriptorWaiter()
        self._wake_fd, self._write_fd = os.pipe()
        for fd in (self._wake_fd, self._write_fd):
            os.set_blocking(fd, False)
        self._control_records: list[tuple[float, Record]] = []
        self._control_read_at = -inf
        """The wall-clock instant at which the listening thread last read the control key."""
        self._taken: set[str] = set()
        self._trigger_since: dict[str, tuple[float, float]] = {}
        self._next_try, self._tries = -inf, 0
        self._unregistered: dict[str, tuple[JobSpec, Any]] = {}
        """By name: the jobs to register, with the fields of their keys, or None to read them."""
        self._removed: dict[str, JobSpec] = {}
        """By name: jobs that are in the file no more, and have runs that go on."""
        self._pause: bytes | None = None
        self._present_at = self._housekeeping_at = -inf
        self._sweep_at = clock.now() + _SWEEP_EVERY * (0.5 + draw_jitter())
        every = min(PRESENT_EVERY, max(_SIGN_LEAST, self._runs.ttl))
        self._presence = Presence(link, namespace, holder, every)
        self.stopped = False
        self._offset = clock.wall() - clock.now()
        meters.provide(self)

    # -- the loop ------------------------------------------------------------------------------

    def step(self, listeners: Mapping[int, Callable[[], None]] | None = None) -> None:
        """Wait until an order is due or an event comes, and act on it.

        `listeners` are called when their descriptor is readable; they must not block. Before the
        store's first reply it raises a StoreError that trying again cannot help.
        """
        listeners = listeners or {}
        self._situation.pulse(clock.now() + _STEP_WITHIN)
        if self.ready:
            self._situation.note_serving(f"{len(self.specs)} jobs, {self._load} running")
        ready = self._waiter.wait((self._wake_fd, *listeners), clock.now() + self._next_in())
        # Emptied first: what a thread adds from here on wakes the next step.
        with suppress(BlockingIOError):
            os.read(self._wake_fd, 4096)
        for fd in ready & listeners.keys():
            listeners[fd]()
        if not self.stopped:
            self._check_clock()
            if self.ready:
                self._take_triggers()
                self._waiting = self._executor.carry_out_orders(
                    self._pace, self._room, self._pause_if_new
                )
                self._report_full()
                self._housekeeping()
            elif clock.now() >= self._next_try:
                self._try_to_begin()
        # Also while it drains: the ends of these runs have to be dealt with.
        while self._runs.ended:
            # After the look at `ended`: a run that ended meanwhile is in `to_announce` by now.
            self._announce_starts()
            self._after_run(*self._runs.ended.pop())
        self._announce_starts()

    def samples(self) -> Iterator[Sample]:
        """Yield the numbers of the instance's jobs."""
        yield Sample("incumbent_jobs", (), len(self.specs))
        yield Sample("incumbent_job_runs_running", (), self._load)
        yield Sample("incumbent_job_slots_waiting", (), self._waiting)
        yield from self._executor.metrics.samples(self.specs, clock.wall())

    def _next_in(self) -> float:
        now = clock.now()
        if self.stopped:
            return _DRAINING_SLEEP
        if not self.ready:
            return max(0.0, self._next_try - now)
        sleep = min(_LONGEST_SLEEP, self._executor.next_in())
        return min(sleep, max(0.0, self._housekeeping_at - now)) if self._unregistered else sleep

    def _check_clock(self) -> None:
        """Report a wall clock that was set; the agenda finds the slots that are due now."""
        offset = clock.wall() - clock.now()
        moved, self._offset = offset - self._offset, offset
        if abs(moved) > _CLOCK_SET:
            self._emit("clock", moved=round(moved, 3), why="the wall clock of this host was set")
            # Others know our clock from our sign of life: write it anew.
            self._present_at = self._housekeeping_at = -inf

    def wake(self) -> None:
        """Wake the loop, from any thread."""
        with suppress(OSError):
            os.write(self._write_fd, b"\0")

    def stop(self) -> None:
        """Claim no slot from now on."""
        self.stopped = True
        self._situation.note_stopping()
        self.wake()

    def close(self) -> None:
        """Remove the sign of life, if the store replies soon, and close the descriptors."""
        self.stopped = True
        meters.withdraw(self)
        if self.ready:
            with suppress(StoreError):
                self._presence.remove_sign()
        self._waiter.close()
        fds = (self._wake_fd, self._write_fd)
        # Forget them first: the listening thread may still call `wake`, and the kernel reuses their
        # numbers.
        self._write_fd = self._wake_fd = -1
        for fd in fds:
            os.close(fd)

    # -- capacity ------------------------------------------------------------------------------

    @property
    def _load(self) -> int:
        return len(self._runs.running)

    def _pace(self, claims: int, refused: int) -> None:
        time.sleep(self._capacity.pause(claims, refused, self._load, draw_jitter()))

    def _room(self) -> float:
        # A stop of another thread also ends what is left of this step.
        room = min(self._max_runs - self._load, _STARTS_MOST - len(self._runs.starting))
        return 0 if self.stopped else room

    def _report_full(self) -> None:
        full = self._waiting and self._load >= self._max_runs
        if full and clock.now() - self._full_logged >= _FULL_EVERY:
            self._full_logged = clock.now()
            why = "slots wait for room, or are left to other instances"
            self._emit("full", running=self._load, waiting=self._waiting, why=why)

    def stand_by(self) -> tuple[int, int]:
        """How many workers to have ready for slots due soon, and how many idle ones to keep."""
        if self.stopped or not self.ready:
            return 0, 0
        agenda = self._executor.dispatcher.agenda
        jobs = agenda.count_until(clock.wall() + AHEAD, _COUNTED)
        return self._capacity.workers(jobs, self._waiting, max(0, self._max_runs - self._load))

    # -- the start -----------------------------------------------------------------------------

    def _try_to_begin(self) -> None:
        try:
            with meters.asking():
                records = self._link.store.scan(self._namespace, "", clock.now() + _SCAN_WITHIN)
        except StoreError as error:
            if error.permanent:
                raise
            self._situation.note_unanswered()
            self._tries += 1
            self._next_try = clock.now() + backoff_delay(self._tries, draw_jitter(), base=0.2)
            if self._tries == 1:
                self._emit("store", ok=False, why=str(error))
            return
        if self._tries:
            self._emit("store", ok=True)
        fields = {record.key.name: record.fields for record in records}
        for record in records:
            if record.key.name == CONTROL:
                self._pause = pause_of(record)
        self._unregistered = {spec.name: (spec, fields.get(spec.name, {})) for spec in self.specs}
        self._executor.begin(records)
        if meters.on:
            self._executor.metrics.learn(self.specs, {it.key.name: it for it in records})
        self.ready = True
        self._situation.note_answered()
        self._emit("ready", jobs=len(self.specs), store=self._link.engine.url)
        # Only now: its records are about jobs that the ledger has been read for.
        start_thread(self._listen, "incumbent-cron")

    def reload(self, specs: Iterable[JobSpec]) -> None:
        """Replace the jobs; runs in progress go on as they began."""
        specs, before = tuple(specs), {spec.name: spec for spec in self.specs}
        changes = self._executor.reload(specs)
        self.specs = specs
        running = {job for job, *_ in (*self._runs.running, *self._runs.ended)}
        left = running - self._executor.dispatcher.specs.keys()
        self._removed = {
            name: it for name, it in {**self._removed, **before}.items() if name in left
        }
        if not self.ready:
            self._emit("reloaded", jobs=len(specs))
            return
        named = {kind: names or None for kind, names in changes.items()}
        self._emit("reloaded", jobs=len(specs), **named)
        # Those that are not registered yet still have to be, although they did not change.
        self._unregistered = {
            spec.name: (spec, None)
            for spec in specs
            if before.get(spec.name) != spec or spec.name in self._unregistered
        }
        self._present_at = self._housekeeping_at = -inf

    # -- the control key -----------------------------------------------------------------------

    def _listen(self) -> None:
        """In the thread: read the control key, pass the record to the loop, wait for a change."""
        key, store = Key(self._namespace, CONTROL), self._link.store
        seen, held = "", False
        while not self.stopped:
            try:
                # Before the read: a trigger that is set while it is on its way counts as new the
                # next time.
                began = clock.wall()
                with meters.asking():
                    record = store.read(key, clock.now() + 2.0)
                self._situation.note_answered()
                # Once also without a field: then a trigger or the pause has been removed.
                if record.fields or held:
                    # With the instant of the read before: what is new in the record came later.
                    self._control_records.append((self._control_read_at, record))
                    self.wake()
                held = bool(record.fields)
                self._control_read_at = began
                until = clock.now() + _CONTROL_READ_EVERY * (0.8 + 0.4 * draw_jitter())
                again = record.seen == seen
                seen = record.seen
                if again:
                    # Notifications may be spurious: many of them must not become a busy loop.
                    time.sleep(0.05)
                store.wait_change(key, record.seen, until)
            except StoreError:
                self._situation.note_unanswered()
                time.sleep(1.0 + draw_jitter())
            except Exception as error:  # noqa: BLE001 - one defect must not end the thread
                if not self.stopped:
                    self._emit("fault", why=f"{type(error).__name__}: {error}")
                    time.sleep(1.0)

    def _take_triggers(self) -> None:
        dispatcher = self._executor.dispatcher
        while self._control_records:
            read_before, record = self._control_records.pop(0)
            self._pause = pause_of(record)
            # Those that were removed are forgotten: their slots and records refuse another run.
            known, self._trigger_since = self._trigger_since, {}
            for trigger in triggers(record):
                # The operator's clock may be behind: what came since the last read is new.
                seen = (clock.now(), max(trigger.when, read_before))
                since, when = self._trigger_since[trigger.id] = known.get(trigger.id, seen)
                if clock.wall() - when > STALE:
                    # Remove it only once it has stood as long by our steady clock: our wall clock
                    # may be wrong, and other instances may still take the trigger.
                    if clock.now() - since > STALE:
                        self._remove_trigger(trigger.slot)
                elif trigger.id not in self._taken:
                    # Before it is claimed: the same record comes again with each change of the key.
                    self._taken.add(trigger.id)
                    if trigger.job in dispatcher.specs:
                        slot = JobSlot(trigger.slot, when, triggered_by=trigger.said)
                        dispatcher.claim_at(trigger.job, slot, clock.now())
            self._taken &= self._trigger_since.keys()

    def _remove_trigger(self, slot_name: str) -> None:
        """Remove an ended run's trigger: until the run has ended, all instances must see it."""
        if slot_name.startswith("manual/"):
            field = f"{TRIGGER}{slot_name.removeprefix('manual/').partition('#')[0]}"
            until = clock.now() + 1.0
            with suppress(StoreError), meters.asking():
                self._link.store.put(Key(self._namespace, CONTROL), field, None, None, until)

    def _announce_starts(self) -> None:
        while self._runs.to_announce:
            self._news.started(self._spec_of(self._runs.to_announce.pop(0)))

    def _spec_of(self, job: str) -> JobSpec | None:
        return self._executor.dispatcher.specs.get(job) or self._removed.get(job)

    def _after_run(self, job: str, slot: JobSlot, code: int) -> None:
        """After a run of this instance: remove its trigger, or claim or check its slot again."""
        dispatcher = self._executor.dispatcher
        began = self._runs.started_at.pop((job, slot.name), None)
        if (state := STATE_OF.get(code)) is not None:
            seconds = None if began is None else clock.now() - began
            self._executor.metrics.count_run(job, state, seconds, clock.wall())
            self._news.ended(self._spec_of(job), slot, state)
        if code == ALREADY_RECORDED or state is not None:
            self._remove_trigger(slot.name)
        if state is not None or job not in dispatcher.specs:
            return
        if code == GAVE_BACK:
            dispatcher.claim_again(job, slot, clock.now())
        elif code == ALREADY_RECORDED:
            # Its instant may have come again.
            dispatcher.check_at(job, slot, clock.now())
        else:
            # Its end is not recorded: until its lease ends, the run counts as going on.
            dispatcher.check_at(job, slot, clock.now() + self._runs.ttl)

    # -- housekeeping --------------------------------------------------------------------------

    def _housekeeping(self) -> None:
        if clock.now() < self._housekeeping_at:
            return
        try:
            self._register_some()
            now = clock.now()
            if now >= self._present_at:
                # Before the write: the next sign is due in its time, whatever became of this one.
                self._present_at = now + self._presence.every * (0.9 + 0.2 * draw_jitter())
                self._presence.write_sign(self.specs)
            if now >= self._sweep_at:
                self._sweep()
        except StoreError as error:
            # Nothing here is urgent, and the orders report outages.
            self._housekeeping_at = clock.now() + 1.0 + draw_jitter()
            if error.permanent:
                self._emit("store", ok=False, why=str(error))

    def _register_some(self) -> None:
        for name in [*islice(self._unregistered, _REGISTER_AT_ONCE)]:
            self._register(name)

    def _register(self, name: str) -> None:
        spec, fields = self._unregistered[name]
        if fields is None:
            fields = run_blocking(self._executor.ledger(name).read()).fields
        self._executor.register(spec, fields, self._pause)
        # Only once it is registered: after an error the next step begins with the same one.
        del self._unregistered[name]

    def _pause_if_new(self, spec: JobSpec) -> None:
        """Before a claim while all is paused: a job that is not registered has no pause yet."""
        if self._pause is not None and spec.name in self._unregistered:
            self._register(spec.name)

    def _sweep(self) -> None:
        """Search all jobs for overlooked slots; now and then, one instance of the fleet does it."""
        began = clock.now()
        # First, also for the instances that are refused: one sweep in this time is enough for all.
        self._sweep_at = began + _SWEEP_EVERY
        lock = Lock(
            SWEEP,
            store=self._link,
            namespace=self._namespace,
            once_per=2 * _SWEEP_EVERY,
            slot=str(int(clock.wall() // _SWEEP_EVERY)),
        )
        try:
            # One that is lost at once has kept the others from sweeping all the same.
            release_unless_lost(lock.acquire(0))
        except NotAcquired:
            return
        with meters.asking():
            records = self._link.store.scan(self._namespace, "", began + _SCAN_WITHIN)
        jobs = {record.key.name: record for record in records if is_job_name(record.key.name)}
        self._executor.sweep(jobs, clock.now())
        self._presence.sweep(records)
        # A sweep that takes long is done less often.
        self._sweep_at += 200 * (clock.now() - began)
