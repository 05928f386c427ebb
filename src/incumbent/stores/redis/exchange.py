"""The plans of Redis, and who carries them out on the connections to one server.

Both sides share it; see `wire`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar, cast

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import (
    PLAIN,
    ByClaim,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Queued,
    Record,
    Renewal,
    RenewOutcome,
)
from incumbent.net.pool import PlanRunner
from incumbent.net.readers import ReaderSide
from incumbent.stores.base import Gave, Give, Take, Took
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.give import give_program
from incumbent.stores.redis.incarnation import Server
from incumbent.stores.redis.put_read import (
    put_program,
    read_program,
    scan_program,
    time_program,
    unchanged_program,
)
from incumbent.stores.redis.renew import renew_program
from incumbent.stores.redis.server import Demoted, RedisSite, Requests
from incumbent.stores.redis.subscription import LineHub
from incumbent.stores.redis.take import TakePlan, meeting, take_plan, too_early
from incumbent.stores.redis.wire import UNUSABLE, AnyWire, carry_out, joined

T = TypeVar("T")
W = TypeVar("W", bound=AnyWire)

_now = clock.now


class RedisDialect:
    """The plans of Redis; see stores.plan.DialectOfMany."""

    take = staticmethod(take_plan)

    def take_all(self, takes: Sequence[Take]) -> Plan[Server, Took]:
        """Several takes whose requests are sent together."""
        return joined([self.take(*take) for take in takes])

    def renew(self, renewals: Sequence[Renewal]) -> Plan[Server, list[RenewOutcome]]:
        """A renewal of the leases that this incarnation of the server granted."""
        return Plan(
            "renew",
            lambda server, _: renew_program(server.requests, renewals, server.known.epoch),
            renewals=renewals,
        )

    def give(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> Plan[Server, GiveOutcome]:
        """A release, or a closing."""
        return Plan(
            "give",
            lambda server, _: give_program(server.requests, key, claim, token, parting),
            (key,),
        )

    def give_all(self, gives: Sequence[Give]) -> Plan[Server, Gave]:
        """Several releases whose requests are sent together."""
        return joined([self.give(*give) for give in gives])

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> Plan[Server, PutOutcome]:
        """A write, repeatable if a second, equal one would give the same outcome as the first."""
        return Plan(
            "put",
            lambda server, _: put_program(server.requests, key, field, value, guard),
            (key,),
            repeatable=guard is None or isinstance(guard, ByClaim),
        )

    def read(self, key: Key) -> Plan[Server, Record]:
        """A read of the record of a key."""
        return Plan("read", lambda server, _: read_program(server.requests, key), (key,))

    def scan(self, namespace: str, prefix: str) -> Plan[Server, tuple[Record, ...]]:
        """A read of the records in the namespace whose names begin with the prefix."""
        return Plan("scan", lambda server, _: scan_program(server.requests, namespace, prefix))

    def unchanged(self, key: Key, seen: str) -> Plan[Server, bool]:
        """A check whether the state that `Refused.seen` describes is unchanged."""
        return Plan("look", lambda server, _: unchanged_program(server.requests, key, seen), (key,))

    def time(self) -> Plan[Server, int]:
        """A read of the server's clock in microseconds."""
        return Plan("look", lambda server, _: time_program(server.requests))


DIALECT: Final = RedisDialect()


class RedisExchange(PlanRunner[W, Server], PlannedTogether[Server]):
    """Carries out the plans for one server, on the connections that it keeps."""

    dialect = DIALECT
    unusable = UNUSABLE

    def __init__(self, site: RedisSite, requests: Requests, side: ReaderSide) -> None:
        super().__init__(site.where)
        self.site = site
        self.requests = requests
        self.hub = LineHub(requests, side)

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
        program = plan.start(Server(self.site, self.requests, wire), until)
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
        wire.learn_from(met, _now(), site.marker.settle)
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
