"""What a store has to be able to do: keep versioned records, and replace one in a single step.

    load   the records of some names, with their versions and the store's clock
    swap   write a record, if the store still has the version that was loaded
    scan   the records whose names begin so

`stores.deciding` makes every operation of the contract of these three, by the rules of a lease
(`incumbent.rules`). A store that can do an operation of its own in one step may answer the quicker
requests, too (`TryTake`, `TryRenew`, `TryGive`, `Join`).

The life of a take, for a name that nobody else asks for, and for one that another client changes:

    client                         store            client                      store
      | load -------------------->   |                | load ----------------->  |
      |   <------------- version 7   |                |   <---------- version 7  |
      | swap 7: granted to me --->   |                |       (another: 7 -> 8)  |
      |   <----------------- done    |                | swap 7: granted to me -> |
                                                      |   <---------- version 8  |
                                                      | (held by another: no)    |

What a store must keep, and what goes wrong otherwise:

- **A version is used once for a name**, also after the name was forgotten, or the data were lost.
  Else: A loads version 3, the record is forgotten, B creates it anew and renews it up to 3, and A's
  swap succeeds: two holders.
- **Every write has another version**, a renewal as well. Else: A loads, B renews, and A swaps by
  its older view, in which B's lease has ended: two holders.
- **The incarnation is compared in the same step.** Else: A loads version 7; B's grant makes 8 of
  it, which is not replicated; a replica with 7 is promoted, and A's swap succeeds there: two
  holders.
- **The clock never runs ahead of the one that ends leases**, see `Seen.now`, and a swap is refused
  if the store's clock is behind the instant by which it was decided (`Swap.not_before`): it stepped
  back, or another server answers.
- **Values beside the record** (`Entry`) are written in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Field, Granted, Key, Released, Renewal, Renewed
from incumbent.rules.codec import Unreadable, decoded, decoded_entry, decoded_waiter
from incumbent.rules.record import (
    NOTHING,
    Beside,
    Entry,
    Grant,
    Instant,
    LeaseRecord,
    Moment,
    Waiter,
)
from incumbent.stores.names import flat

__all__ = [
    "ALL",
    "NOTHING_QUICK",
    "Incarnation",
    "Join",
    "Joined",
    "Load",
    "Place",
    "Quick",
    "QuickRegisters",
    "Registers",
    "Scan",
    "Seen",
    "Swap",
    "Swaps",
    "TryGive",
    "TryRenew",
    "TryTake",
    "Wanted",
    "joined_in",
    "record_in",
    "value_in",
]

T = TypeVar("T")

Place: TypeAlias = tuple[str, str]
"""The kind and name of a value beside a record, as in rules.record.Entry."""
ALL: Final[tuple[Place, ...]] = (("*", ""),)
"""All values beside a record; for display."""


class Incarnation(NamedTuple):
    """The history of its data that a store serves. Another `id`: newer writes may be missing.

    `age`: the seconds since it began, at most; `longest`: the longest ttl, in seconds, that a
    holder from before may believe in. Until that is over, nothing is granted.
    """

    id: str
    age: float = inf
    longest: float = 0.0


class Seen(NamedTuple):
    """What a store has of a name.

    `version` is compared for equality only. `now`: the store's clock, read no later than the
    record (microseconds); `wall`: its wall clock; `floor`: the least token to grant; `beside`: the
    values that were asked for and exist; `joined`: see `Join`. `recalled`: it is what this process
    wrote, and the store was not asked since, see stores.recall.
    """

    record: LeaseRecord
    version: Any
    now: Instant
    wall: int
    incarnation: Incarnation
    floor: int = 0
    beside: Mapping[Place, Beside] = {}
    joined: tuple[Joined, ...] = ()
    recalled: bool = False

    @property
    def moment(self) -> Moment:
        """The instant at which the rules may judge it."""
        return Moment(self.now, self.wall, self.floor, self.incarnation.id)

    def use_of(self, slot: str | None) -> Grant | None:
        """The last grant that used a slot."""
        value = None if slot is None else self.beside.get(("slot", slot))
        return value if isinstance(value, Grant) else None

    def field(self, name: str) -> Field | None:
        """A field."""
        value = self.beside.get(("field", name))
        return value if isinstance(value, Field) else None


class Joined(NamedTuple):
    """A waiter that joined the line after the record was written; `id` is the store's.

    `at`: when it joined, by the store's clock; `looks_in`: see rules.line.join.
    """

    id: Any
    waiter: Waiter
    looks_in: int
    at: Instant


# -- requests --------------------------------------------------------------------------------------


class Load(NamedTuple):
    """Read records. The reply is a Seen for each name, or a StoreError for one that is unreadable.

    An unknown name has the record NOTHING, and a version, too.
    """

    wanted: tuple[Wanted, ...]


class Wanted(NamedTuple):
    """A name, and which values beside its record are needed."""

    key: Key
    beside: tuple[Place, ...] = ()


class Scan(NamedTuple):
    """Read all that is kept of the names that begin so: a list of (Key, Seen)."""

    namespace: str
    prefix: str


class Swap(NamedTuple):
    """Write `record` and `entries` if the store still has what was `seen`.

    `wake`: as in rules.record.Ruling; a store that cannot notify ignores it. `wanted`: what the
    reply needs if it fails. What joined the line, as `seen` has it, is in the record now.
    """

    wanted: Wanted
    seen: Seen
    record: LeaseRecord
    entries: tuple[Entry, ...] = ()
    wake: str = ""

    @property
    def not_before(self) -> Instant:
        """The store refuses the swap while its clock is behind this."""
        return self.seen.now


class Swaps(NamedTuple):
    """Several swaps, each as if it were alone.

    The reply is for each None (it was written), the Seen of what the store has instead, or a
    StoreError if it was certainly not written.
    """

    swaps: tuple[Swap, ...]


class TryTake(NamedTuple):
    """Grant a name to a claim if its record is plain and nobody holds it, as the rules would.

    The reply is Granted, or Seen: nothing was done. It must not be granted after `until`, by the
    store's clock, because its caller may be gone by then.
    """

    key: Key
    claim: str
    ask: Ask


class TryRenew(NamedTuple):
    """Renew leases whose record is plain: for each Renewed, or None if nothing was done.

    The same model.Batch comes again as long as nothing in it changes.
    """

    renewals: Sequence[Renewal]


class TryGive(NamedTuple):
    """Give a lease back whose record is plain: Released, or Seen if nothing was done."""

    key: Key
    claim: str
    token: int


class Join(NamedTuple):
    """Note beside a record that a claim joins its line, without comparing a version.

    Many waiters that come at once would refuse each other's swaps. The reply is a Seen, with the
    waiter among those that `joined`.
    """

    key: Key
    waiter: Waiter
    looks_in: int


Request: TypeAlias = Load | Scan | Swaps | TryTake | TryRenew | TryGive | Join


class Registers(Protocol):
    """A store's side of it, for stores that answer by a plain call, in the caller's thread.

    Each method raises StoreUnavailable (certainly not applied) or OutcomeUnknown (perhaps), at
    `until` at the latest.
    """

    def load(self, wanted: Sequence[Wanted], until: float) -> list[Seen | StoreError]:
        """See Load."""
        ...

    def swap(self, swaps: Sequence[Swap], until: float) -> list[Seen | StoreError | None]:
        """See Swaps."""
        ...

    def scan(self, namespace: str, prefix: str, until: float) -> list[tuple[Key, Seen]]:
        """See Scan."""
        ...


class QuickRegisters(Registers, Protocol):
    """Registers that answer quicker requests, too; `Quick` says which. None: nothing was done."""

    def take(self, request: TryTake, until: float) -> Granted | None:
        """See TryTake."""
        ...

    def renew(self, renewals: Sequence[Renewal], until: float) -> Sequence[Renewed | None]:
        """See TryRenew."""
        ...

    def give(self, request: TryGive, until: float) -> Released | None:
        """See TryGive."""
        ...

    def join(self, request: Join, until: float) -> Seen | StoreError:
        """See Join."""
        ...


class Quick(NamedTuple):
    """Which of the quicker requests a store answers.

    `candidates`: TryTake also for a candidate, whose grant all waiters have to learn of.
    """

    take: bool = False
    renew: bool = False
    give: bool = False
    join: bool = False
    candidates: bool = False


NOTHING_QUICK: Final = Quick()


def unless_behind(swap: Swap, found: Seen | StoreError, where: str) -> Seen | StoreError:
    """The answer to a swap that was refused: what was `found`, or that the clock stepped back."""
    # The instant of what was recalled is our own reckoning: it shows no step of the store's clock.
    if isinstance(found, StoreError) or found.now >= swap.not_before or swap.seen.recalled:
        return found
    behind = (swap.not_before - found.now) / 1e6
    return StoreUnavailable(
        f"{where}: its clock stepped back by {behind:.3f} s or more, so nothing was changed about"
        f" {flat(swap.wanted.key)}",
        retry_after=min(behind, 1.0),
    )


# -- texts -----------------------------------------------------------------------------------------


def record_in(text: bytes | None, key: Key, where: str, written: Instant = 0) -> LeaseRecord:
    """The record of a text; NOTHING of None. `written`: when the store wrote it, see rules.codec.

    Raises StoreUnavailable: what cannot be read is neither free nor overwritten.
    """
    try:
        return NOTHING if text is None else decoded(text, written)
    except Unreadable as error:
        raise unreadable(f"the record of {flat(key)}", where, error) from error


def value_in(text: bytes, key: Key, place: Place, where: str, written: Instant = 0) -> Beside:
    """The value of a text beside the record, likewise."""
    try:
        return decoded_entry(text, written)
    except Unreadable as error:
        raise unreadable(f"the {' '.join(place)} of {flat(key)}", where, error) from error


def joined_in(text: bytes, at: Instant, key: Key, where: str) -> Joined:
    """The waiter of a text, which it left `at` this instant, likewise; its `id` is that instant."""
    try:
        return Joined(at, *decoded_waiter(text), at)
    except Unreadable as error:
        raise unreadable(f"a waiter for {flat(key)}", where, error) from error


def unreadable(what: str, where: str, error: Unreadable) -> StoreUnavailable:
    """The exception for a text that is no record of this format."""
    return StoreUnavailable(
        f"{where}: {what} {error}. Nobody is granted the name. Stop instances of another version,"
        " look at what wrote it, and remove it when nobody holds the name",
        permanent=True,
    )
