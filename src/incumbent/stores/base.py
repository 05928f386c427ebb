"""The contract between incumbent and a store: one record a key, decided in the store.

Every operation has `until`: the instant (seconds of `incumbent.clock.now`) by which it must have
answered. Outcomes are values; what is not an outcome is an exception: StoreUnavailable (certainly
not applied) or OutcomeUnknown (perhaps applied). `incumbent.testing.contract` says it as tests.

Rules that every engine keeps:

- `take` by a claim that holds the lease already is the same grant again: same token, and the ttl
  becomes max(remaining, ttl). If the claim's record expired in between it is a new grant with a new
  token. A refused take changes nothing but the list of candidates (`Ask.candidacy`): it never
  changes `seen` and wakes nobody. A grant to an ask with a candidacy ends that candidacy and wakes
  those who wait, so that they learn who leads.
- A waiter (`Ask.queue`) stands in line from its first refusal until it is granted, gives its claim
  back, or stays silent for longer than its heartbeat when its turn has come. The first in line
  comes before others as `Queue` says; what is reserved for a holder goes before the line.
- Tokens of one key only grow: over releases, expiry, breaks, restarts and wipes.
- `renew` never creates and never shortens. `give` compares the claim (and the token unless None).
- A give without a token is for a claim in doubt: some of its takes may still be on their way.
  With `refuses_late`, a take of that claim that arrives later is refused: it leaves no lease, uses
  no slot and stands in no line. That lasts for at least LATE_KEPT seconds, or for as long as a take
  can arrive late, whichever is longer.
- A lease that is asked for with permits (`Ask.permits`) is shared: at most so many hold it at once,
  each by a claim, a token and a ttl of its own, and nobody exclusively meanwhile. A take with
  another number than its holders is refused with theirs ("permits"). A waiter that comes before
  others (`Queue`) does so also where there is room for those behind it: so readers who come later
  let a writer pass. Whoever may hold it beside a new holder has its turn at once. A shared lease is
  never closed or reserved, and uses no slot.
- A renewal that changes the holding's meta is a change: it changes `seen` and wakes waiters. So
  is a `put` that writes or removes a field of a name that nobody holds.
- The field "pause" never ends by itself, and it outlives a restart wherever the store keeps data.
- A granting answer echoes the claim it was read for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypedDict, Unpack, runtime_checkable

from incumbent.errors import StoreError
from incumbent.model import (
    Ask,
    Capabilities,
    GiveOutcome,
    Guard,
    Key,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)

__all__ = [
    "AsyncLeases",
    "AsyncStore",
    "AsyncTogether",
    "Engine",
    "Give",
    "Parting",
    "Store",
    "Take",
    "Together",
]


class Parting(TypedDict, total=False):
    """The keywords of Store.give, for a caller that passes them on."""

    closed_for: float
    reserve_for: str | None
    slot: str | None
    shared: bool


class Store(Protocol):
    """A store for blocking callers; safe for use by many threads."""

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """Grant `key` to `claim`, queue it, or refuse it, in one atomic step."""
        ...

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """Set max(remaining, ttl) for each claim that still holds; answers in the same order.

        A model.Batch comes again, as the same object, for as long as nothing of it changes.
        """
        ...

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        until: float,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
        shared: bool = False,
    ) -> GiveOutcome:
        """Remove the claim's record; `slot` also gives back that slot if the claim took it.

        `shared`: the claim was made with permits; never True for a store that shares nothing.

        `token` None: nobody knows whether the claim was granted, or will be. 0: it certainly holds
        nothing, and leaves the line of waiters.

        Gone to a give with a token means that the lease was lost before this request. So an engine
        that repeats it, after a try that was perhaps applied, raises OutcomeUnknown instead.

        `closed_for` (seconds) refuses everybody for that long after, or with `reserve_for`
        everybody but the holder of that name, whose grant ends it.
        """
        ...

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """Write a small field beside the lease (None removes it) if `guard` holds.

        The field "pause" refuses takes and tells holders; "resign" tells the present holder.
        """
        ...

    def read(self, key: Key, until: float) -> Record:
        """Everything known of `key`: for people, never for a decision."""
        ...

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """Every key of `namespace` whose name begins with `prefix`: for people."""
        ...

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """Return when `key` may have changed since `Refused.seen`, or at `until`: a hint."""
        ...

    def close(self) -> None:
        """Let go of connections; leases are not given back."""
        ...


class Take(NamedTuple):
    """One of the takes of Together.take_all."""

    key: Key
    claim: str
    ask: Ask


class Give(NamedTuple):
    """One of the gives of Together.give_all."""

    key: Key
    claim: str
    token: int


Took: TypeAlias = "list[TakeOutcome | StoreError]"
Gave: TypeAlias = "list[GiveOutcome | StoreError]"


@runtime_checkable
class Together(Protocol):
    """A Store that asks for several leases in one request, where others are asked one by one.

    Each is as if it were asked for alone, with a claim and an outcome of its own. A StoreError that
    is raised, and not returned, is of all of them.
    """

    def take_all(self, takes: Sequence[Take], until: float) -> Took:
        """The outcome of each take; their asks have neither a queue nor permits."""
        ...

    def give_all(self, gives: Sequence[Give], until: float) -> Gave:
        """The outcome of each give."""
        ...


@runtime_checkable
class AsyncTogether(Protocol):
    """The same for an AsyncStore."""

    async def take_all(self, takes: Sequence[Take], until: float) -> Took: ...

    async def give_all(self, gives: Sequence[Give], until: float) -> Gave: ...


class AsyncLeases(Protocol):
    """What a lease needs of a store, for coroutines; each operation is that of `Store`."""

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome: ...

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]: ...

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, **parting: Unpack[Parting]
    ) -> GiveOutcome: ...

    async def wait_change(self, key: Key, seen: str, until: float) -> None: ...


class AsyncStore(AsyncLeases, Protocol):
    """A store for coroutines of one event loop; each operation is that of `Store`."""

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome: ...

    async def read(self, key: Key, until: float) -> Record: ...

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]: ...

    async def aclose(self) -> None:
        """Let go of this loop's connections; leases are not given back."""
        ...


@runtime_checkable
class Engine(Protocol):
    """One configured store: makes its blocking and its asynchronous side."""

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""
        ...

    @property
    def url(self) -> str:
        """For people: where it is, without any password."""
        ...

    def store(self) -> Store:
        """The blocking side; the same object at every call."""
        ...

    def async_store(self) -> AsyncStore:
        """The side for the running event loop; the same object at every call in one loop."""
        ...

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """Findings for `doctor`: (level "ok"|"warning"|"error", what, what to do)."""
        ...
