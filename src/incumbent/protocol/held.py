"""One claim on a lease: what was wanted, and the machine that says what may be believed of it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from incumbent.lease import LeaseMachine, State
from incumbent.model import Ask, Key, Notice, Renewal
from incumbent.policy import Policy
from incumbent.protocol.port import Debt, Port
from incumbent.stores.base import Parting

if TYPE_CHECKING:
    from incumbent.election import Rank

_PLAIN: Final[Parting] = {}
RESERVED = 5.0
"""Seconds, at most one ttl, for which a name waits for the successor that was named."""


class Wanted(NamedTuple):
    """What a lock asks for; `at_most_for` and `at_least_for` are seconds from the grant.

    `ask` is that of a lock that tries once, `waiting` that of one that waits in line.
    """

    key: Key
    ask: Ask
    waiting: Ask
    policy: Policy
    at_most_for: float = inf
    at_least_for: float = 0.0
    rank: Rank | None = None

    def asking(self, **changed: Any) -> Wanted:
        """The same with other fields of `Ask`, whether it waits or not."""
        ask, waiting = replace(self.ask, **changed), replace(self.waiting, **changed)
        return self._replace(ask=ask, waiting=waiting)

    @property
    def slot(self) -> str | None:
        """The slot that is claimed along with the lease."""
        return None if self.ask.slot is None else self.ask.slot.name


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Held:
    """A claim of this process. Collected while it holds, it is given back with a ResourceWarning.

    `ref` is what the keeper remembers, so that it never keeps alive a lease nobody can release.
    """

    port: Port
    wanted: Wanted
    claim: str = field(init=False)
    machine: LeaseMachine = field(init=False)
    ref: weakref.ref[Held] = field(init=False)
    began: float = field(default=inf, init=False)
    """The instant of the grant."""
    unsure: int = field(default=0, init=False)
    """Takes that got no answer, and may arrive at any time."""
    failures: int = field(default=0, init=False)
    """Renewals in a row without proof."""
    in_line: bool = field(default=False, init=False)
    """Whether the store was told that this claim waits."""
    watchers: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """Called once when the holding ends, however it ends; they neither block nor raise."""
    askers: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """Called once after the next renewal, whatever came of it; likewise."""
    followers: tuple[Callable[[], None], ...] = field(default=(), init=False)
    """Called after every proved renewal, until the holding ends; likewise."""
    changed: bool = field(default=True, init=False)
    """Whether `renewal` will be another object than it was."""
    meta: bytes | None = field(default=None, init=False)
    """Metadata that every renewal carries, None: what the take said. See `proclaim`."""
    proclaimed: bytes | None = field(default=None, init=False)
    """The metadata of the last renewal that was proved."""
    notice: Notice | None = field(default=None, init=False)
    """The operator's word that ended the holding."""
    reserve_for: str | None = field(default=None, init=False)
    """The successor that the holder itself chose."""
    inner: list[None] | None = field(default=None, init=False)
    """One for each further lease that a reentrant lock gave on it. None: it gives no more."""
    bucket: dict[weakref.ref[Held], None] | None = field(default=None, init=False)
    """Where the keeper remembers it."""
    _renewal: Renewal | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.claim = self.port.draw_claim()
        self.machine = LeaseMachine(self.wanted.policy, self.wanted.at_most_for)
        self.ref = weakref.ref(self)

    def proclaim(self, meta: bytes | None) -> None:
        """New metadata: sent with every renewal from now on, so that the last word stays."""
        self.meta = meta
        self.changed = True

    def renewal(self) -> Renewal:
        """The request that renews it: the same object, for as long as it says the same."""
        kept = self._renewal
        if kept is None or self.changed:
            # First, so that a change that another thread makes now is not forgotten.
            self.changed = False
            wanted, machine = self.wanted, self.machine
            kept = self._renewal = Renewal(
                wanted.key,
                self.claim,
                machine.token,
                wanted.policy.kept,
                machine.epoch,
                self.meta,
                self.shared,
            )
        return kept

    def let_go_of_one(self) -> bool:
        """Whether there are further leases on it, of which there is now one less."""
        try:
            if self.inner:
                self.inner.pop()
                return True
        except IndexError:
            pass  # another thread was faster
        self.inner = None
        return False

    def parted(self) -> Held:
        """How it looks to a lease that was let go of while there were others on it."""
        seen, machine = Held(self.port, self.wanted), self.machine
        seen.machine.token, seen.machine.bound = machine.token, machine.bound
        seen.machine.stop_at, seen.machine.state = machine.stop_at, State.RELEASED
        return seen

    @property
    def successor(self) -> str | None:
        """For whom the name is kept free after a release."""
        return self.reserve_for or (self.notice.to if self.notice else "") or None

    @property
    def shared(self) -> bool:
        """Whether others may hold it at the same time."""
        return self.wanted.ask.permits is not None

    def parting(self, now: float, *, undo_slot: bool) -> Parting:
        """The keywords of a give at `now`; see Debt.parting."""
        wanted = self.wanted
        plain = self.reserve_for is None and self.notice is None and not wanted.at_least_for
        if plain and wanted.ask.permits is None and wanted.ask.slot is None:
            return _PLAIN
        return self.debt(now, undo_slot=undo_slot).parting(now)

    def debt(self, now: float, *, undo_slot: bool) -> Debt:
        """What is owed to the store, until time has settled it."""
        wanted = self.wanted
        slot = wanted.slot if undo_slot else None
        closed_until = -inf if undo_slot else self.began + wanted.at_least_for
        # A grant answers for one of its takes, and nobody knows for which.
        doubt = self.unsure + bool(self.machine.token) if self.unsure else 0
        return Debt(
            wanted.key,
            self.claim,
            slot,
            now + wanted.policy.kept + wanted.policy.request_timeout,
            doubt,
            closed_until,
            self.successor,
            now + min(wanted.policy.ttl, RESERVED),
            shared=self.shared,
        )

    def take_watchers(self) -> tuple[Callable[[], None], ...]:
        """The callbacks for the end of the holding; each is returned only once."""
        watchers = self.watchers + self.askers
        self.watchers = self.askers = self.followers = ()
        return watchers

    def tell_askers(self) -> None:
        """Call those who asked for a renewal, which was tried."""
        askers, self.askers = self.askers, ()
        for asker in askers:
            asker()

    def __del__(self) -> None:
        if self.machine.state is State.HELD:
            self.machine.left()
            self.port.hand_over(self.debt(self.port.now(), undo_slot=False))
            warnings.warn(
                f"the lease on {self.wanted.key.name!r} was dropped without a release; it is being"
                " given back: use `with`, or keep it and call release()",
                ResourceWarning,
                stacklevel=2,
            )
