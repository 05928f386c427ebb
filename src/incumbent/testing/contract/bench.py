"""The tools of a case: a world with one engine, and one blocking interface for both its sides."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from threading import Barrier
from typing import Any, Literal, Self, TypeAlias, TypeVar, cast

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
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
    TakeOutcome,
)
from incumbent.stores.base import Engine, Store
from incumbent.stores.notices import PAUSE, encode_notice

Hook: TypeAlias = Literal["restart", "wipe", "restart_wait", "lose_reply", "cut"]
"""Faults that a World can cause. "restart_wait" is a promise: after a restart or wipe the store
grants nothing for one ttl. A store that no holder outlives (a file of one host) need not wait."""

ANSWER_WITHIN = 5.0
"""Seconds that a request may take: generous, because the machine may be busy."""

LONG = 60.0
"""A ttl that does not end while a case runs."""

_T = TypeVar("_T")
_NEEDS = "incumbent_needs"
_PAUSED = encode_notice(who="operator")


def needs(*what: str) -> Callable[[_T], _T]:
    """Let a case (or each of a class) exist only for stores with these capabilities and hooks."""

    def mark(marked: _T) -> _T:
        inside = vars(marked).items() if isinstance(marked, type) else ()
        for case in [case for name, case in inside if name.startswith("test_")] or [marked]:
            setattr(case, _NEEDS, needs_of(case) | frozenset(what))
        return marked

    return mark


def needs_of(case: object) -> frozenset[str]:
    """The capabilities and hooks that a case needs."""
    found: frozenset[str] = getattr(case, _NEEDS, frozenset())
    return found


class World:
    """One engine, and the hooks of the suite: override the hooks that your store has."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def pass_time(self, seconds: float) -> None:
        """Let the store's time pass by at least this much: move its clock, or really wait."""
        time.sleep(seconds)

    def restart(self, *, empty: bool) -> None:
        """Hooks "restart" and (empty) "wipe": a new incarnation, with its data or without.

        `self.engine` may be a new engine afterwards, if the old one cannot survive a restart.
        """
        raise NotImplementedError

    def lose_reply(self) -> AbstractContextManager[None]:
        """Hook "lose_reply": until the block ends, requests are applied and their answers are lost.

        Lose every answer: a store may repeat a request by itself, and must raise OutcomeUnknown.
        """
        raise NotImplementedError

    def cut(self) -> AbstractContextManager[None]:
        """Hook "cut": until the block ends, the store cannot be reached."""
        raise NotImplementedError


class _LoopStore:
    """A blocking Store that runs each operation on the AsyncStore, in the loop."""

    def __init__(self, engine: Engine, runner: asyncio.Runner) -> None:
        self._engine = engine
        self._runner = runner

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        async def ask(*args: Any, **how: Any) -> Any:
            return await getattr(self._engine.async_store(), operation)(*args, **how)

        return lambda *args, **how: self._runner.run(ask(*args, **how))

    def close(self) -> None:
        self.aclose()


@contextmanager
def _asynchronous(engine: Engine) -> Iterator[Store]:
    with asyncio.Runner() as runner, closing(_LoopStore(engine, runner)) as store:
        yield cast("Store", store)


Driver: TypeAlias = Callable[[Engine], AbstractContextManager[Store]]
"""Opens one side of an engine as a blocking Store; many threads share the "blocking" one."""
DRIVERS: dict[str, Driver] = {
    # The store is the engine's, and others may be using it: do not close it here.
    "blocking": lambda engine: nullcontext(engine.store()),
    "async": _asynchronous,
}


class Bench:
    """A case's view of one store: a namespace of its own, and a short method for each operation."""

    def __init__(
        self, world: World, driver: Driver, ttl: float, namespace: str | None = None
    ) -> None:
        self.world = world
        self.ttl = ttl
        """A ttl that is short enough to let it pass."""
        self.long = min(LONG, world.engine.capabilities.ttl_max)
        self.namespace = namespace or f"contract-{secrets.token_hex(4)}"
        self._driver = driver
        self._shared = set[str]()
        self._opened = ExitStack()
        self.store = self._opened.enter_context(driver(world.engine))

    def close(self) -> None:
        """Close this bench's own connections."""
        self._opened.close()

    def restart(self, *, empty: bool) -> None:
        """Restart the store, and reconnect as its clients do."""
        before = self.world.engine
        self.world.restart(empty=empty)
        if self.world.engine is not before:
            self._opened.close()
            self.store = self._opened.enter_context(self._driver(self.world.engine))
        # The first request on an old connection fails; only later requests count.
        for _ in range(3):
            with suppress(StoreError):
                self.read()

    @contextmanager
    def another(self) -> Iterator[Self]:
        """A bench for the same world in another thread, with a driver of its own."""
        with closing(type(self)(self.world, self._driver, self.ttl, self.namespace)) as bench:
            yield bench

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
        """Let the store's time pass until a ttl of `seconds` is over."""
        unit = self.world.engine.capabilities.ttl_unit
        self.world.pass_time(seconds + 2 * unit + 0.01)

    def lasts(self, seconds: float | None, long: float = 0.0) -> bool:
        """Whether `seconds` can be left of a long ttl (or of `long`) after a few requests."""
        whole = long or self.long
        return seconds is not None and whole / 2 < seconds <= whole + 1

    @staticmethod
    def until() -> float:
        """The deadline of a request that is made now."""
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
        **more: Any,
    ) -> TakeOutcome:
        """Take `name` for `claim` (a fresh one by default) and `ttl` (a long one by default)."""
        ask = Ask(self.long if ttl is None else ttl, holder, **more)
        claim = claim or self.draw()
        if ask.permits is not None:
            self.shares(claim)
        return self.store.take(self.key(name), claim, ask, self.until())

    def shares(self, claim: str) -> None:
        """Renew and give this claim back as the claim of a shared lease."""
        self._shared.add(claim)

    def granted(self, name: str = "job", claim: str | None = None, **ask: Any) -> Granted:
        """Take; fail unless the answer is a grant for this claim."""
        claim = claim or self.draw()
        outcome = self.take(name, claim, **ask)
        if not isinstance(outcome, Granted):
            raise AssertionError(f"{name!r} should have been granted: {outcome!r}")
        if outcome.claim != claim:
            raise AssertionError(f"the grant echoes {outcome.claim!r} instead of {claim!r}")
        return outcome

    def refused(self, name: str = "job", claim: str | None = None, **ask: Any) -> Refused:
        """Take; fail unless the answer is a refusal."""
        ask.setdefault("holder", "the-refused")
        outcome = self.take(name, claim, **ask)
        if not isinstance(outcome, Refused):
            raise AssertionError(f"{name!r} should have been refused: {outcome!r}")
        return outcome

    def expired(self, name: str = "job", **ask: Any) -> Granted:
        """Take with a short ttl, and let it pass; returns the grant."""
        ask["ttl"] = self.ttl
        grant = self.granted(name, **ask)
        self.outlive(self.ttl)
        return grant

    def unheard(self, name: str = "job", **ask: Any) -> str:
        """Take, and lose the answer; returns the claim."""
        claim = self.draw()
        with self.world.lose_reply(), pytest.raises(OutcomeUnknown):
            self.take(name, claim, **ask)
        return claim

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
        shared = grant.claim in self._shared
        return Renewal(self.key(name), grant.claim, grant.token, life, grant.epoch, meta, shared)

    def renew(self, grant: Granted, name: str = "job", **how: Any) -> RenewOutcome:
        """Renew one lease."""
        return self.renew_all([self.renewal(grant, name, **how)])[0]

    def renew_all(self, renewals: Sequence[Renewal]) -> list[RenewOutcome]:
        """Renew a batch; fail unless there is one answer for each renewal."""
        outcomes = self.store.renew(renewals, self.until())
        if len(outcomes) != len(renewals):
            raise AssertionError(f"{len(renewals)} renewals, {len(outcomes)} answers")
        return outcomes

    def give(self, grant: Granted, name: str = "job", **how: Any) -> GiveOutcome:
        """Give a grant back."""
        return self._give(name, grant.claim, grant.token, **how)

    def give_up(self, claim: str, name: str = "job", **how: Any) -> GiveOutcome:
        """Give a claim back without a token: all that it holds, or will hold."""
        return self._give(name, claim, None, **how)

    def _give(self, name: str, claim: str, token: int | None, **how: Any) -> GiveOutcome:
        if claim in self._shared:
            how["shared"] = True
        return self.store.give(self.key(name), claim, token, self.until(), **how)

    def pause(self, value: bytes | None = _PAUSED, name: str = "job") -> None:
        """Pause the name as an operator does; None: unpause it."""
        self.put(PAUSE, value, name=name)

    def waited(self, seen: str, seconds: float, name: str = "job") -> float:
        """Wait for a change, for at most `seconds`; returns the seconds that it took."""
        started = clock.now()
        self.store.wait_change(self.key(name), seen, started + seconds)
        return clock.now() - started

    def put(
        self, field: str, value: bytes | None, guard: Guard = None, name: str = "job"
    ) -> PutOutcome:
        """Write a field."""
        return self.store.put(self.key(name), field, value, guard, self.until())

    def read(self, name: str = "job") -> Record:
        """Read the record of `name`."""
        return self.store.read(self.key(name), self.until())

    def scan(self, prefix: str = "") -> list[str]:
        """The names under `prefix`; fails if a name comes twice."""
        records = self.store.scan(self.namespace, prefix, self.until())
        names = sorted(record.key.name for record in records)
        if len(set(names)) != len(names):
            raise AssertionError(f"a scan answered names twice: {names}")
        return names

    def remaining(self, name: str = "job") -> float:
        """Seconds left of the present holding, as the store shows them; 0.0 without one."""
        holdings = self.read(name).holdings
        return (holdings[0].remaining or 0.0) if holdings else 0.0
