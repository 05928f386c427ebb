"""The slots that are due, and one instance's orders for the store. Pure: the caller passes in
clocks, random numbers and the store's replies.

The agenda is a heap over the next slot of every job. It says which slots this instance should *ask
for*; only the ledger says which instance runs a slot. The agenda names a slot twice only after the
clock was set back (see `note_clock`). The dispatcher makes the orders; `executor` carries them out:

    a slot is due --> ClaimOrder --granted--> the run's process takes over
                            |
                         refused --> LedgerOrder: is the slot recorded, who holds the lease?
                            |            |
                     no reply: again     +--> again when the holder's lease ends

`now` is in seconds on a clock that also runs while the host is suspended. `wall` is this instance's
wall clock, used for slots only. While the store does not reply, the dispatcher makes one order at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, TypeAlias

from incumbent.cron.folds import NO_FOLD, Fold, fold_number
from incumbent.cron.judging import MISSED_AFTER, STEP, Findings, is_punctual, missed_slots, start_of
from incumbent.cron.ledger import SLOT_KEEP
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.durations import backoff_delay
from incumbent.model import Refused

CORRECTION: Final = 3 * 3600.0
"""Seconds: a clock put back by more than this was wrong before, as in Debian's cron(8)."""


@dataclass(slots=True)
class _AgendaEntry:
    spec: JobSpec
    row: int  # in the file
    returned_until: float = 0.0
    """The agenda has returned every slot up to this instant."""
    maybe_returned_until: float = -inf
    """It may have returned slots up to this instant before the clock was set back."""
    due: float | None = None
    starts: float = 0.0

    def move_to(self, after: float) -> None:
        if after < self.returned_until:
            self.maybe_returned_until = max(self.maybe_returned_until, self.returned_until)
        self.returned_until = after
        self.due = self.spec.schedule.next_after(after)
        if self.due is not None:
            self.starts = start_of(self.spec, self.due)


class Agenda:
    """The next slots of all jobs.

    `known`: by job name, the job's last slot in the ledger. Later slots that are past come from
    `due` at once, by the job's catch-up rule. A job that `known` does not name begins now.

    `latest_wall`: the latest instant that the clock has shown since its last correction.
    """

    def __init__(
        self, specs: Iterable[JobSpec], wall: float, known: Mapping[str, float] | None = None
    ) -> None:
        self._wall = self.latest_wall = wall
        self._entries: dict[str, _AgendaEntry] = {}
        for spec in specs:
            last = (known or {}).get(spec.name, wall)
            # Runs that are on record beyond our clock were begun by a clock ahead of ours.
            self._add(spec, min(last, wall), last if last > wall else -inf)
        self._rebuild_heap()

    def _add(
        self, spec: JobSpec, returned_until: float, maybe_returned_until: float = -inf
    ) -> None:
        entry = _AgendaEntry(spec, len(self._entries), returned_until, maybe_returned_until)
        self._entries[spec.name] = entry
        entry.move_to(returned_until)

    def may_be_returned(self, slot: JobSlot, name: str) -> bool:
        """Whether this slot of the job was perhaps decided before the clock was set back."""
        entry = self._entries.get(name)
        return entry is not None and slot.due <= entry.maybe_returned_until

    def _rebuild_heap(self) -> None:
        entries = self._entries.values()
        self._heap = [
            (entry.starts, entry.row, entry) for entry in entries if entry.due is not None
        ]
        heapify(self._heap)

    @property
    def next_at(self) -> float | None:
        """The wall-clock instant at which the next slot starts; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def count_until(self, instant: float, most: int) -> int:
        """The number of jobs whose next slot starts by `instant`, counted up to `most`."""
        found, indexes = 0, [0]
        while indexes and found < most:
            index = indexes.pop()
            if index < len(self._heap) and self._heap[index][0] <= instant:
                found += 1
                # In a heap, an entry that starts in time can only be below another such entry.
                indexes += (2 * index + 1, 2 * index + 2)
        return found

    def due(self, wall: float) -> list[tuple[JobSpec, JobSlot]]:
        """Return the slots that have become due, by instant, then in the order of the file.

        Late slots (the process or the machine was suspended, or the clock set forward) follow the
        job's catch-up rule. For a clock that was set back see `note_clock`.
        """
        self.note_clock(wall)
        found: list[tuple[float, int, JobSpec, JobSlot]] = []
        while self._heap and self._heap[0][0] <= wall:
            entry = heappop(self._heap)[2]
            found += [(slot.due, entry.row, entry.spec, slot) for slot in _pop_ready(entry, wall)]
            if entry.due is not None:
                heappush(self._heap, (entry.starts, entry.row, entry))
        # By numbers only: jobs and slots have no order.
        found.sort(key=lambda item: item[:2])
        return [(spec, slot) for _, _, spec, slot in found]

    def note_clock(self, wall: float) -> bool:
        """Note the wall clock; return True if jobs begin anew from there, as it was set back.

        As in Debian's cron(8), jobs with a rhythm follow the new time at once, and fixed times are
        not repeated: they wait until the clock has caught up. A clock that was set back by more
        than CORRECTION was wrong before, so every job begins anew. `due` calls this method.
        """
        back, self._wall = self._wall - wall, wall
        self.latest_wall = max(self.latest_wall, wall)
        corrected = wall < self.latest_wall - CORRECTION
        if not corrected and back <= STEP:
            return False
        for entry in self._entries.values():
            if corrected or entry.spec.schedule.keeps_rhythm:
                entry.move_to(wall)
        self._rebuild_heap()
        if corrected:
            self.latest_wall = wall
        return True

    def replace(self, specs: Iterable[JobSpec], wall: float) -> dict[str, list[str]]:
        """Replace the jobs: one with the same name and schedule keeps its place, others begin now.

        Returns the names of the jobs that were `added`, `removed` and `rescheduled`.
        """
        before, self._entries = self._entries, {}
        changes: dict[str, list[str]] = {"added": [], "removed": [], "rescheduled": []}
        for spec in specs:
            old = before.pop(spec.name, None)
            if old is not None and old.spec.schedule == spec.schedule:
                self._add(spec, old.returned_until, old.maybe_returned_until)
            else:
                self._add(spec, wall)
                changes["added" if old is None else "rescheduled"].append(spec.name)
        changes["removed"] = list(before)
        self._rebuild_heap()
        return changes


def _pop_ready(entry: _AgendaEntry, wall: float) -> list[JobSlot]:
    """Return the entry's slots that are ready, and move the entry on to its next slot."""
    spec, first = entry.spec, entry.due
    if first is None:
        return []
    following = spec.schedule.next_after(first)
    if (following is None or following > wall) and is_punctual(spec, first, wall):
        # The usual case: one question to the schedule.
        entry.move_to(first)
        return [JobSlot.at(first)]
    to_run, missed = missed_slots(spec, entry.returned_until, wall)
    # Past all that were found, also the missed ones: none is returned twice.
    entry.move_to(max((*to_run, *missed)))
    return [*(JobSlot.at(instant, only_check=True) for instant in missed), *map(JobSlot.at, to_run)]


# -- orders ----------------------------------------------------------------------------------------

# Seconds: the ledger is read before an older slot is claimed: the store may have forgotten it.
_CHECK_FIRST: Final = SLOT_KEEP / 3
# The most seconds by which instances spread their checks of a slot that another one holds.
_HELD_SPREAD: Final = 0.5
# Seconds from a refusal as "used" or "closed" to the check: the slot most likely ran, so there is
# no hurry, and one check serves many slots.
_CLOSED_AFTER: Final = 2.0
# Seconds within which checks of one job are made together.
_MERGED: Final = 1.0
# Seconds: a slot that is claimed within this time after its instant is not late.
_PUNCTUAL: Final = 2.0
# Seconds between checks for free capacity; one check serves all slots that wait for it.
_ROOM_EVERY: Final = 0.25


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """An order to claim a slot."""

    spec: JobSpec
    slot: JobSlot


@dataclass(frozen=True, slots=True)
class LedgerOrder:
    """An order to read the records of slots, and to record slots that no instance recorded."""

    spec: JobSpec
    slots: tuple[JobSlot, ...]


Order: TypeAlias = ClaimOrder | LedgerOrder
_Waiting = dict[str, tuple[float, JobSlot]]


@dataclass(slots=True)
class _Pending:
    """The slots of one job to claim, and those to check in the ledger, each with its instant."""

    claims: _Waiting = field(default_factory=dict)
    checks: _Waiting = field(default_factory=dict)
    planned: float = inf
    """The instant of the job's valid entry in the heap; entries with another instant are void."""


class Dispatcher:
    """Turns due slots into orders: see the module. `jitter` returns a random number in [0, 1)."""

    def __init__(
        self, specs: Iterable[JobSpec], agenda: Agenda, jitter: Callable[[], float]
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.agenda = agenda
        self._jitter = jitter
        self.folds: dict[str, Fold] = {}
        """By job: the stretch of time that comes again, as far as this instance knows."""
        self._pending: dict[str, _Pending] = {}
        self._heap: list[tuple[float, str]] = []
        self._failures = 0
        self._silent_until = -inf

    # -- orders ------------------------------------------------------------------------------

    def next_in(self, now: float, wall: float) -> float:
        """Seconds until there may be an order; inf for never."""
        due = self.agenda.next_at
        waits = [inf if due is None else due - wall]
        if self._heap:
            waits.append(max(self._heap[0][0], self._silent_until) - now)
        return max(0.0, min(waits))

    def orders(self, now: float, wall: float) -> list[Order]:
        """Return the orders that are ready; claims in random order, so that instances mix."""
        catching_up: set[str] = set()
        for spec, slot in self.agenda.due(wall):
            self._plan_due(spec, slot, now, wall, catching_up)
        if now < self._silent_until:
            return []
        found: list[Order] = []
        while self._heap and self._heap[0][0] <= now:
            at, name = heappop(self._heap)
            if (pending := self._pending.get(name)) is None or pending.planned != at:
                continue
            # Its entry is off the heap: `_plan` in `_ready` pushes the next one.
            pending.planned = inf
            found += self._ready(name, pending, now, wall)
            if self._failures and found:
                # The store did not reply to the last order: try it with a single one.
                for order in found[1:]:
                    self._put_back(order, now)
                del found[1:]
                break
        claims = [order for order in found if isinstance(order, ClaimOrder)]
        # The slots of one job oldest first, the jobs in random order.
        rank = {claim.spec.name: self._jitter() for claim in claims}
        claims.sort(key=lambda claim: (rank[claim.spec.name], claim.slot.due))
        return [*claims, *(order for order in found if isinstance(order, LedgerOrder))]

    def _plan_due(
        self, spec: JobSpec, slot: JobSlot, now: float, wall: float, catching_up: set[str]
    ) -> None:
        if not slot.only_check and self._too_late(spec, slot, wall):
            catching_up.add(spec.name)
        # A punctual slot waits behind the late slots of its job that are caught up: it must not be
        # skipped as overlapping.
        if spec.name in catching_up:
            slot = replace(slot, waits_its_turn=True)
        slot = self.folds.get(spec.name, NO_FOLD).named(slot)
        returns = fold_number(slot.name) == 1 and self.agenda.may_be_returned(slot, spec.name)
        check = slot.only_check or returns or wall - slot.due > _CHECK_FIRST
        (self.check_at if check else self.claim_at)(spec.name, slot, now)

    def _ready(self, name: str, pending: _Pending, now: float, wall: float) -> list[Order]:
        spec = self.specs[name]
        claims = _pop_due(pending.claims, now)
        checks = _pop_due(pending.checks, now, merge=_MERGED)
        self._plan(name, pending)
        late = [slot for slot in claims if self._too_late(spec, slot, wall)]
        checks += self._by_catch_up(spec, late, wall)
        found: list[Order] = [ClaimOrder(spec, slot) for slot in claims if slot not in late]
        return [*found, LedgerOrder(spec, tuple(checks))] if checks else found

    @staticmethod
    def _too_late(spec: JobSpec, slot: JobSlot, wall: float) -> bool:
        """Whether the slot is missed: it is older than its catch-up, or than the next slot."""
        age = wall - slot.due
        if age <= _PUNCTUAL or not slot.scheduled or slot.attempt > 1:
            return False
        if slot.waits_its_turn:
            return age > spec.catch_up.window
        following = spec.schedule.next_after(slot.due)
        gap = MISSED_AFTER if following is None else max(_PUNCTUAL, following - slot.due)
        return age > min(gap, MISSED_AFTER)

    @staticmethod
    def _by_catch_up(spec: JobSpec, late: list[JobSlot], wall: float) -> list[JobSlot]:
        """Let slots that an outage delayed wait their turn or be missed, by the catch-up rule."""
        rule = spec.catch_up
        most = {"no": 0, "last": 1, "all": rule.limit}[rule.mode]
        late = sorted(late, key=lambda slot: slot.due)
        runs = [slot for slot in late if wall - slot.due <= rule.window][-most:] if most else []
        return [
            replace(slot, waits_its_turn=slot in runs, only_check=slot not in runs) for slot in late
        ]

    # -- results of orders ---------------------------------------------------------------------

    def note_replied(self) -> None:
        """The store replied: end the back-off."""
        self._failures, self._silent_until = 0, -inf

    def note_refused(self, claim: ClaimOrder, refused: Refused, now: float) -> None:
        """The store refused a claim: the lease or the slot is taken, or the job is paused."""
        self.note_replied()
        holder = refused.holders[0] if refused.holders else None
        delay = self._jitter() * _HELD_SPREAD
        if refused.reason in ("used", "closed"):
            delay += _CLOSED_AFTER
        elif holder is not None and holder.meta == claim.slot.name.encode():
            delay += refused.retry_after or 0.0
        self.check_at(claim.spec.name, claim.slot, now + delay)

    def note_checked(self, order: LedgerOrder, findings: Findings, now: float) -> None:
        """A check is done and its records are written: plan the claims and checks that follow."""
        self.note_replied()
        name = order.spec.name
        for slot in findings.claims:
            self.claim_at(name, slot, now)
        for delay, slot in findings.rechecks:
            self.check_at(name, slot, now + delay + self._jitter() * _HELD_SPREAD)

    def note_unanswered(
        self, orders: Iterable[Order], now: float, retry_after: float | None = None
    ) -> None:
        """The store did not reply to the first of these: keep all, and wait before the next."""
        # Once: the more orders wait, the longer each would wait for one reply that was lost.
        self._failures += 1
        delay = max(backoff_delay(self._failures, self._jitter(), base=0.2), retry_after or 0.0)
        # Before they are put back: they are ready at once, and must wait as the others do.
        self._silent_until = now + delay
        for order in orders:
            self._put_back(order, now)

    def claim_again(self, name: str, slot: JobSlot, now: float) -> None:
        """This instance could not run the slot: claim it again, as other instances do."""
        self.claim_at(name, slot, now + 0.5 + self._jitter())

    def postpone(self, claim: ClaimOrder, now: float) -> None:
        """This instance is at its limit of runs: claim later, unless others take the slot."""
        # The next multiple of _ROOM_EVERY after one to four of them.
        periods = (now + _ROOM_EVERY * (1 + 3 * self._jitter())) // _ROOM_EVERY
        self.claim_at(claim.spec.name, claim.slot, (periods + 1) * _ROOM_EVERY)

    def reload(self, specs: Iterable[JobSpec], wall: float) -> dict[str, list[str]]:
        """Replace the jobs and drop pending slots of removed ones; return as Agenda.replace."""
        self.specs = {spec.name: spec for spec in specs}
        for name in self._pending.keys() - self.specs.keys():
            del self._pending[name]
        return self.agenda.replace(self.specs.values(), wall)

    # -- pending slots -------------------------------------------------------------------------

    def claim_at(self, name: str, slot: JobSlot, at: float) -> None:
        """Claim this slot at the instant `at`; it need not be a slot of the job's schedule."""
        pending = self._pending.setdefault(name, _Pending())
        pending.claims[slot.name] = (at, slot)
        self._plan(name, pending)

    def check_at(self, name: str, slot: JobSlot, at: float) -> None:
        """Check this slot in the ledger at the instant `at`, or earlier if that was planned."""
        pending = self._pending.setdefault(name, _Pending())
        known = pending.checks.get(slot.name)
        pending.checks[slot.name] = (at if known is None else min(at, known[0]), slot)
        self._plan(name, pending)

    def _plan(self, name: str, pending: _Pending) -> None:
        both = (*pending.claims.values(), *pending.checks.values())
        at = min((when for when, _ in both), default=inf)
        if at == inf:
            self._pending.pop(name, None)
        elif at < pending.planned:
            pending.planned = at
            heappush(self._heap, (at, name))

    def _put_back(self, order: Order, now: float) -> None:
        if isinstance(order, ClaimOrder):
            self.claim_at(order.spec.name, order.slot, now)
        else:
            for slot in order.slots:
                self.check_at(order.spec.name, slot, now)


def _pop_due(waiting: _Waiting, now: float, merge: float = 0.0) -> list[JobSlot]:
    """Remove and return the due slots; if there are any, also those due within `merge` seconds."""
    if not any(when <= now for when, _ in waiting.values()):
        return []
    ready = [name for name, (when, _) in waiting.items() if when <= now + merge]
    return [waiting.pop(name)[1] for name in ready]
