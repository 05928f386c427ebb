"""The values that cross the store contract: frozen, plain, and the same for every engine.

Times in values are durations in seconds by the *store's* clock; instants never cross the contract,
because no two machines agree on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "ABSENT",
    "ONCE",
    "OVERTAKEN_MOST",
    "PLAIN",
    "Absent",
    "Ask",
    "Batch",
    "ByClaim",
    "ByVersion",
    "Candidate",
    "Capabilities",
    "Field",
    "GiveOutcome",
    "Gone",
    "Granted",
    "Guard",
    "Holding",
    "Key",
    "Notice",
    "Parting",
    "Past",
    "PutOutcome",
    "Queue",
    "Queued",
    "Record",
    "Refused",
    "Released",
    "RenewOutcome",
    "Renewal",
    "Renewed",
    "Slot",
    "Stale",
    "Stored",
    "TakeOutcome",
    "Unproved",
]

META_MAX: Final = 1024
"""Bytes of metadata that a holder may store beside its lease."""


OVERTAKEN_MOST: Final = 4
"""How many times in a row others may overtake the first waiter, unless it asked to be `fair`."""

UNLIMITED: Final = 0
"""The permits of readers: any number of them at once."""

ONCE: Final = "once"
"""The slot that `once_per` counts if no other is named."""


class Key(NamedTuple):
    """The identity of a lease: a name in a namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Queue(NamedTuple):
    """A request to wait in the queue.

    `heartbeat`: the seconds that the first waiter may stay silent when its turn has come. Until
    then nobody overtakes a `fair` waiter, and others at most OVERTAKEN_MOST times in a row.
    """

    heartbeat: float
    fair: bool = False


class Slot(NamedTuple):
    """A piece of work that may be claimed once: refused to all others for `keep` seconds."""

    name: str
    keep: float


@dataclass(frozen=True, slots=True)
class Ask:
    """The request of a take. Times are seconds; `meta` is at most 1 KiB.

    `ttl`: the time that the store keeps the lease without a renewal (`Policy.kept_for`).
    `lock_delay`: the last part of `ttl`, in which the holder does not believe in the lease: a grant
    that is shorter by that much is useless.
    `keep_record`: the time that the store keeps the last token and the history after the last take.
    `candidacy`: the time that a refused take leaves its holder among the record's candidates.
    `permits`: None: exclusive; a number: shared by at most that many holders, all of whom ask with
    the same number; UNLIMITED: shared by all who ask with UNLIMITED.
    """

    ttl: float
    holder: str
    permits: int | None = None
    queue: Queue | None = None
    meta: bytes = b""
    slot: Slot | None = None
    keep_record: float = 86_400.0
    candidacy: float = 0.0
    lock_delay: float = 0.0


class Parting(NamedTuple):
    """The effects of a give besides the end of the claim; see `stores.base.Store.give`.

    `closed_for`: the seconds for which the store refuses every holder afterwards; with
    `reserve_for`, every holder but the one of that name, whose grant ends the reservation.
    `slot`: the slot to give back, if the claim took it.
    `shared`: the claim was made with permits; never True for a store that cannot share leases.
    """

    closed_for: float = 0.0
    reserve_for: str | None = None
    slot: str | None = None
    shared: bool = False


PLAIN: Final = Parting()
"""Nothing besides."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A current holder, as the store reports it: for display, never for decisions.

    `permits`: as in Ask: the number of holders at once (UNLIMITED: all readers); None: exclusive.
    """

    holder: str
    token: int = 0
    remaining: float | None = None
    ttl: float | None = None
    held_for: float | None = None
    meta: bytes = b""
    claim: str = field(default="", repr=False)
    foreign: bool = False
    permits: int | None = None


class Granted(NamedTuple):
    """The claim has the lease. `epoch` names the incarnation of the store that granted it.

    `ttl`: seconds, from the sending of the take, for which the store surely keeps the lease: fewer
    than asked, if the store keeps several leases in one session; renewals bring the rest.
    """

    claim: str
    token: int
    ttl: float
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not granted. `seen`: an opaque text for the state of the name, which `wait_change` compares.

    `reason` "used": the lease is free, but the slot was claimed before, by `holders`. "reserved":
    a release keeps the name for `holders`. "turn": it is the turn of `holders`, first in line.
    `permits`: the number with which the present holders asked, if it differs from the caller's.
    `retry_after`: seconds until the first of the `holders` in the way may be gone.
    `holder_may_be_dead`: the holder in the way may be dead; only watching it until then shows that.
    """

    reason: Literal["held", "used", "paused", "closed", "reserved", "turn", "permits"]
    holders: tuple[Holding, ...] = ()
    retry_after: float | None = None
    seen: str = ""
    permits: int = field(default=UNLIMITED, kw_only=True)
    holder_may_be_dead: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Queued(Refused):
    """Not granted yet: `place` waiters are before this claim in the queue.

    If the reason is "turn", only the first waiter may take the lease until `retry_after`.
    """

    place: int = 0


@dataclass(frozen=True, slots=True)
class Renewal:
    """One lease in a batch of renewals; `shared` if it was asked for with permits."""

    key: Key
    claim: str
    token: int
    ttl: float
    epoch: str = ""
    meta: bytes | None = None
    shared: bool = False


class Batch(tuple[Renewal, ...]):  # noqa: SLOT001 - a tuple's subclass has a dict or nothing
    """Renewals that are sent again and again, as the same object while nothing changes.

    `prepared` belongs to the store: data for sending them again, which lives as long as the batch.
    """

    prepared: Any = None


class Notice(NamedTuple):
    """A message to the current holder, delivered with its renewal."""

    kind: Literal["pause", "resign", "transfer", "break"]
    who: str = ""
    reason: str = ""
    to: str = ""


class Renewed(NamedTuple):
    """The store keeps the lease for at least the requested ttl from its handling of the request."""

    notices: tuple[Notice, ...] = ()


class Gone(NamedTuple):
    """The store has no record of the claim."""

    reason: Literal["taken", "store_restarted"] = "taken"


class Unproved(NamedTuple):
    """A store of several parts has no answer for this lease of a batch, but has for the others."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """The claim's record is gone, or has become one that keeps the name closed."""


class ByClaim(NamedTuple):
    """Write only if this claim holds the lease with this token."""

    claim: str
    token: int


class ByVersion(NamedTuple):
    """Write only if the field still has this version."""

    version: int


@dataclass(frozen=True, slots=True)
class Absent:
    """Write only if the field does not exist."""


ABSENT: Final = Absent()
Guard: TypeAlias = "ByClaim | ByVersion | Absent | None"
"""The condition of a write; None: no condition, for operators' switches: the last write counts."""


class Stored(NamedTuple):
    """The field now has this version (0: it was removed)."""

    version: int


@dataclass(frozen=True, slots=True)
class Stale:
    """The guard did not hold; nothing was written."""


class Field(NamedTuple):
    """A small value stored beside the lease."""

    value: bytes
    version: int


class Past(NamedTuple):
    """One holding of the bounded history; instants by the store's wall clock, for display."""

    holder: str
    token: int
    started: float
    ended: float | None = None


class Candidate(NamedTuple):
    """A refused holder that waits as a candidate, listed for another `remaining` seconds."""

    holder: str
    remaining: float


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a store knows about a key: for display, never for decisions.

    `candidates` are in the order of their names; `seen` is for `wait_change`, as in Refused;
    `reserved_for` is the only holder that may take the lease during `closed_for` (empty: none may).
    `nodes`: the answer of each server, a line each, if the store has several; `undecided`: too few
    servers agree to know whether the lease is held.
    """

    key: Key
    holdings: tuple[Holding, ...] = ()
    closed_for: float = 0.0
    fields: Mapping[str, Field] = field(default_factory=dict)
    slots: Mapping[str, float] = field(default_factory=dict)
    history: tuple[Past, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    seen: str = ""
    reserved_for: str = ""
    nodes: tuple[str, ...] = field(default=(), compare=False)
    undecided: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of a store. A lock that needs a missing one cannot be built.

    `ttl_min`, `ttl_max`, `ttl_unit` are seconds; `waits` says how a waiter learns of a change;
    `ttl_change`: a renewal may ask for another ttl; `ttl_clock`: what counts a ttl down: the clock
    since boot of the one host, the wall clock of the server, the consensus of several servers, or
    each client's, for as long as it has seen a lease unchanged; `survives_restart`: leases outlive
    a restart that keeps the data; `survives_failover`: leases outlive a takeover by another
    server; `round_trips`: the most for an exclusive take or give of a name that was held before, or
    for a batch of renewals; `queue`: waiters have an order (`Ask.queue`); `candidates`: records
    list waiting candidates (`Ask.candidacy`); `reservations`: a give may reserve the lease for one
    holder; `refuses_late`: a take is refused if its claim was given without a token before it
    arrived; `shared`: several holders may have a lease at once (`Ask.permits`); `turns`: without a
    queue, waiters (`Ask.queue`) check one after the other, in no fixed order.
    """

    shared: bool = False
    queue: bool = False
    fencing: bool = True
    fields: bool = True
    slots: bool = True
    notices: bool = True
    waits: Literal["event", "pubsub", "watch", "poll"] = "poll"
    ttl_min: float = 0.1
    ttl_max: float = 86_400.0
    ttl_unit: float = 0.001
    ttl_change: bool = True
    ttl_clock: Literal["boottime", "wall", "consensus", "observed"] = "wall"
    survives_restart: bool = False
    survives_failover: bool = False
    round_trips: int = 1
    candidates: bool = False
    reservations: bool = False
    refuses_late: bool = False
    turns: bool = False


TakeOutcome: TypeAlias = "Granted | Queued | Refused"
RenewOutcome: TypeAlias = "Renewed | Gone | Unproved"
GiveOutcome: TypeAlias = "Released | Gone"
PutOutcome: TypeAlias = "Stored | Stale"
