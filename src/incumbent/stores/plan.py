"""Plans: an engine's operations as values, independent of any connection.

A dialect is pure. It makes a plan of each operation; a runner carries the plan out. A layer between
the two (the routing of a cluster, replicas that must confirm, a planted fault) wraps one method,
`Planned.run`, instead of each operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from incumbent.errors import StoreError
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Granted,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.base import NO_LIMITS, Answers, Give, Limits, Take

E = TypeVar("E")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Facts = TypeVar("Facts")
Facts_contra = TypeVar("Facts_contra", contravariant=True)

Kind: TypeAlias = Literal["take", "renew", "give", "put", "read", "scan", "look"]
Program: TypeAlias = Generator[Any, Any, T]
"""A generator that yields requests, is sent their replies, and returns an outcome."""


def run_blocking(protocol: Coroutine[Any, Any, T]) -> T:
    """Drive a protocol to its end in one step; its port blocks instead of suspending."""
    try:
        protocol.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    protocol.close()
    raise RuntimeError("a blocking protocol suspended: its port must not await anything")


async def one_by_one(
    ask: Callable[[E], Awaitable[T]], each: Sequence[E], *, to_the_end: bool = True
) -> list[T | StoreError]:
    """The outcome of `ask` for each; without `to_the_end` only up to the first that is no grant."""
    outcomes: list[T | StoreError] = []
    for one in each:
        try:
            outcomes.append(await ask(one))
        except StoreError as error:
            outcomes.append(error)
        if not to_the_end and not isinstance(outcomes[-1], Granted):
            break
    return outcomes


async def drive(program: Program[T], ask: Callable[[Any], Awaitable[Any]]) -> T:
    """Run a program, with `ask` answering its requests; returns the outcome."""
    try:
        request = next(program)
        while True:
            # An error, too, is the program's to decide about: it may know what to undo first.
            try:
                reply = await ask(request)
            except BaseException as error:  # noqa: BLE001 - it is raised where the program waits
                request = program.throw(error)
            else:
                request = program.send(reply)
    except StopIteration as done:
        outcome: T = done.value
        return outcome


@dataclass(slots=True, eq=False)
class Plan(Generic[Facts_contra, T_co]):
    """One operation.

    `start(facts, until)` begins the program; `facts` is the runner's knowledge of its server,
    `until` (an instant of `incumbent.clock.now`) is the instant when the outcome must be there.
    `keys` and `renewals` name the leases of the operation, for routing.
    `repeatable`: a second try may follow a first try that was perhaps carried out.
    `ttl`: the seconds of the lease that is asked for; 0 if none is.
    """

    kind: Kind
    start: Callable[[Facts_contra, float], Program[T_co]]
    keys: Sequence[Key] = ()
    renewals: Sequence[Renewal] = ()
    repeatable: bool = True
    ttl: float = 0.0


class Dialect(Protocol[Facts_contra]):
    """Makes the plan of each operation (see stores.base.Store)."""

    def take(self, key: Key, claim: str, ask: Ask) -> Plan[Facts_contra, TakeOutcome]:
        """Plan a take; never repeatable, because its caller repeats it and counts the tries."""
        ...

    def renew(self, renewals: Sequence[Renewal]) -> Plan[Facts_contra, list[RenewOutcome]]:
        """Plan renewals; one outcome for each, in the same order."""
        ...

    def give(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> Plan[Facts_contra, GiveOutcome]:
        """Plan a give; if it is repeated, `net.pool.outcome_of_repeat` interprets the outcome."""
        ...

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> Plan[Facts_contra, PutOutcome]:
        """Plan a put; repeatable if a second, equal write has the same outcome."""
        ...

    def read(self, key: Key) -> Plan[Facts_contra, Record]:
        """Plan the read of a key's record."""
        ...

    def scan(self, namespace: str, prefix: str) -> Plan[Facts_contra, tuple[Record, ...]]:
        """Plan the read of the record of each key with that prefix."""
        ...


class DialectOfMany(Dialect[Facts_contra], Protocol[Facts_contra]):
    """A Dialect that also plans several takes or gives in one (see stores.base.Together).

    Neither plan is repeatable: a repeated give would find Gone the lease that it gave back itself.
    """

    def take_all(self, takes: Sequence[Take]) -> Plan[Facts_contra, Answers[TakeOutcome]]: ...

    def give_all(self, gives: Sequence[Give]) -> Plan[Facts_contra, Answers[GiveOutcome]]: ...


class Planned(ABC, Generic[Facts]):
    """The operations of stores.base.AsyncStore, carried out by the plans of `dialect`.

    The asynchronous side awaits them; `BlockingStore` runs each in one step.
    """

    dialect: Dialect[Facts]

    @abstractmethod
    async def run(self, plan: Plan[Facts, T], until: float) -> T:
        """Carry out a plan. Raises StoreError, at `until` at the latest."""

    @abstractmethod
    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if changes cannot be subscribed to."""

    @abstractmethod
    def let_go(self) -> None:
        """Close unused connections; a connection in use is closed when it is returned."""

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return await self.run(self.dialect.take(key, claim, ask), until)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return await self.run(self.dialect.renew(renewals), until)

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        return await self.run(self.dialect.give(key, claim, token, parting), until)

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return await self.run(self.dialect.put(key, field, value, guard), until)

    async def read(self, key: Key, until: float) -> Record:
        return await self.run(self.dialect.read(key), until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return await self.run(self.dialect.scan(namespace, prefix), until)


class PlannedTogether(Planned[Facts]):
    """Planned, with the operations of stores.base.AsyncTogether."""

    dialect: DialectOfMany[Facts]

    async def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]:
        return await self.run(self.dialect.take_all(takes), until)

    async def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        return await self.run(self.dialect.give_all(gives), until)


Ops = TypeVar("Ops", bound=Planned[Any])
Many = TypeVar("Many", bound=PlannedTogether[Any])
P = ParamSpec("P")


def _in_one_step(
    of: Callable[[Planned[Any]], Callable[P, Coroutine[Any, Any, T]]],
) -> Callable[Concatenate[BlockingStore[Any], P], T]:
    def operation(self: BlockingStore[Any], /, *args: P.args, **settings: P.kwargs) -> T:
        return run_blocking(of(self.operations)(*args, **settings))

    return operation


class BlockingStore(Generic[Ops]):
    """A stores.base.Store that runs each of `operations` in one step: they never suspend."""

    def __init__(self, operations: Ops) -> None:
        self.operations = operations
        self.limits: Limits = getattr(operations, "limits", NO_LIMITS)
        self.renews_one_by_one: bool = getattr(operations, "renews_one_by_one", False)

    take = _in_one_step(lambda operations: operations.take)
    renew = _in_one_step(lambda operations: operations.renew)
    give = _in_one_step(lambda operations: operations.give)
    put = _in_one_step(lambda operations: operations.put)
    read = _in_one_step(lambda operations: operations.read)
    scan = _in_one_step(lambda operations: operations.scan)
    wait_change = _in_one_step(lambda operations: operations.wait_change)

    def close(self) -> None:
        self.operations.let_go()


class BlockingTogether(BlockingStore[Many]):
    """A BlockingStore with the operations of stores.base.Together."""

    def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]:
        return run_blocking(self.operations.take_all(takes, until))

    def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        return run_blocking(self.operations.give_all(gives, until))
