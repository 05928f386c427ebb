"""The contract between incumbent and a store: one record for each key, and the store decides.

A *claim* is the random id of one acquire, the same for all its tries. A *take* asks for the lease
with that claim; an *ask* has the parameters of a take. A *renew* extends the lease; a *give* ends
it, or takes the claim out of the line. Users call acquire and release, which send takes and gives.

Every operation has `until`: the instant (seconds of `incumbent.clock.now`) by which it must have
answered. Outcomes are values. Without an outcome an operation raises StoreUnavailable (certainly
not applied) or OutcomeUnknown (perhaps applied). `incumbent.testing.contract` tests all this.

Rules that every engine keeps:

- A `take` by a claim that already holds the lease is the same grant again: the same token, and the
  ttl becomes max(remaining, ttl). If the claim's record expired in between, it is a new grant with
  a new token. A refused take changes nothing but the list of candidates (`Ask.candidacy`): it never
  changes `seen` and wakes nobody. A grant to an ask with a candidacy ends that candidacy and wakes
  the waiters, so that they learn who leads.
- A waiter (`Ask.queue`) stands in line from its first refusal until it is granted the lease, gives
  its claim back, or stays silent for longer than its heartbeat during its turn. `Queue` says when
  the first in line precedes other claims; a reservation for a holder precedes the line.
- Tokens of one key only grow: over releases, expiry, breaks, restarts and wipes.
- `renew` never creates and never shortens. `give` compares the claim (and the token unless None).
- A give without a token is for a claim in doubt: some of its takes may still be on their way.
  With `refuses_late`, a take of that claim that arrives later is refused: it leaves no lease, uses
  no slot and does not join the line. That lasts for at least rules.keeping.LATE_KEPT seconds,
  or for as long as a take can arrive late, whichever is longer.
- A lease that is asked for with permits (`Ask.permits`) is shared: at most that many claims hold it
  at once, each with a token and a ttl of its own, and no claim holds it exclusively meanwhile. A
  take with another number of permits than the holders' is refused ("permits") with their number. A
  waiter that precedes others (`Queue`) does so even if there is room for claims behind it, so that
  later readers let a writer pass. A waiter that may share the lease with a new holder has its turn
  at once. A shared lease is never closed or reserved, and uses no slot.
- A renewal that changes the holding's meta changes `seen` and wakes waiters. So does a `put` that
  writes or removes a field of a name that nobody holds.
- The field "pause" never ends by itself, and it outlives a restart if the store keeps its data.
- A grant echoes the claim that it was read for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from incumbent.errors import StoreError
from incumbent.model import (
    PLAIN,
    Ask,
    Capabilities,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)

__all__ = [
    "NO_LIMITS",
    "AsyncLeases",
    "AsyncStore",
    "AsyncTogether",
    "Engine",
    "Gate",
    "Give",
    "Limits",
    "Parting",
    "Place",
    "Store",
    "Take",
    "Together",
]

T = TypeVar("T")
Coro: TypeAlias = Coroutine[Any, Any, T]
"""What an `async def` returns. For one in a protocol pyright wants its exact class."""


class Place(Protocol):
    """The permission to have one request at a store."""

    def leave(self, *, answered: bool) -> None:
        """Let the next one have it. `answered`: whether the store gave an answer."""


class Gate(Protocol):
    """A bound of the requests that are at a store at a time: the others wait until they enter."""

    def enter_now(self) -> Place | None:
        """A place, if a request can be sent at once."""
        ...

    def enter(self, until: float, patience: float = inf) -> Coro[Place]:
        """A place, once there is one. Raises StoreUnavailable, at `until` at the latest.

        Also if the store has given no answer for `patience` seconds.
        """
        ...


class _Open:
    """A Gate without a bound."""

    def enter_now(self) -> Place:
        return self

    async def enter(self, until: float, patience: float = inf) -> Place:
        return self

    def leave(self, *, answered: bool) -> None:
        """Do nothing."""


class Limits(NamedTuple):
    """The gates before the takes and the gives of a store: its attribute `limits`, if it has any.

    The time of a request, and what may be believed of its answer, begin behind the gate.
    """

    takes: Gate = _Open()
    gives: Gate = _Open()


NO_LIMITS: Final = Limits()


class Store(Protocol):
    """A store for blocking callers; safe for use by many threads."""

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """Grant `key` to `claim`, queue it, or refuse it, in one atomic step."""
        ...

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """For each claim that still holds its lease, set the ttl to max(remaining, ttl).

        Returns the outcomes in order. Callers pass the same model.Batch object again as long as
        nothing in it changes.
        """
        ...

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        """End the claim's holding, or remove it from the line; see Parting for what else it does.

        `token` None: nobody knows whether the claim was granted, or will be. 0: the claim certainly
        holds nothing, and leaves the line of waiters.

        Gone, as the outcome of a give with a token, means that the lease was lost before. So an
        engine that repeats a give that was perhaps applied raises OutcomeUnknown instead of Gone.
        """
        ...

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """Write a small field beside the lease (None removes it) if `guard` holds.

        The field "pause" refuses takes and notifies holders; "resign" notifies the present holder.
        """
        ...

    def read(self, key: Key, until: float) -> Record:
        """The whole record of `key`: for display, never for a decision."""
        ...

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """The record of every key of `namespace` whose name begins with `prefix`: for display."""
        ...

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """Return when `key` may have changed since `Refused.seen`, or at `until`; only a hint."""
        ...

    def close(self) -> None:
        """Close the connections, and end the waits for a change; leases are not given back."""
        ...


class Take(NamedTuple):
    """A take in Together.take_all."""

    key: Key
    claim: str
    ask: Ask


class Give(NamedTuple):
    """A give in Together.give_all."""

    key: Key
    claim: str
    token: int


Answers: TypeAlias = "list[T | StoreError]"
"""The outcome of each take or give that was sent together with others."""


@runtime_checkable
class Together(Protocol):
    """A Store that takes or gives several leases in one request; other stores need one for each.

    Each take or give is as if it were sent alone, with a claim and an outcome of its own. A
    StoreError that is raised, not returned, applies to all of them.
    """

    def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]:
        """The outcome of each take; the asks have neither a queue nor permits."""
        ...

    def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        """The outcome of each give."""
        ...


@runtime_checkable
class AsyncTogether(Protocol):
    """Together for an AsyncStore."""

    async def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]: ...

    async def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]: ...


class AsyncLeases(Protocol):
    """The part of an AsyncStore that a lease needs; each operation is that of `Store`."""

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> Coro[TakeOutcome]: ...

    def renew(self, renewals: Sequence[Renewal], until: float) -> Coro[list[RenewOutcome]]: ...

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> Coro[GiveOutcome]: ...

    def wait_change(self, key: Key, seen: str, until: float) -> Coro[None]: ...


class AsyncStore(AsyncLeases, Protocol):
    """A store for coroutines of one event loop; each operation is that of `Store`."""

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> Coro[PutOutcome]: ...

    def read(self, key: Key, until: float) -> Coro[Record]: ...

    def scan(self, namespace: str, prefix: str, until: float) -> Coro[tuple[Record, ...]]: ...

    def aclose(self) -> Coro[None]:
        """Close this loop's connections; leases are not given back."""
        ...


@runtime_checkable
class Engine(Protocol):
    """One configured store: makes its blocking and its asynchronous side."""

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this engine."""
        ...

    @property
    def url(self) -> str:
        """The store's address for display, without any password."""
        ...

    def store(self) -> Store:
        """The blocking side; every call returns the same object."""
        ...

    def async_store(self) -> AsyncStore:
        """The side for the running event loop; every call in one loop returns the same object."""
        ...

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """Findings for `doctor`: (level "ok"|"warning"|"error", finding, advice)."""
        ...
