"""One claim on a lease: what was wanted, and the machine that says what may be believed of it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from incumbent._core.port import Debt, Port
from incumbent.lease import LeaseMachine, State
from incumbent.model import Ask, Key, Notice, Renewal
from incumbent.policy import Policy

__all__ = ["RESERVED", "Held", "Wanted"]

RESERVED = 5.0
"""Seconds, at most one ttl, for which a name waits for the successor that was named."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a lock asks for; `at_most_for` and `at_least_for` are seconds from the grant."""

    key: Key
    ask: Ask
    policy: Policy
    at_most_for: float = inf
    at_least_for: float = 0.0

    @property
    def slot(self) -> str | None:
        """The slot that is claimed along with the lease."""
        return None if self.ask.slot is None else self.ask.slot.name


class Held:
    """A claim of this process. Collected while it holds, it is given back with a ResourceWarning.

    `ref` is what the keeper remembers, so that it never keeps alive a lease nobody can release.
    """

    __slots__ = (
        "__weakref__",
        "askers",
        "began",
        "bucket",
        "claim",
        "doubt_until",
        "failures",
        "followers",
        "machine",
        "meta",
        "notice",
        "port",
        "proclaimed",
        "ref",
        "reserve_for",
        "unsure",
        "wanted",
        "watchers",
    )

    def __init__(self, port: Port, wanted: Wanted) -> None:
        self.port = port
        self.wanted = wanted
        self.claim = port.draw_claim()
        self.machine = LeaseMachine(wanted.policy, wanted.at_most_for)
        self.began = inf
        """The instant of the grant."""
        self.unsure = 0
        """Takes that got no answer."""
        self.doubt_until = -inf
        """Until then one of them may still leave a record of this claim."""
        self.failures = 0
        """Renewals in a row that brought no proof."""
        self.watchers: tuple[Callable[[], None], ...] = ()
        """Called once when the holding ends, however it ends; they neither block nor raise."""
        self.askers: tuple[Callable[[], None], ...] = ()
        """Called once after the next renewal, whatever came of it; likewise."""
        self.followers: tuple[Callable[[], None], ...] = ()
        """Called after every proved renewal, until the holding ends; likewise."""
        self.meta: bytes | None = None
        """New metadata: sent with every renewal from now on, so that the last word stays."""
        self.proclaimed: bytes | None = None
        """The metadata of the last renewal that was proved."""
        self.notice: Notice | None = None
        """The operator's word that ended the holding."""
        self.reserve_for: str | None = None
        """The successor that the holder itself chose."""
        self.bucket: dict[weakref.ref[Held], None] | None = None
        """Where the keeper remembers it."""
        self.ref = weakref.ref(self)

    def renewal(self) -> Renewal:
        """The request that renews it."""
        wanted, machine = self.wanted, self.machine
        return Renewal(
            wanted.key, self.claim, machine.token, wanted.policy.ttl, machine.epoch, self.meta
        )

    @property
    def worth_renewing(self) -> bool:
        """Whether a renewal can bring anything: more time, or new metadata to the store."""
        return not self.machine.bounded or self.meta is not self.proclaimed

    @property
    def successor(self) -> str | None:
        """For whom the name is kept free after a release."""
        return self.reserve_for or (self.notice.to if self.notice else "") or None

    def debt(self, now: float, *, undo_slot: bool) -> Debt:
        """What is owed to the store, until time has settled it."""
        wanted = self.wanted
        slot = wanted.slot if undo_slot else None
        closed_until = -inf if undo_slot else self.began + wanted.at_least_for
        # A grant answers for one of its takes, and nobody knows for which.
        doubt = self.unsure + bool(self.machine.token) if now < self.doubt_until else 0
        return Debt(
            wanted.key,
            self.claim,
            slot,
            self.settled_at(now),
            doubt,
            closed_until,
            self.successor,
            now + min(wanted.policy.ttl, RESERVED),
        )

    def doubted(self, now: float) -> None:
        """A take got no answer."""
        self.unsure += 1
        self.doubt_until = self.settled_at(now)

    def settled_at(self, now: float) -> float:
        """When a request sent by `now` has no effect any more, however late it arrives."""
        policy = self.wanted.policy
        return now + policy.ttl + policy.request_timeout

    def take_watchers(self) -> tuple[Callable[[], None], ...]:
        """Who has to be told that the holding ended: each only once."""
        told = self.watchers + self.askers
        self.watchers = self.askers = self.followers = ()
        return told

    def tell_askers(self) -> None:
        """A renewal was tried."""
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
