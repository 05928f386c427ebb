"""Layers between a caller and the connections, for stores with more than one server.

A layer wraps `run`, in coroutines over the connections to each server (or over another layer). The
asynchronous side awaits them; the blocking side runs each in one step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Granted, Key
from incumbent.net.pool import exchange_error
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.give import give_back
from incumbent.stores.redis.incarnation import Server
from incumbent.stores.redis.options import RedisOptions
from incumbent.stores.redis.resp import Program, RequestBatch, each_step, milliseconds, pack
from incumbent.stores.redis.server import RedisSite, Requests
from incumbent.stores.redis.wire import UNUSABLE, AnyWire, JoinedPlan, carry_out

T = TypeVar("T")

Call: TypeAlias = Callable[[float], Coroutine[Any, Any, T]]
"""A call with a deadline, an instant. Raises StoreError."""
Enough: TypeAlias = Callable[[Sequence[T]], bool]
"""Whether these results are enough."""


def at_least(count: int) -> Enough[Any]:
    """A function that says whether there are at least `count` results."""
    return lambda results: len(results) >= count


class Layer(PlannedTogether[Server]):
    """Passes every call on to `inner`. Subclasses add steps before and after."""

    def __init__(self, inner: PlannedTogether[Server]) -> None:
        self.inner = inner
        self.dialect = inner.dialect

    async def run(self, plan: Plan[Server, T], until: float) -> T:
        return await self.inner.run(plan, until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self.inner.wait_change(key, seen, until)

    def let_go(self) -> None:
        self.inner.let_go()


class Discovery(Protocol):
    """The servers' addresses, as last discovered; `advice`: what to check if discovery fails."""

    advice: str

    @property
    def summary(self) -> str:
        """The description for `doctor`."""

    def masters(self) -> list[tuple[str, RedisSite]]:
        """The known masters, each with its name if there are several."""

    @property
    def stale(self) -> bool:
        """Whether the servers must be asked again for the addresses."""

    async def ask(self, runtime: Runtime, until: float) -> object:
        """Ask the servers for the addresses. Raises StoreUnavailable."""


class Runtime(ABC):
    """How one kind of caller (blocking or asyncio) connects, waits and runs calls in parallel."""

    @abstractmethod
    def exchange(self, site: RedisSite, requests: Requests) -> PlannedTogether[Server]:
        """The connections to one server."""

    @abstractmethod
    async def dial(self, site: RedisSite, until: float) -> AnyWire:
        """A connection that is logged in. Raises StoreUnavailable."""

    @abstractmethod
    async def gather(
        self, calls: Sequence[Call[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        """Run all calls in parallel; return each call's result or StoreError.

        Stop as soon as `enough` results are there. Re-raise any other exception.
        """

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, and let other threads or tasks work meanwhile."""

    async def update(self, discovery: Discovery, until: float) -> None:
        """Discover the servers again, if the addresses are stale. Each thread asks for itself."""
        if discovery.stale:
            await discovery.ask(self, until)

    async def survey(
        self,
        sites: Sequence[RedisSite],
        program: Callable[[RedisSite], Program[T]],
        enough: Enough[T],
        until: float,
    ) -> list[T | StoreError]:
        """Run a program at all sites, each on its own connection, until answers are `enough`.

        Never raises: the error of a failed site is its outcome. Programs may run in parallel
        threads, so they must share no state.
        """
        calls = [partial(self._ask, site, program) for site in sites]
        return await self.gather(calls, until, enough)

    async def _ask(
        self, site: RedisSite, program: Callable[[RedisSite], Program[T]], until: float
    ) -> T:
        try:
            wire = await self.dial(site, until)
            try:
                return await carry_out(wire, program(site), until)
            finally:
                wire.close()
        except UNUSABLE as error:
            raise exchange_error(error, site.where) from error


_now = clock.now
_SHARE: Final = 0.5
"""The share of the remaining time that WAIT may take: a grant may have to be given back."""


# -- replicas that must confirm (`wait_replicas`) --------------------------------------------------
#
# WAIT tells how many replicas have received all earlier writes. A grant that too few of them have
# is given back; a renewal that too few of them have does not prove the lease.


def connections(
    options: RedisOptions, site: RedisSite, requests: Requests, runtime: Runtime
) -> PlannedTogether[Server]:
    """The connections to one server, with the confirmation by replicas if the options want it."""
    exchange = runtime.exchange(site, requests)
    if options.wait_replicas:
        return ReplicaConfirmation(exchange, options.wait_replicas, options.wait_timeout)
    return exchange


class ReplicaConfirmation(Layer):
    """Waits for `replicas` replicas to confirm, for at most `patience` seconds."""

    def __init__(self, exchange: PlannedTogether[Server], replicas: int, patience: float) -> None:
        super().__init__(exchange)
        self._replicas = replicas
        self._patience = patience

    async def run(self, plan: Plan[Server, T], until: float) -> T:
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

    def _take(self, plan: Plan[Server, T], server: Server, until: float) -> Program[T]:
        outcome = yield from plan.start(server, until)
        takes: Any = [(plan, outcome)]
        if isinstance(plan, JoinedPlan):
            takes = zip(plan.parts, cast("list[Any]", outcome), strict=True)
        granted = [(take, grant) for take, grant in takes if isinstance(grant, Granted)]
        if not granted:
            return outcome
        (count_or_error,) = yield self._with_wait(b"", 0, until)
        if self._has_enough(count_or_error):
            return outcome
        for take, grant in granted:
            yield from give_back(server.requests, take.keys[0], grant, take.ask)
        few = self._describe_shortfall(count_or_error, server.site.where)
        raise StoreUnavailable(f"{few}: the grant was given back", retry_after=0.1)

    def _renew(self, plan: Plan[Server, T], server: Server, until: float) -> Program[T]:
        """The program of `plan`, where each step counts only once enough replicas have it."""

        def ask(step: RequestBatch) -> Program[list[Any]]:
            *answers, count_or_error = yield self._with_wait(step.payload, step.answers, until)
            if not self._has_enough(count_or_error):
                few = self._describe_shortfall(count_or_error, server.site.where)
                raise OutcomeUnknown(f"{few}: this proves nothing")
            return answers

        return each_step(plan.start(server, until), ask)

    def _with_wait(self, payload: bytes, answers: int, until: float) -> RequestBatch:
        patience = min(self._patience, max(0.0, until - _now()) * _SHARE)
        return RequestBatch(
            payload + pack("WAIT", self._replicas, milliseconds(patience)), answers + 1
        )

    def _has_enough(self, count_or_error: Any) -> bool:
        return isinstance(count_or_error, int) and count_or_error >= self._replicas

    def _describe_shortfall(self, count_or_error: Any, where: str) -> str:
        if not isinstance(count_or_error, int):
            return f"{where} could not say how many replicas have it ({count_or_error})"
        return (
            f"{where}: {count_or_error} of {self._replicas} replicas had it within"
            f" {say_seconds(self._patience)} (wait_replicas)"
        )
