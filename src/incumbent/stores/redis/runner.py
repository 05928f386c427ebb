"""The plans of Redis, and how they are carried out on the connections to one server.

Both sides share it; see `wire`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import (
    PLAIN,
    ByClaim,
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
from incumbent.net.pool import PlanRunner
from incumbent.net.readers import ReaderSide
from incumbent.stores.base import Answers, Give, Take
from incumbent.stores.plan import Plan
from incumbent.stores.redis.give import give_back, give_program
from incumbent.stores.redis.incarnation import RedisOperations, RedisPlan, ServerContext
from incumbent.stores.redis.options import RedisOptions
from incumbent.stores.redis.put_read import put_program, read_program, scan_program
from incumbent.stores.redis.renew import renew_program
from incumbent.stores.redis.resp import RequestBatch, RespProgram, each_step, milliseconds, pack
from incumbent.stores.redis.site import Demoted, Packer, RedisSite
from incumbent.stores.redis.subscription import LineHub, time_program, unchanged_program
from incumbent.stores.redis.take import TakePlan, begin_handshake, take_plan, too_early
from incumbent.stores.redis.wire import (
    UNUSABLE,
    AnyWire,
    JoinedPlan,
    Layer,
    RedisSide,
    joined,
    run_program,
)

T = TypeVar("T")
W = TypeVar("W", bound=AnyWire)

_now = clock.now
_SHARE: Final = 0.5
"""The share of the remaining time that WAIT may take: a grant may have to be given back."""


class RedisDialect:
    """The plans of Redis; see stores.plan.DialectOfMany."""

    take = staticmethod(take_plan)

    def take_all(self, takes: Sequence[Take]) -> RedisPlan[Answers[TakeOutcome]]:
        """Several takes whose requests are sent together."""
        return joined([self.take(*take) for take in takes])

    def renew(self, renewals: Sequence[Renewal]) -> RedisPlan[list[RenewOutcome]]:
        """A renewal of the leases that this incarnation of the server granted."""
        return Plan(
            "renew",
            lambda server, _: renew_program(server.packer, renewals, server.facts.epoch),
            renewals=renewals,
        )

    def give(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> RedisPlan[GiveOutcome]:
        """A release, or a closing."""
        return Plan(
            "give",
            lambda server, _: give_program(server.packer, key, claim, token, parting),
            (key,),
        )

    def give_all(self, gives: Sequence[Give]) -> RedisPlan[Answers[GiveOutcome]]:
        """Several releases whose requests are sent together."""
        return joined([self.give(*give) for give in gives])

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard) -> RedisPlan[PutOutcome]:
        """A write, repeatable if a second, equal one would give the same outcome as the first."""
        return Plan(
            "put",
            lambda server, _: put_program(server.packer, key, field, value, guard),
            (key,),
            repeatable=guard is None or isinstance(guard, ByClaim),
        )

    def read(self, key: Key) -> RedisPlan[Record]:
        """A read of the record of a key."""
        return Plan("read", lambda server, _: read_program(server.packer, key), (key,))

    def scan(self, namespace: str, prefix: str) -> RedisPlan[tuple[Record, ...]]:
        """A read of the records in the namespace whose names begin with the prefix."""
        return Plan("scan", lambda server, _: scan_program(server.packer, namespace, prefix))


DIALECT: Final = RedisDialect()


class RedisRunner(PlanRunner[W, ServerContext], RedisOperations):
    """Carries out the plans for one server, on the connections that it keeps."""

    dialect = DIALECT
    unusable = UNUSABLE

    def __init__(self, site: RedisSite, packer: Packer, side: ReaderSide) -> None:
        super().__init__(site.where)
        self.site = site
        self.packer = packer
        self.hub = LineHub(packer, side)

    @abstractmethod
    async def dial(self, until: float) -> W:
        """A connection that is logged in. Raises StoreUnavailable, at `until` at the latest."""

    async def run(self, plan: RedisPlan[T], until: float) -> T:
        """See Planned.run. A waiter's take is not sent if the server's last refusal still holds."""
        if type(plan) is TakePlan:
            refusal: Any = self.hub.known_refusal(plan.claim, plan.ask)
            if refusal is not None:
                return cast("T", refusal)
        sent = _now()
        outcome = await self.carry(plan, until)
        if type(plan) is TakePlan:
            self.hub.note_outcome(plan.claim, sent, cast("Any", outcome))
        return outcome

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await ignore_late_error(self.hub.wait(self, key, seen, until), until)

    def let_go(self) -> None:
        super().let_go()
        self.hub.let_go()

    # -- connections --------------------------------------------------------------------------

    async def carry_out(self, wire: W, plan: RedisPlan[T], until: float) -> T:
        wire.used = now = _now()
        # Before anything is sent: a grant that comes too early would have to be given back.
        if plan.ttl and (early := too_early(self.site, wire.server, plan.ttl, now)) is not None:
            raise early
        program = plan.start(ServerContext(self.site, self.packer, wire.server), until)
        outcome = await run_program(wire, program, until, site=self.site)
        if plan.kind != "renew" and isinstance(outcome, list):
            # The outcomes of joined plans, where a refusal is returned, not raised.
            for each in outcome:
                if isinstance(each, Demoted):
                    self.keep_or_close(wire, self.idle, each)
        return outcome

    def keep_or_close(self, wire: W, idle: list[W], error: BaseException) -> None:
        """See PlanRunner. After a refusal keep the connection, unless the server has changed."""
        if isinstance(error, Demoted) or wire.server.problem or not isinstance(error, StoreError):
            wire.close()
        else:
            self.put_back(wire, idle)

    async def fresh(self, plan: RedisPlan[T], until: float) -> W:
        return await self._connect(until)

    async def _connect(self, until: float) -> W:
        site = self.site
        target = site.target
        wire = await self.dial(until)
        if site.target is not target:
            # With the old number, a new marker would name an outdated promotion.
            wire.close()
            raise self._replaced()
        wire.server.target = target
        # At once, so that a child that is forked during the handshake releases the descriptor.
        self.all.add(wire)
        try:
            found = await run_program(wire, begin_handshake(site, target.promotion), until)
        except UNUSABLE as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.server.learn_from(found, _now(), site.old_master_for)
        # The clock of a server may be set; what this process has seen itself is certain.
        # Read once: another thread may note another incarnation, which may be older, at any time.
        sighted = site.sighted
        if sighted[0] != found.marker.id:
            site.sighted = sighted = (found.marker.id, wire.server.born)
        wire.server.born = min(wire.server.born, sighted[1])
        site.served = True
        return wire

    def _replaced(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.site.where} cannot be reached: another server has taken its place"
        )

    # -- for the hub: see subscription.HubStore -----------------------------------------------

    def drop_outdated(self, epoch: str) -> None:
        """Close the idle connections if one leads to another incarnation than the newest one."""
        if any(it.server.epoch != epoch for it in list(self.idle)):
            super().let_go()

    async def open_subscriber(self, until: float) -> W:
        idle = self.idle
        wire = await self._connect(until)
        if idle is not self.idle:
            wire.close()
            raise self._replaced()
        self.drop_outdated(wire.server.epoch)
        return wire

    async def server_time(self, until: float) -> int:
        plan: RedisPlan[int] = Plan("look", lambda server, _: time_program(server.packer))
        return await self.carry(plan, until)

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        plan: RedisPlan[bool] = Plan(
            "look", lambda server, _: unchanged_program(server.packer, key, seen), (key,)
        )
        return await self.carry(plan, until)


async def ignore_late_error(waiting: Awaitable[None], until: float) -> None:
    """Wait. A StoreError after `until` is ignored, because the caller rechecks then."""
    try:
        await waiting
    except StoreError:
        if _now() < until:
            raise


# -- replicas that must confirm (`wait_replicas`) --------------------------------------------------
#
# WAIT says how many replicas have received all earlier writes. A grant that too few of them have
# is given back; a renewal that too few of them have does not prove the lease.


def operations_at(
    options: RedisOptions, site: RedisSite, packer: Packer, side: RedisSide
) -> RedisOperations:
    """The connections to one server, with the confirmation by replicas if the options want it."""
    runner = side.runner(site, packer)
    if options.wait_replicas:
        return ReplicaConfirmation(runner, options.wait_replicas, options.wait_timeout)
    return runner


class ReplicaConfirmation(Layer):
    """Waits for `replicas` replicas to confirm, for at most `timeout` seconds."""

    def __init__(self, inner: RedisOperations, replicas: int, timeout: float) -> None:
        super().__init__(inner)
        self._replicas = replicas
        self._timeout = timeout

    async def run(self, plan: RedisPlan[T], until: float) -> T:
        """See Planned.run. Raises StoreUnavailable after giving back an unconfirmed grant.

        Raises OutcomeUnknown if a renewal is not confirmed.
        """
        confirming_plan: Any = plan
        if plan.kind == "take":
            confirming_plan = replace(plan, start=partial(self._take, plan))
        elif plan.kind == "renew":
            confirming_plan = replace(plan, start=partial(self._renew, plan))
        outcome: T = await self.inner.run(confirming_plan, until)
        return outcome

    def _take(self, plan: RedisPlan[T], server: ServerContext, until: float) -> RespProgram[T]:
        outcome = yield from plan.start(server, until)
        takes: Any = [(plan, outcome)]
        if isinstance(plan, JoinedPlan):
            takes = zip(plan.parts, cast("list[Any]", outcome), strict=True)
        granted = [(take, grant) for take, grant in takes if isinstance(grant, Granted)]
        if not granted:
            return outcome
        # After the take, not with it: a refusal needs nobody to confirm it, and would wait in vain.
        (count_or_error,) = yield self._with_wait(b"", 0, until)
        if self._has_enough(count_or_error):
            return outcome
        # All of them: one WAIT speaks for every write before it on this connection.
        for take, grant in granted:
            yield from give_back(server.packer, take.keys[0], grant, take.ask)
        few = self._describe_shortfall(count_or_error, server.site.where)
        raise StoreUnavailable(f"{few}: the grant was given back", retry_after=0.1)

    def _renew(self, plan: RedisPlan[T], server: ServerContext, until: float) -> RespProgram[T]:
        """The program of `plan`, where each step counts only once enough replicas have it."""

        def ask(step: RequestBatch) -> RespProgram[list[Any]]:
            *answers, count_or_error = yield self._with_wait(step.payload, step.answers, until)
            if not self._has_enough(count_or_error):
                few = self._describe_shortfall(count_or_error, server.site.where)
                raise OutcomeUnknown(f"{few}: this proves nothing")
            return answers

        return each_step(plan.start(server, until), ask)

    def _with_wait(self, payload: bytes, answers: int, until: float) -> RequestBatch:
        timeout = min(self._timeout, max(0.0, until - _now()) * _SHARE)
        return RequestBatch(
            payload + pack("WAIT", self._replicas, milliseconds(timeout)), answers + 1
        )

    def _has_enough(self, count_or_error: Any) -> bool:
        return isinstance(count_or_error, int) and count_or_error >= self._replicas

    def _describe_shortfall(self, count_or_error: Any, where: str) -> str:
        if not isinstance(count_or_error, int):
            return f"{where} could not say how many replicas have it ({count_or_error})"
        return (
            f"{where}: {count_or_error} of {self._replicas} replicas had it within"
            f" {say_seconds(self._timeout)} (wait_replicas)"
        )
