"""The use of connections, in coroutines that both sides share.

The asynchronous side awaits them. The blocking side runs each in one step (`protocol.port.run`),
with connections that block instead of suspending.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any, Final, TypeVar, cast

import hiredis

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key, Queued
from incumbent.net.pool import Broken, Connection, Mismatch, PlanRunner
from incumbent.net.readers import ReaderSide
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import (
    DIALECT,
    Server,
    TakePlan,
    meeting,
    too_early,
)
from incumbent.stores.redis.errors import Demoted, TooLate
from incumbent.stores.redis.incarnation import ServerFacts
from incumbent.stores.redis.resp import Program, as_eval, is_forgotten
from incumbent.stores.redis.server import RedisSite
from incumbent.stores.redis.subscription import LineHub


class AnyWire(ServerFacts, Connection):
    """A blocking or asynchronous connection. `used`: when the present (or last) exchange began."""

    used: float

    @abstractmethod
    def send(self, request: bytes, until: float) -> None:
        """Send a request whose answer is read by `next`. Raises Broken."""

    @abstractmethod
    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""

    @abstractmethod
    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Send requests together; return their answers. Raises Broken."""


T = TypeVar("T")
W = TypeVar("W", bound=AnyWire)

UNUSABLE: Final = (Broken, Mismatch, hiredis.ProtocolError)

_now = clock.now


class RedisExchange(PlanRunner[W, Server], PlannedTogether[Server]):
    """Carries out the plans for one server, on the connections that it keeps."""

    dialect = DIALECT
    unusable = UNUSABLE

    def __init__(self, site: RedisSite, commands: Commands, side: ReaderSide) -> None:
        super().__init__(site.where)
        self.site = site
        self.commands = commands
        self.hub = LineHub(commands, side)

    @abstractmethod
    async def dial(self, until: float) -> W:
        """A connection that is logged in. Raises StoreUnavailable, at `until` at the latest."""

    async def run(self, plan: Plan[Server, T], until: float) -> T:
        """See Planned.run. A waiter's take is not sent if the server's last refusal still holds."""
        if type(plan) is TakePlan:
            refusal: Any = self.hub.answer(plan.claim, plan.ask)
            if refusal is not None:
                return cast("T", refusal)
        sent = _now()
        outcome = await self.carry(plan, until)
        if type(plan) is TakePlan and (self.hub.asked or type(outcome) is Queued):
            self.hub.learn(plan.claim, sent, cast("Any", outcome))
        return outcome

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await unless_over(self.hub.wait(self, key, seen, until), until)

    def let_go(self) -> None:
        super().let_go()
        self.hub.let_go()

    # -- exchanges ----------------------------------------------------------------------------

    async def carry_out(self, wire: W, plan: Plan[Server, T], until: float) -> T:
        wire.used = now = _now()
        if plan.ttl and (early := too_early(self.site, wire, plan.ttl, now)) is not None:
            raise early
        program = plan.start(Server(self.site, self.commands, wire), until)
        outcome = await carry_out(wire, program, until, site=self.site)
        if plan.kind != "renew" and isinstance(outcome, list):
            for each in outcome:
                if isinstance(each, Demoted):
                    self.settle(wire, self.idle, each)
        return outcome

    def settle(self, wire: W, idle: list[W], error: BaseException) -> None:
        """See PlanRunner.settle. After a refusal keep the connection, unless the server changed."""
        if isinstance(error, StoreError) and not isinstance(error, Demoted) and not wire.problem:
            self.put_back(wire, idle)
        else:
            wire.close()

    async def fresh(self, plan: Plan[Server, T], until: float) -> W:
        return await self._connect(until)

    async def _connect(self, until: float) -> W:
        site = self.site
        target = site.target
        wire = await self.dial(until)
        if site.target is not target:
            # With the old term, a new marker would name an outdated promotion.
            wire.close()
            raise self._replaced()
        wire.target = target
        self.all.add(wire)
        try:
            met = await carry_out(wire, meeting(site, target.term), until)
        except UNUSABLE as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.introduce(met, _now(), site.marker.settle)
        # The clock of a server may be set; what this process has seen itself is certain.
        if site.sighted[0] != met.mark.id:
            site.sighted = (met.mark.id, wire.born)
        wire.born = min(wire.born, site.sighted[1])
        site.proved = True
        return wire

    def _replaced(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.site.where} cannot be reached: another is meant by now")

    # -- for the hub: see subscription.Host --------------------------------------------------

    def leave_behind(self, epoch: str) -> None:
        """Close the idle connections if one leads to another incarnation than the newest one."""
        if any(it.epoch != epoch for it in list(self.idle)):
            super().let_go()

    async def open_subscriber(self, until: float) -> W:
        idle = self.idle
        wire = await self._connect(until)
        if idle is not self.idle:
            wire.close()
            raise self._replaced()
        self.leave_behind(wire.epoch)
        return wire

    async def server_time(self, until: float) -> int:
        return await self.carry(self.dialect.time(), until)

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        return await self.carry(self.dialect.unchanged(key, seen), until)


async def unless_over(waiting: Awaitable[None], until: float) -> None:
    """Wait. A StoreError after `until` is ignored: the caller looks for itself then."""
    try:
        await waiting
    except StoreError:
        if _now() < until:
            raise


async def carry_out(
    wire: AnyWire,
    program: Program[T],
    until: float,
    *,
    begun: bool = False,
    site: RedisSite | None = None,
) -> T:
    """Carry out a program; return its outcome. Raises Broken, Mismatch, StoreError.

    `begun`: one of its requests was carried out already. `site`: send only to the server it means.
    """
    answers: Any = None
    try:
        while True:
            step = program.send(answers)
            try:
                _check_meant(wire, site)
                replies = await wire.ask_all(step.payload, step.answers, until)
                if step.repeats and any(map(is_forgotten, replies)):
                    _check_meant(wire, site)
                    replies = await wire.ask_all(as_eval(step.payload), step.answers, until)
            except Broken as error:
                # Earlier steps were carried out, such as a take before its undo.
                error.sent = error.sent or begun or answers is not None
                raise
            answers = replies
    except StopIteration as end:
        result: T = end.value
        return result
    except TooLate as error:
        if _now() < until:
            raise
        # We were late ourselves: the connection and what is known of its server are sound.
        raise Broken(str(error), sent=False, late=True) from error


def _check_meant(wire: AnyWire, site: RedisSite | None) -> None:
    """Check before each request, since the previous answer may have taken long. Raises Broken."""
    if site is not None and not site.means(wire.target):
        why = "it may no longer be the master: the sentinels have to be asked again"
        raise Broken(why, sent=False, late=True)
