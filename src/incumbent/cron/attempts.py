"""One run from its first record to its last: attempts, pauses between them, how it ended.

What an attempt is, a command or a call, is the caller's business.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from incumbent import clock
from incumbent.cron.events import Emit
from incumbent.cron.ledger import Authority, Ledger, Run, State
from incumbent.cron.slots import Slot
from incumbent.cron.spec import JobSpec
from incumbent.durations import backoff_delay, say_seconds
from incumbent.errors import StoreError
from incumbent.locks import Lease, give_back
from incumbent.protocol.port import run as drive

__all__ = ["ENDED_WELL", "GAVE_BACK", "UNTOLD", "Attempts", "End", "Outcomes", "stopped"]

ENDED_WELL: Final = 0
GAVE_BACK: Final = 75
"""The run could not begin: its slot is anybody's again."""
UNTOLD: Final = 76
"""Its lease was lost before its end was on record: whoever looks puts it there."""
_BEGIN_WITHIN: Final = 5.0
_LONGEST_PAUSE: Final = 3600.0
_PRUNE_EVERY: Final = 8
"""Runs between looks at the bounds of the ledger, on the average."""


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended. `final`: another attempt is out of question."""

    state: State
    code: int | None = None
    why: str = ""
    output: str = ""
    final: bool = False


@dataclass(slots=True)
class Outcomes:
    """What became of runs of this instance, until its loop has seen to it."""

    over: list[str] = field(default_factory=list)
    """Slots that are seen to: of the others, a trigger must stand on."""
    given_back: list[tuple[str, Slot]] = field(default_factory=list)
    vanished: list[tuple[str, Slot]] = field(default_factory=list)
    """What ended without its end on record: a look puts it there."""

    def add(self, job: str, slot: Slot, code: int) -> None:
        """From any thread: a run has ended with this code."""
        if code == ENDED_WELL:
            self.over.append(slot.name)
        else:
            (self.given_back if code == GAVE_BACK else self.vanished).append((job, slot))


class Attempts:
    """One run of a slot under its lease."""

    def __init__(self, lease: Lease, spec: JobSpec, slot: Slot, emit: Emit) -> None:
        self._lease = lease
        self._spec = spec
        self._emit = emit
        self._ledger = Ledger(lease.belief.link.port, lease.belief.key)
        self.run = Run(
            slot.name,
            State.RUNNING,
            slot.due,
            lease.holder,
            lease.fencing_token,
            clock.wall(),
            attempt=slot.attempt,
        )

    @property
    def _authority(self) -> Authority:
        belief = self._lease.belief
        return Authority(belief.claim, belief.token)

    def begin(self) -> int | None:
        """Put it on record as running, and say so; else a code: the lease is given back."""
        try:
            if not self._begin():
                # Nothing ran: at_least_for closes nothing.
                give_back(self._lease, undo_slot=True)
                return ENDED_WELL
        except StoreError as error:
            return self.leave(str(error))
        late = round(clock.wall() - self.run.due, 3)
        self._emit("started", slot=self.run.slot, attempt=self.run.attempt, late=late)
        return None

    def leave(self, why: str) -> int:
        """Nothing ran, and somebody else may run it."""
        give_back(self._lease, undo_slot=True)
        self._emit("given_back", slot=self.run.slot, why=why)
        return GAVE_BACK

    def _begin(self) -> bool:
        """Raises StoreError if the store does not say within a few seconds of a proved lease."""
        until = clock.now() + min(_BEGIN_WITHIN, self._lease.remaining)
        tries = 0
        while True:
            try:
                return drive(self._ledger.begin(self.run))
            except StoreError:
                tries += 1
                wake = clock.now() + backoff_delay(tries, 0.5, cap=1.0)
                if wake >= until:
                    raise
                drive(self._ledger.sleep_until(wake))

    def go_through(self, attempt: Callable[[], End], pause: Callable[[float], bool]) -> Run | None:
        """Attempt until it is well or the retries are used up; the record, None if it is lost.

        `pause(seconds)` waits between attempts; False if there must be no more.
        """
        while True:
            end = attempt()
            left = self._spec.retries - (self.run.attempt - 1)
            if end.state is State.OK or end.final or left <= 0 or not self._lease.valid:
                return self._end(end)
            if not self._wait(end, pause):
                return self._end(End(State.LOST, why="its instance was stopped between attempts"))

    def _wait(self, end: End, pause: Callable[[float], bool]) -> bool:
        delay = min(self._spec.retry_backoff * 2.0 ** (self.run.attempt - 1), _LONGEST_PAUSE)
        self._emit(
            "retry", slot=self.run.slot, attempt=self.run.attempt, why=end.why, seconds=delay
        )
        self._move(State.WAITING, code=end.code, why=end.why, output=end.output)
        if not pause(delay) or not self._lease.valid:
            return False
        self._move(State.RUNNING, attempt=self.run.attempt + 1)
        return True

    def _move(self, state: State, **changes: object) -> None:
        until = clock.now() + min(1.0, self._lease.remaining)
        moved = drive(self._ledger.insist(self.run, state, self._authority, until, **changes))
        # A state in between that could not be written is no reason to stop: the last one counts.
        self.run = moved or self.run

    def _end(self, end: End) -> Run | None:
        lease = self._lease
        until = max(lease.belief.proof.deadline, clock.now() + 1.0)
        ended = drive(
            self._ledger.insist(
                self.run,
                end.state,
                self._authority,
                until,
                ended=clock.wall(),
                code=end.code,
                why=end.why,
                output=end.output,
            )
        )
        self._report(end, ended)
        return ended

    def _report(self, end: End, ended: Run | None) -> None:
        seconds = clock.wall() - (self.run.started or clock.wall())
        facts = {"slot": self.run.slot, "attempt": self.run.attempt, "code": end.code}
        if ended is None:
            why = f"{end.why or end.state}, but the lease was lost before that was on record"
            self._emit("lost", **facts, seconds=round(seconds, 3), why=why)
            return
        self._emit(str(end.state), **facts, seconds=round(seconds, 3), why=end.why or None)

    def prune(self) -> None:
        """Keep the ledger within its bounds, now and then."""
        keep, chance = self._spec.keep_runs, random.SystemRandom().random()
        if chance * min(_PRUNE_EVERY, max(1, keep // 4)) >= 1:
            return
        try:
            drive(self._ledger.prune(keep, self._spec.keep_for, clock.wall()))
        except StoreError as error:
            self._emit("store", why=f"the ledger could not be pruned: {error}")


def stopped(cause: str, seconds: float) -> End:
    """The end of an attempt that was stopped for a reason of the lease or the instance."""
    after = f"after {say_seconds(seconds)}"
    if cause == "at_most_for":
        return End(State.TIMED_OUT, why=f"stopped {after}: at_most_for", final=True)
    if cause.startswith("signal:"):
        why = f"its instance was stopped ({cause.partition(':')[2]}) {after}"
        return End(State.LOST, why=why, final=True)
    if cause == "paused":
        return End(State.FAILED, why=f"stopped {after}: the job was paused", final=True)
    if cause == "broken":
        return End(State.FAILED, why=f"stopped {after}: an operator asked for it", final=True)
    if cause == "guard":
        return End(State.FAILED, why=f"stopped {after}: the guard died", final=True)
    return End(State.LOST, why=f"stopped {after}: the lease was lost ({cause})", final=True)
