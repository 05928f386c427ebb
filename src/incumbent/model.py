"""The values that cross the store contract: frozen, plain, and the same for every engine.

Times in values are durations in seconds as the *store* counts them; instants never cross the
contract, because no two machines agree on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "ABSENT",
    "ONCE",
    "OVERTAKEN_MOST",
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
"""Bytes of metadata a holder may leave beside its lease."""


OVERTAKEN_MOST: Final = 4
"""How often others may come before the first in line that did not ask for fairness."""

UNLIMITED: Final = 0
"""The permits of readers: any number of them at once."""

ONCE: Final = "once"
"""The slot that `once_per` counts where no other is named."""


class Key(NamedTuple):
    """The thing that is leased: a name in a namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Queue(NamedTuple):
    """A place in the line of waiters.

    `heartbeat`: for how many seconds the first in line may stay silent when its turn has come.
    Until then a fair one is overtaken by nobody, any other at most OVERTAKEN_MOST times in a row.
    """

    heartbeat: float
    fair: bool = False


class Slot(NamedTuple):
    """A piece of work that may be claimed once: refused to all others for `keep` seconds."""

    name: str
    keep: float


@dataclass(frozen=True, slots=True)
class Ask:
    """What a take asks for. Times are seconds, `meta` is at most 1 KiB.

    `lock_delay`: the part of `ttl` that the asker does not believe in: what is shorter by as much
    is no use to it.
    `keep_record`: for how long the store keeps the last token and the history after the last take.
    `candidacy`: for how long a refused take leaves its holder among the record's candidates.
    `permits`: None excludes everybody else; a number shares the lease with as many others who ask
    with the same number, itself included, and UNLIMITED with all who ask so.
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


@dataclass(frozen=True, slots=True)
class Holding:
    """What a store says of one present holder. For people; never the ground of a decision.

    `permits`: with how many it is shared (UNLIMITED: with all readers), None if it is exclusive.
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
    """The lease is the claim's. `epoch` names the incarnation of the store that granted it.

    `ttl`: seconds, from when the take was sent, for which the store surely keeps it. That may be
    less than was asked, where a store keeps leases in one session: renewals bring the rest.
    """

    claim: str
    token: int
    ttl: float
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not granted. `seen` is what `wait_change` needs to know what the asker has already seen.

    `permits`: it is held by others who asked with that number of permits, which is not ours.
    `retry_after`: seconds until the first of the `holders` who are in the way may be gone.
    """

    reason: Literal["held", "paused", "closed", "reserved", "permits"]
    holders: tuple[Holding, ...] = ()
    retry_after: float | None = None
    seen: str = ""
    permits: int = field(default=UNLIMITED, kw_only=True)


@dataclass(frozen=True, slots=True)
class Queued(Refused):
    """Not yet: `place` others stand in line before this claim.

    `reserved` by a line: the lease is free, and until `retry_after` it is the first one's turn.
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

    `prepared` is the store's: what it needs to send them again, kept for as long as they last.
    """

    prepared: Any = None


class Notice(NamedTuple):
    """A message to the present holder, delivered with its renewal."""

    kind: Literal["pause", "resign", "transfer", "break"]
    who: str = ""
    reason: str = ""
    to: str = ""


class Renewed(NamedTuple):
    """The store's ttl is at least what was asked, counted from when it handled the request."""

    notices: tuple[Notice, ...] = ()


class Gone(NamedTuple):
    """The store has no record of that claim."""

    reason: Literal["taken", "store_restarted"] = "taken"


class Unproved(NamedTuple):
    """No answer for this lease of a batch, from a store of several parts; the rest have theirs."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """The claim's record is gone, or turned into a closing."""


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
"""None writes unconditionally: for an operator's switch, whose last word counts."""


class Stored(NamedTuple):
    """The field now has this version (0: it was removed)."""

    version: int


@dataclass(frozen=True, slots=True)
class Stale:
    """The guard did not hold; nothing was written."""


class Field(NamedTuple):
    """A small value beside the lease."""

    value: bytes
    version: int


class Past(NamedTuple):
    """One holding of the bounded history; instants are the store's wall clock, for people."""

    holder: str
    token: int
    started: float
    ended: float | None = None


class Candidate(NamedTuple):
    """One that was refused and has said it stands by: for another `remaining` seconds."""

    holder: str
    remaining: float


@dataclass(frozen=True, slots=True)
class Record:
    """All a store knows of a key. For people; never the ground of a decision.

    `candidates` in the order of their names; `seen` is what `wait_change` compares, as in Refused;
    `reserved_for` is the only holder that `closed_for` admits (empty: it admits nobody).
    `nodes`: what each server of a store of several says, a line each; `undecided`: too few of them
    say the same to know whether it is held.
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
    """What a store can do. Asking for what it lacks fails when the lock is built.

    `ttl_min`, `ttl_max`, `ttl_unit` are seconds; `waits` says how a waiter learns of a change;
    `ttl_change`: a renewal may ask another ttl; `ttl_clock`: the clock that counts a ttl down;
    `round_trips`: of an exclusive take, renew and give each; `survives_failover`: leases outlive
    a restart and a failover; `queue`: waiters stand in line (`Ask.queue`); `candidates`: it lists
    who stands by (`Ask.candidacy`); `reservations`: a give may reserve the lease for one holder;
    `refuses_late`: a take that arrives after its claim was given without a token is refused;
    `shared`: several may hold a lease at once (`Ask.permits`);
    `turns`: without a line, waiters (`Ask.queue`) look one after the other, in no promised order.
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
    ttl_clock: Literal["boottime", "wall", "consensus"] = "wall"
    survives_failover: bool = False
    native_async: bool = True
    round_trips: int = 1
    candidates: bool = False
    reservations: bool = False
    refuses_late: bool = False
    turns: bool = False

    def __hash__(self) -> int:
        # A part says enough, for there are few engines; a lock that is made asks for it.
        return hash((self.ttl_min, self.ttl_unit, self.waits))


TakeOutcome: TypeAlias = "Granted | Queued | Refused"
RenewOutcome: TypeAlias = "Renewed | Gone | Unproved"
GiveOutcome: TypeAlias = "Released | Gone"
PutOutcome: TypeAlias = "Stored | Stale"
