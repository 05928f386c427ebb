"""What a case stands on: a world with one engine, and one blocking face for both of its sides."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Barrier
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import (
    Ask,
    GiveOutcome,
    Granted,
    Guard,
    Key,
    PutOutcome,
    Record,
    Refused,
    Renewal,
    RenewOutcome,
    Slot,
    TakeOutcome,
)
from incumbent.stores.base import AsyncStore, Engine, Store

__all__ = [
    "ANSWER_WITHIN",
    "DRIVERS",
    "LONG",
    "AsyncDriver",
    "Bench",
    "BlockingDriver",
    "Driver",
    "Hook",
    "World",
]

Hook: TypeAlias = Literal["restart", "wipe", "restart_wait", "lose_reply", "cut"]
"""What a World can do. "restart_wait" is no deed but a promise about the other two: the store then
grants nothing for one ttl. A store that no holder outlives (a file of one host) need not wait."""

ANSWER_WITHIN = 5.0
"""Seconds that a request may take: generous, for machines that do other things as well."""

LONG = 60.0
"""A ttl that does not end while a case runs."""

_T = TypeVar("_T")


class World:
    """One engine, and what can be done to it: override the hooks that your store has."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def pass_time(self, seconds: float) -> None:
        """Let the store's time pass by at least this much: move its clock, or really wait."""
        time.sleep(seconds)

    def restart(self, *, empty: bool) -> None:
        """Hooks "restart" and (empty) "wipe": a new incarnation, with its data or without.

        `self.engine` may be another one afterwards, if the old one cannot live through it.
        """
        raise NotImplementedError

    def lose_reply(self) -> AbstractContextManager[None]:
        """Hook "lose_reply": meanwhile requests are applied and their answers are lost.

        All of them: a store may repeat a request by itself, and must still say what it never heard.
        """
        raise NotImplementedError

    def cut(self) -> AbstractContextManager[None]:
        """Hook "cut": meanwhile the store cannot be reached."""
        raise NotImplementedError


class Driver(Protocol):
    """One side of an engine behind the blocking face."""

    @property
    def store(self) -> Store:
        """The face."""
        ...

    def close(self) -> None:
        """Let go of what this driver alone has used."""
        ...


class BlockingDriver:
    """The blocking side as it is; many threads share it."""

    def __init__(self, engine: Engine) -> None:
        self.store: Store = engine.store()

    def close(self) -> None:
        """The store is the engine's, and others may be using it."""


class AsyncDriver:
    """The asynchronous side: each call is one run of a loop of its own."""

    def __init__(self, engine: Engine) -> None:
        self._runner = asyncio.Runner()
        self.store: Store = _LoopStore(engine, self._runner)

    def close(self) -> None:
        """Let go of the loop's connections, then of the loop."""
        with self._runner:
            self.store.close()


class _LoopStore:
    def __init__(self, engine: Engine, runner: asyncio.Runner) -> None:
        self._engine = engine
        self._runner = runner

    def _run(self, call: Callable[[AsyncStore], Coroutine[Any, Any, _T]]) -> _T:
        async def ask() -> _T:
            return await call(self._engine.async_store())

        return self._runner.run(ask())

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return self._run(lambda store: store.take(key, claim, ask, until))

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return self._run(lambda store: store.renew(renewals, until))

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
    ) -> GiveOutcome:
        return self._run(
            lambda store: store.give(
                key, claim, token, until, closed_for=closed_for, reserve_for=reserve_for, slot=slot
            )
        )

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return self._run(lambda store: store.put(key, field, value, guard, until))

    def read(self, key: Key, until: float) -> Record:
        return self._run(lambda store: store.read(key, until))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return self._run(lambda store: store.scan(namespace, prefix, until))

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        self._run(lambda store: store.wait_change(key, seen, until))

    def close(self) -> None:
        self._run(lambda store: store.aclose())


DRIVERS: dict[str, Callable[[Engine], Driver]] = {
    "blocking": BlockingDriver,
    "async": AsyncDriver,
}


class Bench:
    """A case's view of one store: a namespace of its own, and the contract in short words."""

    def __init__(
        self,
        world: World,
        open_driver: Callable[[Engine], Driver],
        ttl: float,
        namespace: str | None = None,
    ) -> None:
        self.world = world
        self.ttl = ttl
        """A ttl short enough to be outlived."""
        self.long = min(LONG, world.engine.capabilities.ttl_max)
        self.namespace = namespace or f"contract-{secrets.token_hex(4)}"
        self._open_driver = open_driver
        self._driver = open_driver(world.engine)
        self.store = self._driver.store

    def close(self) -> None:
        """Let go of this bench's own connections."""
        self._driver.close()

    def restart(self, *, empty: bool) -> None:
        """Restart the store, and come back to it as its clients do."""
        before = self.world.engine
        self.world.restart(empty=empty)
        if self.world.engine is not before:
            self._driver.close()
            self._driver = self._open_driver(self.world.engine)
            self.store = self._driver.store
        # Connections from before end with an error; only the requests after that one count.
        for _ in range(3):
            with suppress(StoreError):
                self.read()

    @contextmanager
    def another(self) -> Iterator[Self]:
        """The same world for another thread, which needs a driver of its own."""
        bench = type(self)(self.world, self._open_driver, self.ttl, self.namespace)
        try:
            yield bench
        finally:
            bench.close()

    def in_threads(self, count: int, work: Callable[[Bench, int], _T]) -> list[_T]:
        """Run `work(bench, index)` in `count` threads that start together."""
        start = Barrier(count)

        def one(index: int) -> _T:
            with self.another() as bench:
                start.wait(ANSWER_WITHIN)
                return work(bench, index)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))

    # -- time --------------------------------------------------------------------------------

    def outlive(self, seconds: float) -> None:
        """Let so much of the store's time pass that a ttl of `seconds` is over."""
        unit = self.world.engine.capabilities.ttl_unit
        self.world.pass_time(seconds + 2 * unit + 0.01)

    @staticmethod
    def until() -> float:
        """By when a request made now must have answered."""
        return clock.now() + ANSWER_WITHIN

    # -- the contract ------------------------------------------------------------------------

    def key(self, name: str = "job") -> Key:
        """The key of `name` in this bench's namespace."""
        return Key(self.namespace, name)

    @staticmethod
    def draw() -> str:
        """A fresh claim."""
        return secrets.token_hex(16)

    def take(
        self,
        name: str = "job",
        claim: str | None = None,
        *,
        ttl: float | None = None,
        holder: str = "somebody",
        meta: bytes = b"",
        slot: Slot | None = None,
        keep_record: float = 86_400.0,
        candidacy: float = 0.0,
    ) -> TakeOutcome:
        """Take `name` for `claim` (a fresh one by default) and `ttl` (a long one by default)."""
        ask = Ask(
            self.long if ttl is None else ttl,
            holder,
            meta=meta,
            slot=slot,
            keep_record=keep_record,
            candidacy=candidacy,
        )
        return self.store.take(self.key(name), claim or self.draw(), ask, self.until())

    def granted(
        self,
        name: str = "job",
        claim: str | None = None,
        *,
        ttl: float | None = None,
        holder: str = "somebody",
        meta: bytes = b"",
        slot: Slot | None = None,
        keep_record: float = 86_400.0,
        candidacy: float = 0.0,
    ) -> Granted:
        """Take, and insist on a grant for this very claim."""
        claim = claim or self.draw()
        outcome = self.take(
            name,
            claim,
            ttl=ttl,
            holder=holder,
            meta=meta,
            slot=slot,
            keep_record=keep_record,
            candidacy=candidacy,
        )
        if not isinstance(outcome, Granted):
            raise AssertionError(f"{name!r} should have been granted: {outcome!r}")
        if outcome.claim != claim:
            raise AssertionError(f"the grant echoes {outcome.claim!r} instead of {claim!r}")
        return outcome

    def refused(
        self,
        name: str = "job",
        claim: str | None = None,
        *,
        slot: Slot | None = None,
        holder: str = "the-refused",
        candidacy: float = 0.0,
    ) -> Refused:
        """Take, and insist on a refusal."""
        outcome = self.take(name, claim, slot=slot, holder=holder, candidacy=candidacy)
        if not isinstance(outcome, Refused):
            raise AssertionError(f"{name!r} should have been refused: {outcome!r}")
        return outcome

    def renewal(
        self,
        grant: Granted,
        name: str = "job",
        *,
        ttl: float | None = None,
        meta: bytes | None = None,
    ) -> Renewal:
        """The renewal of a grant."""
        life = self.long if ttl is None else ttl
        return Renewal(self.key(name), grant.claim, grant.token, life, grant.epoch, meta)

    def renew(
        self,
        grant: Granted,
        name: str = "job",
        *,
        ttl: float | None = None,
        meta: bytes | None = None,
    ) -> RenewOutcome:
        """Renew one lease."""
        return self.renew_all([self.renewal(grant, name, ttl=ttl, meta=meta)])[0]

    def renew_all(self, renewals: Sequence[Renewal]) -> list[RenewOutcome]:
        """Renew a batch; there must be one answer for each."""
        outcomes = self.store.renew(renewals, self.until())
        if len(outcomes) != len(renewals):
            raise AssertionError(f"{len(renewals)} renewals, {len(outcomes)} answers")
        return outcomes

    def give(
        self,
        grant: Granted,
        name: str = "job",
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
    ) -> GiveOutcome:
        """Give a grant back."""
        return self.store.give(
            self.key(name),
            grant.claim,
            grant.token,
            self.until(),
            closed_for=closed_for,
            reserve_for=reserve_for,
            slot=slot,
        )

    def put(
        self, field: str, value: bytes | None, guard: Guard = None, name: str = "job"
    ) -> PutOutcome:
        """Write a field."""
        return self.store.put(self.key(name), field, value, guard, self.until())

    def read(self, name: str = "job") -> Record:
        """Read everything known of `name`."""
        return self.store.read(self.key(name), self.until())

    def scan(self, prefix: str = "") -> list[str]:
        """The names under `prefix`; each may come once only."""
        records = self.store.scan(self.namespace, prefix, self.until())
        names = sorted(record.key.name for record in records)
        if len(set(names)) != len(names):
            raise AssertionError(f"a scan answered names twice: {names}")
        return names

    def remaining(self, name: str = "job") -> float:
        """Seconds left of the present holding, as the store shows them; 0.0 without one."""
        holdings = self.read(name).holdings
        return (holdings[0].remaining or 0.0) if holdings else 0.0
