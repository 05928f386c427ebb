"""One run from its first record to its last: attempts, pauses between them, how it ended.

What an attempt is, a command or a call, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.cron.events import Said
from incumbent.cron.ledger import Authority, Ledger, Run, State
from incumbent.durations import backoff_delay, say_seconds
from incumbent.errors import StoreError
from incumbent.locks import Lease
from incumbent.protocol.port import run as drive

__all__ = ["Attempts", "End", "stopped"]

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
class Attempts:
    """One run. `pause(seconds)` waits between attempts; False if there must be no more.

    `wall`: the instance's wall clock, for the record.
    """

    lease: Lease
    ledger: Ledger
    run: Run
    said: Said
    retries: int = 0
    backoff: float = 10.0
    keep_runs: int = 100
    keep_for: float = 30 * 86_400.0

    @property
    def authority(self) -> Authority:
        belief = self.lease.belief
        return Authority(belief.claim, belief.token)

    def begin(self) -> bool:
        """Put it on record as running. If that cannot be, nothing may run.

        Raises StoreError if the store does not say within a few seconds of a proved lease.
        """
        until = clock.now() + min(_BEGIN_WITHIN, self.lease.remaining)
        tries = 0
        while True:
            try:
                return drive(self.ledger.begin(self.run))
            except StoreError:
                tries += 1
                wake = clock.now() + backoff_delay(tries, 0.5, cap=1.0)
                if wake >= until:
                    raise
                drive(self.ledger.sleep_until(wake))

    def go_through(self, attempt: Callable[[], End], pause: Callable[[float], bool]) -> Run | None:
        """Attempt until it is well or the retries are used up; the record, None if it is lost."""
        while True:
            end = attempt()
            left = self.retries - (self.run.attempt - 1)
            if end.state is State.OK or end.final or left <= 0 or not self.lease.valid:
                return self._end(end)
            if not self._wait(end, pause):
                return self._end(End(State.LOST, why="its instance was stopped between attempts"))

    def _wait(self, end: End, pause: Callable[[float], bool]) -> bool:
        delay = min(self.backoff * 2.0 ** (self.run.attempt - 1), _LONGEST_PAUSE)
        self.said("retry", slot=self.run.slot, attempt=self.run.attempt, why=end.why, seconds=delay)
        self._move(State.WAITING, code=end.code, why=end.why, output=end.output)
        if not pause(delay) or not self.lease.valid:
            return False
        self._move(State.RUNNING, attempt=self.run.attempt + 1)
        return True

    def _move(self, state: State, **changes: object) -> None:
        until = clock.now() + min(1.0, self.lease.remaining)
        moved = drive(self.ledger.insist(self.run, state, self.authority, until, **changes))
        # A state in between that could not be written is no reason to stop: the last one counts.
        self.run = moved or self.run

    def _end(self, end: End) -> Run | None:
        lease = self.lease
        until = max(lease.belief.proof.deadline, clock.now() + 1.0)
        ended = drive(
            self.ledger.insist(
                self.run,
                end.state,
                self.authority,
                until,
                ended=clock.wall(),
                code=end.code,
                why=end.why,
                output=end.output,
            )
        )
        self._tell(end, ended)
        return ended

    def _tell(self, end: End, ended: Run | None) -> None:
        seconds = clock.wall() - (self.run.started or clock.wall())
        facts = {"slot": self.run.slot, "attempt": self.run.attempt, "code": end.code}
        if ended is None:
            why = f"{end.why or end.state}, but the lease was lost before that was on record"
            self.said("lost", **facts, seconds=round(seconds, 3), why=why)
            return
        self.said(str(end.state), **facts, seconds=round(seconds, 3), why=end.why or None)

    def prune(self, chance: float) -> None:
        """Keep the ledger within its bounds, now and then; `chance`: from [0, 1)."""
        if chance * min(_PRUNE_EVERY, max(1, self.keep_runs // 4)) >= 1:
            return
        try:
            drive(self.ledger.prune(self.keep_runs, self.keep_for, clock.wall()))
        except StoreError as error:
            self.said("store", why=f"the ledger could not be pruned: {error}")


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
