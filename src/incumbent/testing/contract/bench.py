"""The tools of a case: a world with one engine, and one blocking interface for both its sides."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from threading import BrokenBarrierError
from typing import Any, Literal, Self, TypeAlias, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import (
    Ask,
    GiveOutcome,
    Granted,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Refused,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.rules.notices import PAUSE, encode_notice
from incumbent.stores.base import Engine
from incumbent.stores.registers import Registers
from incumbent.testing.contract.sides import (
    ANSWER_WITHIN,
    DRIVERS,
    REQUEST_WITHIN,
    Driver,
    Request,
    StartingLine,
    until,
)

__all__ = [
    "ANSWER_WITHIN",
    "DRIVERS",
    "LONG",
    "REQUEST_WITHIN",
    "Bench",
    "Hook",
    "World",
    "needs",
    "needs_of",
]

Hook: TypeAlias = Literal[
    "restart",
    "wipe",
    "failover",
    "restart_wait",
    "cut",
    "lose_reply",
    "hold_reply",
    "requests",
    "other_client",
    "slow_names",
    "registers",
]
"""What a World can do. "restart_wait" is a promise: after a restart, wipe or failover the store
grants nothing for one ttl. A store that no holder outlives (a file of one host) need not wait."""

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
    """One engine, and the hooks of the suite: override the hooks that your store has.

    `incumbent.testing.proxy.FaultProxy`, between the engine and its server, can do most of them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def pass_time(self, seconds: float) -> None:
        """Let the store's time pass by at least this much: move its clock, or really wait."""
        time.sleep(seconds)

    def restart(self, *, empty: bool) -> None:
        """Hooks "restart" and (empty) "wipe": the store restarts, with its data or without.

        `self.engine` may be a new engine afterwards, if the old one cannot survive a restart.
        """
        raise NotImplementedError

    def failover(self) -> None:
        """Hook "failover": another server takes over, which has what it had received."""
        raise NotImplementedError

    def cut(self) -> AbstractContextManager[None]:
        """Hook "cut": until the block ends, the store cannot be reached."""
        raise NotImplementedError

    def lose_reply(self, times: int = 10) -> AbstractContextManager[None]:
        """Hook "lose_reply": the answers to the next `times` requests that change something are
        lost, and no other answer; until the block ends.

        The world knows which requests those are. Each is carried out before its answer is lost. A
        store that reads first and then writes loses the answer to its write, not to its read; a
        take that finds the lease held has then perhaps sent nothing whose answer can be lost.
        """
        raise NotImplementedError

    def hold_reply(self) -> AbstractContextManager[Callable[[], bool]]:
        """Hook "hold_reply": until the block ends, requests are carried out and answers held back.

        They arrive when the block ends. Gives a function: whether an answer is held back now.
        """
        raise NotImplementedError

    def requests(self) -> int:
        """Hook "requests": how many requests the store has got so far, one after the other.

        What a client sends without waiting for an answer in between counts once; of several servers
        that are asked at the same time, the one that was asked most counts.
        """
        raise NotImplementedError

    def other_client(self, clock_offset: float = 0.0) -> Engine:
        """Hook "other_client": another client of the same store, as on another host.

        Its wall clock is off by `clock_offset` seconds, and so is whatever else it could count
        ttls with (`incumbent.testing.clients.other_process` makes such a client). Where all clients
        are on one host and ttls count on a clock that they share, only the wall clock is off.
        Without the hook it is the same client.
        """
        return self.engine

    def registers(self) -> Registers:
        """Hook "registers": those of the engine, for a store over registers."""
        raise NotImplementedError

    def slow_names(self) -> AbstractContextManager[Engine]:
        """Hook "slow_names": a new client that knows the store by a host name.

        Until the block ends, that name is not resolved: the resolver does not answer.
        """
        raise NotImplementedError


class Bench:
    """A case's view of one store: a namespace of its own, and a short method for each operation."""

    def __init__(
        self,
        world: World,
        driver: Driver,
        ttl: float,
        namespace: str | None = None,
        engine: Engine | None = None,
    ) -> None:
        """`engine`: a client of its own; by default the world's."""
        self.world = world
        self.ttl = ttl
        """A ttl that is short enough to let it pass."""
        self.long = min(LONG, world.engine.capabilities.ttl_max)
        self.namespace = namespace or f"contract-{secrets.token_hex(4)}"
        self._driver = driver
        self._engine = engine
        self._shared = set[str]()
        self.side = driver(engine or world.engine)
        self.store = self.side.store

    def close(self) -> None:
        """Close this bench's own connections."""
        self.side.close()

    def restart(self, *, empty: bool) -> None:
        """Restart the store, and reconnect as its clients do."""
        self._upset(lambda: self.world.restart(empty=empty))

    def failover(self) -> None:
        """Let another server take over, and reconnect as its clients do."""
        self._upset(self.world.failover)

    def _upset(self, cause: Callable[[], None]) -> None:
        before = self.world.engine
        cause()
        if self.world.engine is not before:
            self.side.close()
            self.side = self._driver(self.world.engine)
            self.store = self.side.store
        # The first request on an old connection fails; only later requests count.
        for _ in range(3):
            with suppress(StoreError):
                self.read()

    @contextmanager
    def another(self) -> Iterator[Self]:
        """A bench of the same client for another thread, with a driver of its own."""
        mine = type(self)(self.world, self._driver, self.ttl, self.namespace, self._engine)
        with closing(mine):
            yield mine

    @contextmanager
    def client(self, engine: Engine) -> Iterator[Self]:
        """A bench of another client, `engine`, which is closed afterwards."""
        mine = type(self)(self.world, self._driver, self.ttl, self.namespace, engine)
        try:
            with closing(mine):
                yield mine
        finally:
            if engine is not self.world.engine:
                engine.store().close()

    def other(self, clock_offset: float = 0.0) -> AbstractContextManager[Self]:
        """A bench of the world's other client, whose clock is `clock_offset` seconds off."""
        return self.client(self.world.other_client(clock_offset))

    def in_threads(self, count: int, work: Callable[[Bench, int], _T]) -> list[_T]:
        """Run `work(bench, index)` in `count` threads that start together."""
        (found,) = self.contend(count, 1, lambda mine, index, _: work(mine, index))
        return found

    def contend(
        self, count: int, rounds: int, work: Callable[[Bench, int, int], _T]
    ) -> list[list[_T]]:
        """Run `work(bench, index, round)` in `count` threads, which begin each round together.

        The threads of odd index are another client's; each thread has a loop of its own. Returns,
        for each round, what `work` returned in each thread.
        """
        starts = [StartingLine(count) for _ in range(rounds)]

        def one(bench: Bench, index: int) -> list[_T]:
            try:
                with bench.another() as mine:
                    found = []
                    for turn, start in enumerate(starts):
                        start.wait()
                        found.append(work(mine, index, turn))
                    return found
            except BaseException:
                for start in starts:
                    # The others would wait for this one at the line for ever.
                    start.abort()
                raise

        with self.other() as other, ThreadPoolExecutor(count) as pool:
            running = [pool.submit(one, (self, other)[index % 2], index) for index in range(count)]
        errors = [error for it in running if (error := it.exception()) is not None]
        for error in sorted(errors, key=lambda it: isinstance(it, BrokenBarrierError)):
            raise error
        return [list(turn) for turn in zip(*(it.result() for it in running), strict=True)]

    def at_once(self, *requests: Request) -> list[Any]:
        """Send all at the same time: in threads, or as tasks of one loop."""
        return self.side.at_once(requests)

    # -- time --------------------------------------------------------------------------------

    def outlive(self, seconds: float) -> None:
        """Let the store's time pass until a ttl of `seconds` is over."""
        unit = self.world.engine.capabilities.ttl_unit
        self.world.pass_time(seconds + 2 * unit + 0.01)

    def sees(self, *names: str) -> None:
        """Where a ttl counts from a client's first look, look now; see Capabilities.ttl_clock."""
        for name in names if self.world.engine.capabilities.ttl_clock == "observed" else ():
            self.read(name)

    def lasts(self, seconds: float | None, long: float = 0.0) -> bool:
        """Whether `seconds` can be left of a long ttl (or of `long`) after a few requests."""
        whole = long or self.long
        return seconds is not None and whole / 2 < seconds <= whole + 1

    until = staticmethod(until)

    # -- the contract ------------------------------------------------------------------------

    def key(self, name: str = "job") -> Key:
        """The key of `name` in this bench's namespace."""
        return Key(self.namespace, name)

    @staticmethod
    def draw() -> str:
        """A fresh claim."""
        return secrets.token_hex(16)

    def take(self, name: str = "job", claim: str | None = None, **ask: Any) -> TakeOutcome:
        """Take `name` for `claim` (a fresh one by default) and `ttl` (a long one by default)."""
        return self.store.take(*self.taking(name, claim, **ask)[1:], self.until())

    def taking(
        self,
        name: str = "job",
        claim: str | None = None,
        *,
        ttl: float | None = None,
        holder: str = "somebody",
        **more: Any,
    ) -> tuple[str, Key, str, Ask]:
        """The request of such a take, for `at_once`."""
        ask = Ask(self.long if ttl is None else ttl, holder, **more)
        claim = claim or self.draw()
        if ask.permits is not None:
            self.shares(claim)
        return "take", self.key(name), claim, ask

    def shares(self, claim: str) -> None:
        """From now on renew and give this claim as that of a shared lease."""
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
        outcome = self.if_known(lambda: self.take(name, claim, **ask))
        if not isinstance(outcome, Granted | None):
            raise AssertionError(f"{name!r} was free, and the answer was lost: {outcome!r}")
        return claim

    def if_known(self, request: Callable[[], _T], *, times: int = 10) -> _T | None:
        """Lose the answer to a request: None if it says that it does not know what became of it.

        It may also have found that out by reading.
        """
        with self.world.lose_reply(times), suppress(OutcomeUnknown):
            return request()
        return None

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
        parting = Parting(**how, shared=claim in self._shared)
        return self.store.give(self.key(name), claim, token, self.until(), parting=parting)

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
