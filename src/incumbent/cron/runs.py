"""One run of a slot: claimed by one request, handed to its process, and recorded.

The worker or the thread that runs it decides what an attempt is: a command or a call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from incumbent import clock
from incumbent.cron.events import Emit
from incumbent.cron.ledger import SLOT_KEEP, Ledger, SlotRecord, SlotState, transition
from incumbent.cron.schedule import FixedTimes
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.durations import DAY, say_seconds
from incumbent.errors import NotAcquired, StoreError
from incumbent.locks.leases import Lease, release_unless_lost
from incumbent.locks.options import LockSettings, lease_request, require
from incumbent.model import Notice, Refused
from incumbent.model import Slot as StoreSlot
from incumbent.protocol.acquire import acquire
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.messages import request_in_words
from incumbent.protocol.release import release
from incumbent.runtime.link import Link
from incumbent.stores.plan import run_blocking

_NEVER: Final = FixedTimes(())


@dataclass(frozen=True, slots=True)
class Task:
    """A granted slot, for another process to adopt and run. `wanted` names the slot too.

    `takes_in_doubt`: takes of the claim without a reply; giving the claim back gives them up too.
    """

    spec: JobSpec
    slot: JobSlot
    wanted: LeaseRequest
    claim: str
    takes_in_doubt: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """The names of its job and slot."""
        return self.spec.name, self.slot.name


class Claimer:
    """Claims slots of jobs in one namespace, for one instance.

    Raises ConfigError for a store that cannot both grant slots and record their outcome.
    """

    def __init__(self, link: Link, namespace: str, settings: LockSettings) -> None:
        require(link.engine.capabilities, "cron", "slots", "fields")
        self.link = link
        self.namespace = namespace
        self._settings = settings

    def wanted(self, spec: JobSpec) -> LeaseRequest:
        """The request for a lease of this job, still without a slot. Raises ConfigError."""
        settings: Any = {**self._settings, "at_most_for": spec.at_most_for}
        if spec.at_least_for > 0:
            settings["at_least_for"] = spec.at_least_for
        caps = self.link.engine.capabilities
        wanted = lease_request(self.namespace, spec.name, caps, **settings)
        # The lease's record is kept for as long as the fields of the ledger.
        return wanted.asking(keep_record=max(SLOT_KEEP, 30 * DAY))

    def claim(self, spec: JobSpec, slot: JobSlot) -> Claim | Refused:
        """Ask for a slot once: the lease that is held now, or the store's refusal.

        Raises StoreError; then no lease is held, and one that may be in the store is given back.
        """
        name = slot.name
        self.link.client_end.refuse()
        wanted = self.wanted(spec).asking(slot=StoreSlot(name, SLOT_KEEP), meta=name.encode())
        # NotAcquired has only words, and the dispatcher needs the refusal itself.
        replies: list[Refused | StoreError] = []
        try:
            return run_blocking(acquire(self.link.port, wanted, 0, replies.append))
        except NotAcquired:
            return next(reply for reply in reversed(replies) if isinstance(reply, Refused))

    def release(self, claim: Claim) -> None:
        """Give back a slot that did not run: any instance may take it again."""
        run_blocking(release(self.link.port, claim, undo_slot=True))

    def task_of(self, spec: JobSpec, slot: JobSlot, claim: Claim) -> Task:
        """The task for another process; it gets the lease, so this one is no holder any more."""
        # First: a claim that is dropped while it is held gives itself back.
        claim.machine.note_leaving()
        return Task(without_schedule(spec), slot, claim.wanted, claim.id, claim.takes_in_doubt)


def without_schedule(spec: JobSpec) -> JobSpec:
    """The job for another process, which does not need the schedule; some are long."""
    return replace(spec, schedule=_NEVER)


def adopt(link: Link, wanted: LeaseRequest, claim_id: str, takes_in_doubt: int) -> Lease:
    """Take over a lease that another process was granted: ask for it again with its claim.

    It is not enough to copy its numbers: the deadline must count from a request of our own, and a
    store may need this process (etcd ends a lease that no process renews). Raises NotAcquired if it
    is too late, else StoreError; then the slot is given back.
    """
    # A store that was just started may make a new connection wait longer than the old one.
    claim = run_blocking(acquire(link.port, wanted, wanted.policy.ttl / 2, claim_id=claim_id))
    # Added up: a take of either process may still arrive at the store.
    claim.takes_in_doubt += takes_in_doubt
    link.keeper.arm(claim)
    return Lease(link, (claim,))


# -- the attempts of a run -------------------------------------------------------------------------

T = TypeVar("T")

# The codes that a worker sends to the zygote. A worker that dies without sending one counts with
# the exit code of its process, so any other code means a fault.
PREPARED: Final = 255
LEAVES: Final = 254
"""Sent after a task: the worker takes no more tasks."""
STARTED: Final = 253
"""Sent when the command of a recorded run is running: the costly part of its start is over."""
FAULT: Final = 125
GAVE_BACK: Final = 75
"""The run could not begin: any instance may take its slot again."""
NOT_BEGUN: Final = 73
"""No process could take the run over: the instance that claimed its slot gives it back."""
ALREADY_RECORDED: Final = 74
"""Nothing ran: the slot is on record already."""
NOT_RECORDED: Final = 76
"""The lease was lost before the end was recorded: the next instance that looks records it."""
STATE_OF: Final = {
    240: SlotState.OK,
    241: SlotState.FAILED,
    242: SlotState.TIMED_OUT,
    243: SlotState.LOST,
}
"""The state of a run whose end is recorded, by the code that its worker sends."""
_CODE_OF: Final = {state: code for code, state in STATE_OF.items()}
# As long as others wait for this record before they count the slot as lost: see `judging`.
_BEGIN_WITHIN: Final = 5.0
_LONGEST_PAUSE: Final = 3600.0
_WHY_MOST: Final = 500
_SHORTEST_RETRY: Final = 1.0
"""Seconds that at_most_for has to leave for another attempt."""


@dataclass(slots=True)
class Runs(Generic[T]):
    """The runs of this instance, by job and slot.

    `running`: the runs that go on. `starting`: those of them whose command has not begun.
    `started_at`: the start of each. `to_announce`: jobs whose run has begun, and `ended`: job, slot
    and code, until the instance has dealt with them; `ended` is filled from any thread. `ttl`:
    seconds that a lease may outlive a run whose end is not recorded.
    """

    ttl: float = 0.0
    running: dict[tuple[str, str], T] = field(default_factory=dict)
    starting: set[tuple[str, str]] = field(default_factory=set)
    started_at: dict[tuple[str, str], float] = field(default_factory=dict)
    to_announce: list[str] = field(default_factory=list)
    ended: list[tuple[str, JobSlot, int]] = field(default_factory=list)

    def begin(self, job: str, slot_name: str) -> None:
        """Note that a run's command runs; a further attempt changes nothing but the instant."""
        if (job, slot_name) not in self.started_at:
            self.to_announce.append(job)
        self.started_at[job, slot_name] = clock.now()


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt. `final`: no other attempt may follow."""

    state: SlotState
    code: int | None = None
    why: str = ""
    output: str = ""
    final: bool = False

    @classmethod
    def of_exit(cls, error: SystemExit) -> AttemptEnd:
        """The end of a run that called sys.exit(), with the exit code of a process."""
        if error.code is None or error.code == 0:
            return cls(SlotState.OK, 0)
        code = error.code if isinstance(error.code, int) else 1
        return cls(SlotState.FAILED, code, f"sys.exit({error.code!r})"[:500])


def code_of(ended: SlotRecord | None) -> int:
    """The code that a worker sends for a run; `ended` is None if its end is not recorded."""
    return NOT_RECORDED if ended is None else _CODE_OF[ended.state]


class Attempts:
    """The attempts of one run of a slot, under its lease."""

    def __init__(self, lease: Lease, spec: JobSpec, slot: JobSlot, emit: Emit) -> None:
        self._lease = lease
        self._spec = spec
        self._emit = emit
        self._shown = False
        self._ledger = Ledger(lease.belief.link.port, lease.belief.key)
        self._began = clock.now()
        self.slot_record = SlotRecord(
            slot.name,
            SlotState.RUNNING,
            slot.due,
            lease.holder,
            lease.fencing_token,
            clock.wall(),
            attempt=slot.attempt,
            triggered_by=slot.triggered_by,
        )

    def begin(self) -> int | None:
        """Record the run as running, and report it; else give the lease back and return a code."""
        until = clock.now() + min(_BEGIN_WITHIN, self._lease.remaining)
        try:
            begun = run_blocking(self._ledger.begin(self.slot_record, until))
        except StoreError as error:
            return self.release_unused(self._undo_begin(str(error)))
        if not begun:
            # Nothing ran, so at_least_for must not close the lease.
            release_unless_lost(self._lease, undo_slot=True)
            return ALREADY_RECORDED
        run = self.slot_record
        late = round(clock.wall() - run.due, 3)
        self._emit("started", slot=run.slot, attempt=run.attempt, late=late)
        return None

    def _undo_begin(self, why: str) -> str:
        """Remove the record that a begin in doubt may have made; `why`, and what may be left."""
        # As long as the lease lasts: until then nobody counts the run as lost.
        until = clock.now() + self._lease.remaining
        try:
            run_blocking(self._ledger.undo(self.slot_record, until))
        except StoreError:
            return f"{why}; if it is on record as running, it will count as lost"
        return why

    def release_unused(self, why: str) -> int:
        """Give the slot back before anything ran: any instance may run it. Returns GAVE_BACK."""
        release_unless_lost(self._lease, undo_slot=True)
        self._emit("given_back", slot=self.slot_record.slot, why=why)
        return GAVE_BACK

    def run_attempts(
        self, attempt: Callable[[], AttemptEnd], pause: Callable[[float], bool]
    ) -> SlotRecord | None:
        """Attempt until one succeeds or the retries are used up; return the recorded end, or None.

        `pause(seconds)` waits between attempts; it returns False if there must be no more.
        """
        while True:
            end = attempt()
            left = self._spec.retries - (self.slot_record.attempt - 1)
            # Asked after the attempt: without the lease nobody may begin another one here.
            if end.state is SlotState.OK or end.final or left <= 0 or not self._lease.valid:
                return self._record_end(end)
            attempts = self.slot_record.attempt
            delay = min(self._spec.retry_backoff * 2.0 ** (attempts - 1), _LONGEST_PAUSE)
            if clock.now() + delay + _SHORTEST_RETRY > self._lease.belief.at_most_until:
                # It would be stopped at once: the run fails now, while there is time to say so.
                why = f"{end.why}; at_most_for leaves no time for another attempt"
                return self._record_end(replace(end, why=why))
            if interrupted := self._wait_to_retry(end, delay, pause):
                return self._record_end(interrupted)
            again = {"attempt": attempts + 1, "code": None, "why": "", "output": ""}
            self._record_state(SlotState.RUNNING, **again)

    def _wait_to_retry(
        self, end: AttemptEnd, delay: float, pause: Callable[[float], bool]
    ) -> AttemptEnd | None:
        """Wait before the next attempt; the end of the run, if there must be none."""
        slot, attempt, began = self.slot_record.slot, self.slot_record.attempt, clock.now()
        self._emit("retry", slot=slot, attempt=attempt, why=end.why, seconds=delay)
        self._record_state(SlotState.WAITING, code=end.code, why=end.why, output=end.output)
        if pause(delay) and self._lease.valid:
            return None
        if cause := self._lease.belief.proof.verdict(clock.now()):
            return stopped(cause, clock.now() - began, self._lease.belief.notice)
        return AttemptEnd(SlotState.LOST, why="its instance was stopped between attempts")

    def _record_state(self, state: SlotState, **changes: object) -> None:
        until = clock.now() + min(1.0, self._lease.remaining)
        claim = self._lease.belief.claim_id
        run = self.slot_record
        moved = run_blocking(self._ledger.record_until(run, state, claim, until, **changes))
        # What could not be written is no reason to stop: the end counts. Here it is so all the
        # same, or no attempt would be the last one, and none after a pause could end well.
        self.slot_record = moved or transition(run, state, **changes)

    def _record_end(self, end: AttemptEnd) -> SlotRecord | None:
        view, run = self._lease.belief, self.slot_record
        # As long as the lease lasts: after it, others find the run and record it as lost.
        until = max(view.proof.deadline, clock.now() + 1.0)
        # Not by the wall clock: that may have been set while the run went on.
        took = clock.now() - self._began
        ended_at = (run.started or clock.wall()) + took
        changes = {"ended": ended_at, "code": end.code, "why": end.why, "output": end.output}
        ended = run_blocking(
            self._ledger.record_until(run, end.state, view.claim_id, until, **changes)
        )
        event, why = str(end.state), end.why or None
        if ended is None:
            why = f"{end.why or end.state}, but the lease was lost before that was on record"
            event = "lost"
        facts = {"slot": run.slot, "attempt": run.attempt, "code": end.code}
        self._emit(event, **facts, seconds=round(took, 3), why=why)
        return ended

    # -- for people who look -----------------------------------------------------------------

    def show_output(self, output: str) -> bool:
        """Show what the command has written so far; return False if that is not the time for it.

        From any thread. A store that is in trouble has the renewals to answer first.
        """
        run, view = self.slot_record, self._lease.belief
        if run.state is not SlotState.RUNNING or not (self._lease.valid and view.answered):
            return False
        # Before it is sent: a request without an answer may have been applied.
        self._shown = True
        try:
            return run_blocking(self._ledger.show(run, output, view.claim_id, clock.wall()))
        except StoreError:
            return False

    def hide_output(self) -> None:
        """Remove what was shown, once the whole output is on record."""
        if self._shown:
            with suppress(StoreError):
                claim = self._lease.belief.claim_id
                run_blocking(self._ledger.show(self.slot_record, "", claim, clock.wall()))

    def prune(self) -> None:
        """Remove surplus records from the ledger, now and then."""
        keep, keep_for = self._spec.keep_runs, self._spec.keep_for
        try:
            run_blocking(self._ledger.prune_sometimes(keep, keep_for, clock.wall()))
        except StoreError as error:
            self._emit("store", why=f"the ledger could not be pruned: {error}")


def stopped(
    cause: str, seconds: float, notice: Notice | None = None, *, instance_died: bool = False
) -> AttemptEnd:
    """The end of an attempt that was stopped because of its lease or its instance.

    `notice`: the operator's request that ended the lease, if one did.
    """
    after, failed = f"after {say_seconds(seconds)}", SlotState.FAILED
    if cause.startswith("signal:"):
        why = f"its instance was stopped ({cause.partition(':')[2]}) {after}"
        if instance_died:
            why = f"its instance died, or was killed; stopped {after}"
        return AttemptEnd(SlotState.LOST, why=why, final=True)
    state, why = {
        "at_most_for": (SlotState.TIMED_OUT, "at_most_for"),
        "paused": (failed, "the job was paused"),
        "broken": (failed, "an operator asked to end it"),
        "guard": (failed, "the guard died"),
    }.get(cause, (SlotState.LOST, f"the lease was lost ({cause})"))
    if notice is not None:
        why = request_in_words(notice)[:_WHY_MOST]
    return AttemptEnd(state, why=f"stopped {after}: {why}", final=True)
