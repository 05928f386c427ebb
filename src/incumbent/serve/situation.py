"""The state of this instance, for its pages.

The main loop reports (`standby`, `leading`, ...), and `view` returns an `InstanceView`. Each
view asks the lease itself, at that instant, so that a missed report cannot make the view wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from incumbent import clock
from incumbent.election import Absence
from incumbent.errors import StoreError
from incumbent.locks.leases import SingleLease
from incumbent.meters import LOSSES, Sample
from incumbent.model import Refused
from incumbent.runtime.keeper import Keeper

# Causes (the part before a colon) that are no loss; "": the command ended by itself.
_INTENDED: Final = frozenset({"", "signal", "resign", "resigned", "transfer", "transferred"})

# Roles of an instance that does not lead.
_NOT_LEADING: Final = ("standby", "ended", "backing_off")
# Fields of a view: their changes are reported at once, others at the next regular report.
_VISIBLE: Final = ("role", "leader", "store_up", "doing")

# Seconds that the main loop has until its first turn.
_START_UP: Final = 30.0
# Seconds by which the main loop may be late on a busy machine.
_SLACK: Final = 5.0


@dataclass(frozen=True, slots=True)
class InstanceView:
    """This instance at one instant. All durations are seconds."""

    name: str
    holder: str
    isolation: str
    recent_for: float
    """The time for which an answer of the store counts as recent: two ttls."""
    role: str = "starting"
    """"starting", "standby", "leading", "backing_off", "ended" (between terms), "stopping";
    "serving" is an instance that runs jobs."""
    doing: str = ""
    """The line in which an instance that runs jobs describes them."""
    leader: str | None = None
    """The leader as this instance knows it; may be outdated if another instance leads."""
    term: int = 0
    """The present or last term of this instance; 0 before the first."""
    store_up: bool = False
    """Whether the store answered the last request."""
    terms: int = 0
    restarts: int = 0
    losses: Mapping[str, int] = field(default_factory=dict)
    """Lost terms by reason."""
    failures: int = 0
    """Terms that ended badly; the lost ones too."""
    wall: float = 0.0
    """The instant of the view on the wall clock."""
    leading: bool = False
    """Whether this instance holds the lease, with a proof."""
    proven_for: float = 0.0
    """The time for which the lease stays proved without another renewal; 0.0 if it is not."""
    late: float = 0.0
    """The time by which the main loop is overdue; 0.0 while it keeps its promise."""
    unanswered_for: float = inf
    """Time since the last answer of the store; inf before the first."""
    is_candidate: bool = False
    """Whether this instance is a candidate for a leadership."""
    leaderless_for: float = 0.0
    """Time in which this candidate knew of no leader."""

    @property
    def healthy(self) -> bool:
        """Whether the main loop turns."""
        return self.late <= _SLACK

    @property
    def ready(self) -> bool:
        """Whether this instance leads or could take over; it does not say which."""
        return self.role != "stopping" and self.healthy and self.unanswered_for <= self.recent_for


class Situation:
    """The state of one instance. Thread-safe. `ttl`: the ttl of the lease, in seconds.

    `is_candidate`: the instance is a candidate for a leadership.
    """

    def __init__(
        self,
        name: str,
        holder: str,
        isolation: str = "pgroup",
        *,
        ttl: float = 15.0,
        is_candidate: bool = False,
    ) -> None:
        # Reentrant: a signal handler may report while its thread is reporting.
        self._mutex = threading.RLock()
        self._reported = InstanceView(
            name, holder, isolation, recent_for=2 * ttl, is_candidate=is_candidate
        )
        self._absence = Absence()
        self._lease: SingleLease | None = None
        self._keeper: Keeper | None = None
        self._next_turn_by = clock.now() + _START_UP
        self._answered_at = -inf
        self._listeners: tuple[Callable[[], None], ...] = ()

    def note_standby(self, leader: str | None) -> None:
        """Note a candidate that stands by; `leader`: the holder of the lease, if it is known."""
        self._report(role="standby", leader=leader)

    def note_outcome(self, outcome: Refused | StoreError) -> str | None:
        """Note the store's answer to a candidate; returns the holder that it named."""
        if isinstance(outcome, StoreError):
            self.note_unanswered()
            return None
        holder = outcome.holders[0].holder if outcome.holders else None
        self.note_answered()
        self.note_standby(holder if outcome.reason == "held" else None)
        return holder

    def note_leading(self, lease: SingleLease) -> None:
        """Note that a term began."""
        with self._mutex:
            terms = self._reported.terms + (lease is not self._lease)
            self._lease = lease
            # The counters continue over all terms: one process has one keeper a store.
            self._keeper = lease.belief.link.keeper
        self.note_answered()
        self._report(role="leading", leader=None, term=lease.fencing_token, terms=terms)

    def note_backing_off(self) -> None:
        """Note the pause before the next candidacy."""
        self._report(role="backing_off", leader=None)

    def note_serving(self, doing: str) -> None:
        """Note an instance that runs jobs; `doing` is its line about them."""
        if doing != self._reported.doing:
            self._report(role="serving", doing=doing)

    def note_stopping(self) -> None:
        """Note that the process is about to exit. Final: later roles are ignored."""
        self._report(role="stopping")

    def note_ended(self, cause: str, *, failed: bool = False) -> None:
        """Note a term's end. `cause`: a LeaseLost reason, "signal:SIGTERM", "" (by itself).

        `failed`: it ended badly (see TermEnding.failed).
        """
        kind = cause.partition(":")[0]

        def counted(before: InstanceView) -> dict[str, Any]:
            self._lease = None
            lost = {} if kind in _INTENDED else {kind: before.losses.get(kind, 0) + 1}
            return {"losses": {**before.losses, **lost}, "failures": before.failures + failed}

        self._report(counted, role="ended", leader=None)

    def note_restarted(self) -> None:
        """Note that a command was started again."""
        self._report(lambda before: {"restarts": before.restarts + 1})

    def pulse(self, until: float) -> None:
        """Note a turn of the main loop, which promises the next by `until` (as of clock.now).

        If `until` is inf, /healthz never fails: wait in bounded steps instead.
        """
        self._next_turn_by = until

    def note_answered(self) -> None:
        """Note that the store answered, with a yes or a no."""
        # Before the report: a listener that looks at once must find a recent answer.
        self._answered_at = clock.now()
        self._report(store_up=True)

    def note_unanswered(self) -> None:
        """Note that the store gave no answer."""
        self._report(store_up=False)

    def _report(self, counted: Callable[..., Any] = lambda _: {}, **changes: Any) -> None:
        with self._mutex:
            before = self._reported
            # Under the mutex: of two reports at once the second would else count from the same.
            changes |= counted(before)
            if before.role == "stopping":
                # The loop may report once more on its way out.
                changes.pop("role", None)
            after = self._reported = replace(before, **changes)
            led = after.leader is not None or after.role not in _NOT_LEADING
            self._absence.seen(clock.now(), leader=led)
        # Outside of the mutex: a listener may ask for the view, in another thread too.
        if any(getattr(before, name) != getattr(after, name) for name in _VISIBLE):
            for listener in self._listeners:
                listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change, in the reporting thread; it must not block."""
        with self._mutex:
            self._listeners += (listener,)

    def view(self) -> InstanceView:
        """The view at this instant."""
        with self._mutex:
            # Together: a term that ends in between must not show as led by one half of the view.
            now, reported, lease = clock.now(), self._reported, self._lease
            remaining = 0.0 if lease is None else lease.remaining
            last_answer = -inf if self._keeper is None else self._keeper.stats.last_answer
            # While this instance leads, the keeper alone asks the store.
            store_up = reported.store_up if lease is None else lease.belief.answered
            return replace(
                reported,
                wall=clock.wall(),
                leader=reported.holder if remaining > 0 else reported.leader,
                leading=remaining > 0,
                proven_for=remaining,
                late=max(0.0, now - self._next_turn_by),
                unanswered_for=max(0.0, now - max(self._answered_at, last_answer)),
                store_up=store_up,
                leaderless_for=self._absence.seconds(now),
            )

    def samples(self) -> Iterator[Sample]:
        """The metrics of this instance."""
        view = self.view()
        name = (("name", view.name),)
        yield Sample("incumbent_store_up", name, view.store_up)
        if not view.is_candidate:
            return
        yield Sample("incumbent_is_leader", name, view.leading)
        yield Sample("incumbent_term", name, view.term)
        yield Sample("incumbent_terms_total", name, view.terms)
        # Every reason has a series before the first loss: rate() misses one that starts with 1.
        for reason in sorted({*LOSSES, *view.losses}):
            lost = view.losses.get(reason, 0)
            yield Sample("incumbent_terms_lost_total", (*name, ("reason", reason)), lost)
        yield Sample("incumbent_lease_remaining_seconds", name, view.proven_for)
        yield Sample("incumbent_leaderless_seconds_total", name, view.leaderless_for)
        yield Sample("incumbent_restarts_total", name, view.restarts)
        yield Sample("incumbent_terms_failed_total", name, view.failures)
