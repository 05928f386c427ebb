"""What this instance is doing, as its pages show it.

The main loop tells (`standby`, `leading`, ...); whoever asks gets a `View`. What a view says of the
lease is asked of the lease at that instant: a notification that was missed cannot make it wrong.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from incumbent import clock
from incumbent._drive.keeper import Keeper, Stats
from incumbent.handles import LeaseHandle
from incumbent.stores.waiting import subscription_losses

__all__ = ["LOSSES", "Situation", "View"]

LOSSES: Final = (
    "expired",
    "taken",
    "broken",
    "paused",
    "store_restarted",
    "at_most_for",
    "forked",
)
"""The reasons of LeaseLost with which a term ends."""

_IN_ORDER: Final = frozenset({"signal", "resign", "resigned", "transfer", "transferred"})
"""Causes (the part before a colon) that somebody wanted: no loss."""

_START_UP: Final = 30.0
"""Seconds from the start to the loop's first promise."""
_SLACK: Final = 5.0
"""Seconds by which a loop on a busy machine may be late."""


@dataclass(frozen=True, slots=True)
class View:
    """This instance at one instant. All durations are seconds."""

    at: float
    """The instant on `clock.now`; `wall` is the same one on the wall clock, for people."""
    wall: float
    name: str
    holder: str
    isolation: str
    role: str
    """"starting", "standby", "leading", "backing_off", "ended" (between terms), "stopping"."""
    leader: str | None
    """Who leads, as far as is known here; of another it may be old."""
    leading: bool
    """Whether this instance holds the lease, with a proof."""
    term: int
    """The present term of this instance, else its last; 0 before the first."""
    proven_for: float
    """How long the lease is proved without another renewal; 0.0 when it is not."""
    late: float
    """How long the main loop is overdue; 0.0 while it keeps its promises."""
    unheard_for: float
    """How long ago the store answered; inf before its first answer."""
    patience: float
    """How long an answer of the store counts as recent."""
    store_up: bool
    """Whether the last question to the store was answered."""
    terms: int = 0
    restarts: int = 0
    losses: Mapping[str, int] = field(default_factory=dict)
    """Lost terms by reason."""
    renewals: int = 0
    renewal_failures: int = 0
    renewal_took: float = 0.0
    subscription_losses: int = 0
    """How often a connection by which this process waits was lost."""

    @property
    def healthy(self) -> bool:
        """Whether the main loop turns."""
        return self.late <= _SLACK

    @property
    def ready(self) -> bool:
        """Whether this instance leads or could take over; never the same as "leads"."""
        return self.role != "stopping" and self.healthy and self.unheard_for <= self.patience


class Situation:
    """The state of one instance; any thread may tell or look. `ttl`: that of the lease, seconds."""

    def __init__(
        self, name: str, holder: str, isolation: str = "pgroup", *, ttl: float = 15.0
    ) -> None:
        # Reentrant, for a signal handler may tell while its thread is telling.
        self._mutex = threading.RLock()
        self._fixed = (name, holder, isolation)
        self._patience = 2 * ttl
        self._role = "starting"
        self._leader: str | None = None
        self._lease: LeaseHandle | None = None
        self._keeper: Keeper | None = None
        self._promise = clock.now() + _START_UP
        self._answered_at = -inf
        self._store_up = False
        self._term = self._terms = self._restarts = 0
        self._losses: Counter[str] = Counter()
        self._listeners: tuple[Callable[[], None], ...] = ()

    # -- what the main loop tells ------------------------------------------------------------

    def standby(self, leader: str | None) -> None:
        """A candidate: `leader` holds the lease, or nobody known does."""
        self._become("standby", leader)

    def leading(self, lease: LeaseHandle) -> None:
        """A term began."""
        with self._mutex:
            if lease is not self._lease:
                self._terms += 1
            self._lease, self._term = lease, lease.fencing_token
            # Its counters go on over all terms, for one process has one keeper a store.
            self._keeper = lease._link.keeper
        self.answered()
        self._become("leading", None)

    def backing_off(self) -> None:
        """Waiting before standing again."""
        self._become("backing_off", None)

    def stopping(self) -> None:
        """On the way to the exit of this process; there is no way back."""
        self._become("stopping", self._leader)

    def ended(self, cause: str) -> None:
        """The term ended. `cause`: a reason of LeaseLost, "signal:SIGTERM", or "" (by itself)."""
        kind = cause.partition(":")[0]
        with self._mutex:
            self._lease = None
            if kind and kind not in _IN_ORDER:
                self._losses[kind] += 1
        self._become("ended", None)

    def restarted(self) -> None:
        """A command was started again."""
        with self._mutex:
            self._restarts += 1

    def pulse(self, until: float) -> None:
        """The main loop turned, and promises to do so again by `until` (an instant of clock.now).

        A promise of never (inf) makes /healthz say nothing: wait in bounded steps.
        """
        self._promise = until

    def answered(self) -> None:
        """The store gave an answer, whichever."""
        self._answered_at = clock.now()
        self._set_store(up=True)

    def unanswered(self, error: BaseException | None = None) -> None:
        """The store gave none. `error` is not kept: pages are read by strangers."""
        del error
        self._set_store(up=False)

    # -- what the reporters ask --------------------------------------------------------------

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener`, in the thread that tells, after each change; it must not block."""
        with self._mutex:
            self._listeners += (listener,)

    def look(self) -> View:
        """Everything, now."""
        now = clock.now()
        with self._mutex:
            lease, leader, (name, holder, isolation) = self._lease, self._leader, self._fixed
            remaining = 0.0 if lease is None else lease.remaining
            stats = Stats() if self._keeper is None else self._keeper.stats
            return View(
                at=now,
                wall=clock.wall(),
                name=name,
                holder=holder,
                isolation=isolation,
                role=self._role,
                leader=holder if remaining > 0 else leader,
                leading=remaining > 0,
                term=self._term,
                proven_for=remaining,
                late=max(0.0, now - self._promise),
                unheard_for=max(0.0, now - max(self._answered_at, stats.last_answer)),
                patience=self._patience,
                store_up=self._is_store_up(),
                terms=self._terms,
                restarts=self._restarts,
                losses=dict(self._losses),
                renewals=stats.renewals,
                renewal_failures=stats.failures,
                renewal_took=stats.last_took,
                subscription_losses=subscription_losses(),
            )

    def _is_store_up(self) -> bool:
        """While it leads only the keeper asks the store: then its renewals tell."""
        if self._lease is None:
            return self._store_up
        return self._lease._held.failures == 0

    # -- moves -------------------------------------------------------------------------------

    def _become(self, role: str, leader: str | None) -> None:
        with self._mutex:
            if self._role == "stopping":
                role = "stopping"
            changed = (role, leader) != (self._role, self._leader)
            self._role, self._leader = role, leader
        if changed:
            self._tell()

    def _set_store(self, *, up: bool) -> None:
        with self._mutex:
            changed, self._store_up = self._store_up is not up, up
        if changed:
            self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
