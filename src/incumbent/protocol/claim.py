"""One claim on a lease: what was wanted, and the machine that says what may be believed."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from incumbent.lease import LeaseMachine, LeaseState
from incumbent.model import PLAIN, Ask, Key, Notice, Parting, Renewal
from incumbent.policy import Policy
from incumbent.protocol.port import Debt, Port

if TYPE_CHECKING:
    from incumbent.election import Priority
    from incumbent.errors import StoreError

RESERVED = 5.0
"""Seconds for which a released name is reserved for a named successor; at most one ttl."""


class LeaseRequest(NamedTuple):
    """A lock's request; `at_most_for` and `at_least_for` are seconds from the grant.

    A lock that tries once sends `unqueued`; a lock that waits in line sends `queued`. `poll_every`:
    seconds between two takes while a foreign client holds the lease. `outage_most`: seconds of an
    outage after which a wait fails. `outwaits_slots`: it waits for a used slot without end.
    """

    key: Key
    unqueued: Ask
    queued: Ask
    policy: Policy
    at_most_for: float = inf
    at_least_for: float = 0.0
    rank: Priority | None = None
    poll_every: float = inf
    outage_most: float = inf
    outwaits_slots: bool = False

    def asking(self, **changed: Any) -> LeaseRequest:
        """A copy whose `unqueued` and `queued` have the `changed` fields."""
        unqueued, queued = replace(self.unqueued, **changed), replace(self.queued, **changed)
        return self._replace(unqueued=unqueued, queued=queued)

    @property
    def holder(self) -> str:
        """The holder's name, as others will see it."""
        return self.unqueued.holder

    @property
    def permits(self) -> int | None:
        """See Ask.permits."""
        return self.unqueued.permits

    @property
    def slot(self) -> str | None:
        """The slot that is claimed along with the lease."""
        return None if self.unqueued.slot is None else self.unqueued.slot.name


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Claim:
    """A claim of this process. If it is garbage-collected while held, it is released.

    The keeper remembers only `ref`, so it never keeps alive a lease that nobody can release.
    """

    port: Port
    wanted: LeaseRequest
    id: str = field(init=False)
    machine: LeaseMachine = field(init=False)
    ref: weakref.ref[Claim] = field(init=False)
    began: float = field(default=inf, init=False)
    """The instant of the grant."""
    takes_in_doubt: int = field(default=0, init=False)
    """The number of takes that got no answer, and may still arrive."""
    failures: int = field(default=0, init=False)
    """The number of renewals in a row that brought no proof."""
    on_trouble: Callable[[StoreError], None] | None = field(default=None, init=False)
    """The user's callback: renewals begin to fail. It may block; see LockSettings."""
    in_line: bool = field(default=False, init=False)
    """Whether the store has this claim in its line of waiters."""
    watchers: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """Callbacks, called once when the holding ends, however it ends; none blocks or raises."""
    on_next_renewal: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """Callbacks, called once after the next renewal, even a failed one; none blocks or raises."""
    on_each_renewal: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """Callbacks, called after each proved renewal until the holding ends; none blocks or raises."""
    changed: bool = field(default=True, init=False)
    """Whether `renewal` has to make a new object."""
    meta: bytes | None = field(default=None, init=False)
    """The metadata that every renewal carries; None keeps the take's. See `proclaim`."""
    proclaimed: bytes | None = field(default=None, init=False)
    """The metadata of the last renewal that was proved."""
    notice: Notice | None = field(default=None, init=False)
    """The operator's notice that ended the holding."""
    reserve_for: str | None = field(default=None, init=False)
    """The successor that the holder itself chose."""
    reentries: list[None] | None = field(default=None, init=False)
    """An entry for each further lease that a reentrant lock gave on this claim; None if the lock is
    not reentrant, or the claim was released."""
    bucket: dict[weakref.ref[Claim], None] | None = field(default=None, init=False)
    """The keeper's bucket that has this claim."""
    _renewal: Renewal | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.id = self.port.draw_claim()
        self.machine = LeaseMachine(self.wanted.policy, self.wanted.at_most_for)
        self.ref = weakref.ref(self)

    def proclaim(self, meta: bytes | None) -> None:
        """Send `meta` with every renewal from now on, so that the latest metadata stay."""
        self.meta = meta
        self.changed = True

    def renewal(self) -> Renewal:
        """The request that renews this claim: the same object while its content is the same."""
        kept = self._renewal
        if kept is None or self.changed:
            # Reset first, so that a change by another thread from here on is not forgotten.
            self.changed = False
            wanted, machine = self.wanted, self.machine
            kept = self._renewal = Renewal(
                wanted.key,
                self.id,
                machine.token,
                wanted.policy.kept_for,
                machine.epoch,
                self.meta,
                wanted.permits is not None,
            )
        return kept

    def drop_reentry(self) -> bool:
        """Remove one of the further leases on this claim; False if none was left."""
        try:
            if self.reentries:
                self.reentries.pop()
                return True
        except IndexError:
            pass  # another thread was faster
        # From here on the holding ends, so nobody may enter it again.
        self.reentries = None
        return False

    def released_copy(self) -> Claim:
        """A released copy, for a lease that was released while others share this claim."""
        seen, machine = Claim(self.port, self.wanted), self.machine
        seen.machine.token, seen.machine.at_most_until = machine.token, machine.at_most_until
        seen.machine.stop_at, seen.machine.state = machine.stop_at, LeaseState.RELEASED
        return seen

    def parting(self, now: float, *, undo_slot: bool) -> Parting:
        """The further effects of a give at `now`; see Debt.parting."""
        wanted = self.wanted
        plain = self.reserve_for is None and self.notice is None and not wanted.at_least_for
        if plain and wanted.unqueued.permits is None and wanted.unqueued.slot is None:
            return PLAIN
        return self.debt(now, undo_slot=undo_slot).parting(now)

    def debt(self, now: float, *, undo_slot: bool) -> Debt:
        """The release that is owed to the store, until the ttl ends the claim."""
        wanted = self.wanted
        # Work that never began closes nothing for at_least_for, and leaves its slot unused.
        slot = wanted.slot if undo_slot else None
        closed_until = -inf if undo_slot else self.began + wanted.at_least_for
        # The grant answered one of the takes, and nobody knows which: the others stay in doubt.
        in_doubt = self.takes_in_doubt + bool(self.machine.token) if self.takes_in_doubt else 0
        return Debt(
            wanted.key,
            self.id,
            slot,
            now + wanted.policy.kept_for + wanted.policy.request_timeout,
            in_doubt,
            closed_until,
            self.reserve_for or (self.notice.to if self.notice else "") or None,
            now + min(wanted.policy.ttl, RESERVED),
            shared=wanted.permits is not None,
        )

    def take_watchers(self) -> tuple[Callable[[], None], ...]:
        """Remove and return the callbacks for the end of the holding."""
        # Those who wait for a renewal too: there will be none.
        watchers = self.watchers + self.on_next_renewal
        self.watchers = self.on_next_renewal = self.on_each_renewal = ()
        return watchers

    def __del__(self) -> None:
        # Making it may have failed: then there is no machine.
        if hasattr(self, "machine") and self.machine.state is LeaseState.HELD:
            # The machine first, so that no thread that still has it believes in the lease.
            self.machine.note_leaving()
            # Not logged here: a finalizer may run while this thread is in a handler of the log.
            debt = self.debt(self.port.now(), undo_slot=False)
            self.port.owe(replace(debt, collected=True))
            warnings.warn(
                f"the lease on {self.wanted.key.name!r} was dropped without a release; it is being"
                " given back: use `with`, or keep it and call release()",
                ResourceWarning,
                stacklevel=2,
            )
