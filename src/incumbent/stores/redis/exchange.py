"""What both sides do with connections, written once, as coroutines.

The asynchronous side awaits them. The blocking side runs each in one step (`protocol.port.run`),
with connections that block instead of suspending.

Connections are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
no lock that a signal handler or `__del__` could meet; re-entry takes or opens another connection.
Whatever interrupts an exchange (any BaseException) closes its connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

import hiredis

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import (
    Ask,
    GiveOutcome,
    Granted,
    Guard,
    Key,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.redis.dialect import Dialect, is_repeatable
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import Broken, Mismatch, exchange_error, still_in_doubt
from incumbent.stores.redis.incarnation import Known
from incumbent.stores.redis.resp import Program, Step, as_eval
from incumbent.stores.redis.taking import give_back, is_forgotten, meeting, take_program, too_early
from incumbent.stores.redis.waiting.hub import Bell, Ear, Hub
from incumbent.stores.repeats import heard_again

__all__ = ["UNUSABLE", "Exchange", "Operate", "carry_out", "close_all", "is_forgotten", "one_give"]


class AnyWire(Known, Protocol):
    """One connection, of either side. `used`: when the present (or last) exchange began."""

    used: float

    @property
    def closed(self) -> bool:
        """Whether it is known, without a look, that it can no longer be used."""

    def is_stale(self, *, trust: bool) -> bool:
        """Whether the server closed it. `trust`: need not look at one that was just used."""

    def send(self, request: bytes, until: float) -> None:
        """A request whose answer is read by `next`. Raises Broken."""

    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Requests that leave together, and their answers. Raises Broken."""

    def close(self) -> None:
        """Let go at once; nothing is written."""


T = TypeVar("T")
W = TypeVar("W", bound=AnyWire)
Operate: TypeAlias = Callable[[W], Awaitable[T]]

UNUSABLE: Final = (Broken, Mismatch, hiredis.ProtocolError)
_IDLE_MAX: Final = 64

_now = clock.now


class Exchange(ABC, Generic[W]):
    """The operations of a store (see stores.base.AsyncStore), by the connections it keeps."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self.site = site
        self.dialect = dialect
        self.idle: list[W] = []
        self.hub = Hub(dialect)
        self.all: WeakSet[W] = WeakSet()

    @abstractmethod
    async def dial(self, until: float) -> W:
        """A connection that is logged in. Raises StoreUnavailable, at `until` at the latest."""

    # -- operations ---------------------------------------------------------------------------

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        asking = partial(self.ask_server, key, claim, ask, until)
        return await self.hub.said_or_asked(claim, ask, asking)

    async def ask_server(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """A take, whatever the hub has heard."""
        # A take in doubt is the caller's to repeat, who remembers that there were two.
        taking = self.taking(key, claim, ask, until)
        return await self.do(taking, until, ask.ttl, repeatable=False)

    def taking(self, key: Key, claim: str, ask: Ask, until: float) -> Operate[W, TakeOutcome]:
        """A take, with a look whether the server is still what it was."""

        async def operate(wire: W) -> TakeOutcome:
            program = take_program(self.site, self.dialect, wire, key, claim, ask, until)
            return await carry_out(wire, program, until)

        return operate

    async def take_looking(
        self, key: Key, first: TakeOutcome, ask: Ask, until: float
    ) -> TakeOutcome:
        """The same once more, after an answer that is not to be believed without a look."""
        if not isinstance(first, Granted):
            return first
        claim = first.claim
        try:
            # A repeat that its caller does not know of would leave no mark against a late one.
            taking = self.taking(key, claim, ask, until)
            return await self.do(taking, until, ask.ttl, repeatable=False)
        except StoreUnavailable as error:
            try:
                await self._run(lambda _: give_back(self.dialect, key, first, ask), until)
            except StoreError:
                raise still_in_doubt(error, self.site.where) from error
            raise

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return await self._run(lambda epoch: self.dialect.renew(renewals, epoch), until)

    async def give(
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
        """See Store.give."""
        dialect = self.dialect
        request = dialect.give(key, claim, token, closed_for, slot, reserve_for)
        return await self.do(one_give(dialect, request, key, until), until)

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return await self._run(
            lambda _: self.dialect.put(key, field, value, guard),
            until,
            repeatable=is_repeatable(guard),
        )

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return await self._run(lambda _: self.dialect.read(key), until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return await self._run(lambda _: self.dialect.scan(namespace, prefix), until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if nobody can listen."""
        try:
            await self.hub.wait(self, key, seen, until)
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    def let_go(self) -> None:
        """Close what is not in use; what is in use is closed when it comes back."""
        idle, self.idle = self.idle, []
        close_all(idle)
        self.hub.let_go()

    # -- exchanges ----------------------------------------------------------------------------

    async def _run(
        self, start: Callable[[str], Program[T]], until: float, *, repeatable: bool = True
    ) -> T:
        async def operate(wire: W) -> T:
            return await carry_out(wire, start(wire.epoch), until)

        return await self.do(operate, until, repeatable=repeatable)

    async def do(
        self, operate: Operate[W, T], until: float, ttl: float = 0.0, *, repeatable: bool = True
    ) -> T:
        """`operate` on one connection, and once more on a fresh one if that was dead already.

        `ttl`: of a lease that is asked for; 0 for all else, which needs no wait after a restart.
        """
        wire = self._trusted(trust=repeatable)
        if wire is None:
            return await self._afresh(operate, until, ttl)
        try:
            return await self._use(wire, operate, ttl)
        except UNUSABLE as error:
            return await self.again(error, operate, until, ttl, repeatable=repeatable)

    def _trusted(self, *, trust: bool) -> W | None:
        """A connection at hand that the server has not closed."""
        while self.idle:
            try:
                wire = self.idle.pop()
            except IndexError:
                break
            if not wire.is_stale(trust=trust):
                return wire
            wire.close()
        return None

    async def _use(self, wire: W, operate: Operate[W, T], ttl: float) -> T:
        idle = self.idle
        wire.used = now = _now()
        if ttl and (early := too_early(self.site, wire, ttl, now)) is not None:
            if wire.problem is None:
                _put_back(wire, idle, self.idle)
            else:
                wire.close()
            raise early
        try:
            outcome = await operate(wire)
        except BaseException:
            wire.close()
            raise
        _put_back(wire, idle, self.idle)
        return outcome

    async def _afresh(self, operate: Operate[W, T], until: float, ttl: float) -> T:
        wire = await self._fresh(until)
        try:
            return await self._use(wire, operate, ttl)
        except UNUSABLE as error:
            raise exchange_error(error, self.site.where) from error.__cause__ or error

    async def _fresh(self, until: float) -> W:
        """A connection for `_use`."""
        return await self._connect(until)

    async def again(
        self,
        error: Exception,
        operate: Operate[W, T],
        until: float,
        ttl: float,
        *,
        repeatable: bool,
    ) -> T:
        """`operate` on a fresh connection, if it may be repeated after `error`."""
        doubt = not isinstance(error, Broken) or error.sent
        if not isinstance(error, Broken) or error.late or (doubt and not repeatable):
            raise exchange_error(error, self.site.where) from error.__cause__ or error
        # What killed one (a restart, a cut network) killed its neighbours.
        close_all(self.idle)
        try:
            outcome = await self._afresh(operate, until, ttl)
        except StoreUnavailable as second:
            if doubt:
                raise still_in_doubt(second, self.site.where) from second
            raise
        return heard_again(outcome, self.site.where) if doubt else outcome

    async def _connect(self, until: float) -> W:
        site = self.site
        wire = await self.dial(until)
        self.all.add(wire)
        try:
            met = await carry_out(wire, meeting(site), until)
        except UNUSABLE as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.introduce(met, _now(), site.marker.settle)
        # Clocks of servers are set; what this process saw itself is certain.
        if site.sighted[0] != met.mark.id:
            site.sighted = (met.mark.id, wire.born)
        wire.born = min(wire.born, site.sighted[1])
        site.proved = True
        return wire

    # -- for the hub: see hub.Host -------------------------------------------------------------

    @abstractmethod
    def new_bell(self) -> Bell:
        """See hub.Host."""

    @abstractmethod
    def me(self) -> Hashable:
        """See hub.Host."""

    def leave_behind(self, epoch: str) -> None:
        """Close what leads to another incarnation of the server than the newest connection."""
        if any(it.epoch != epoch for it in list(self.idle)):
            idle, self.idle = self.idle, []
            close_all(idle)

    @abstractmethod
    def make_ear(self, wire: W) -> Ear:
        """The connection, to listen by."""

    async def open_ear(self, until: float) -> Ear:
        """See hub.Host."""
        wire = await self._connect(until)
        self.leave_behind(wire.epoch)
        return self.make_ear(wire)

    async def server_time(self, until: float) -> int:
        """See hub.Host."""
        return await self._run(lambda _: self.dialect.time(), until)

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """See hub.Host."""
        return await self._run(lambda _: self.dialect.unchanged(key, seen), until)


def one_give(dialect: Dialect, request: bytes, key: Key, until: float) -> Operate[W, GiveOutcome]:
    """What sends one give and reads its answer."""

    async def operate(wire: W) -> GiveOutcome:
        (answer,) = await _ask(wire, Step(request, 1), until)
        return dialect.given(answer, key)

    return operate


async def carry_out(wire: AnyWire, program: Program[T], until: float) -> T:
    """The outcome of a program. Raises Broken."""
    answers: Any = None
    try:
        while True:
            step = program.send(answers)
            try:
                answers = await _ask(wire, step, until)
            except Broken as error:
                # The steps before this one were carried out, such as a take before its undo.
                error.sent = error.sent or answers is not None
                raise
    except StopIteration as end:
        result: T = end.value
        return result


async def _ask(wire: AnyWire, step: Step, until: float) -> list[Any]:
    """The answers of one step. Raises Broken."""
    answers = await wire.ask_all(step.payload, step.answers, until)
    if step.answers == 1 and is_forgotten(answers[0]):
        answers = await wire.ask_all(as_eval(step.payload), 1, until)
    return answers


def _put_back(wire: W, whence: list[W], where: list[W]) -> None:
    # Another list by now: the store was closed, or this is a fork's child.
    if whence is where and len(where) < _IDLE_MAX and not wire.closed:
        where.append(wire)
    else:
        wire.close()


def close_all(wires: list[W]) -> None:
    """Take all of them off the list and close them."""
    while wires:
        try:
            wire = wires.pop()
        except IndexError:
            break
        wire.close()
