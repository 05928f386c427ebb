"""Grants and renewals that count only once enough replicas have them (`wait_replicas`).

WAIT tells how many replicas have received everything that was written before it. A grant that too
few of them have is given back; a renewal that too few of them have proves nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Granted
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import JoinedPlan, Server, give_back
from incumbent.stores.redis.options import RedisOptions
from incumbent.stores.redis.resp import Program, Step, each_step, milliseconds, pack
from incumbent.stores.redis.sides import Layer, Side
from incumbent.stores.redis.site import Site

T = TypeVar("T")

_now = clock.now
_SHARE: Final = 0.5
"""Of the time that is left, at most this goes to waiting: a grant may have to be given back."""


def connections(
    options: RedisOptions, site: Site, commands: Commands, side: Side
) -> PlannedTogether[Server]:
    """The connections to one server, and the replicas that have to confirm what it grants."""
    exchange = side.exchange(site, commands)
    if options.wait_replicas:
        return Confirmed(exchange, options.wait_replicas, options.wait_timeout)
    return exchange


class Confirmed(Layer):
    """Asks `replicas` replicas for at most `patience` seconds."""

    def __init__(self, exchange: PlannedTogether[Server], replicas: int, patience: float) -> None:
        super().__init__(exchange)
        self._replicas = replicas
        self._patience = patience

    async def run(self, plan: Plan[Server, T], until: float) -> T:
        """See Planned.run. A grant that is not confirmed is none, and is given back.

        Raises OutcomeUnknown if a renewal is not confirmed.
        """
        confirmed: Any = plan
        if plan.kind == "take":
            confirmed = replace(plan, start=partial(self._take, plan))
        elif plan.kind == "renew":
            confirmed = replace(plan, start=partial(self._renew, plan))
        outcome: T = await self.inner.run(confirmed, until)
        return outcome

    def _take(self, plan: Plan[Server, T], server: Server, until: float) -> Program[T]:
        outcome = yield from plan.start(server, until)
        takes: Any = [(plan, outcome)]
        if isinstance(plan, JoinedPlan):
            takes = zip(plan.parts, cast("list[Any]", outcome), strict=True)
        granted = [(take, grant) for take, grant in takes if isinstance(grant, Granted)]
        if not granted:
            return outcome
        (confirmed,) = yield self._step(b"", 0, until)
        if self._are_enough(confirmed):
            return outcome
        for take, grant in granted:
            yield from give_back(server.commands, take.keys[0], grant, take.ask)
        few = self._too_few(confirmed, server.site.where)
        raise StoreUnavailable(f"{few}: the grant was given back", retry_after=0.1)

    def _renew(self, plan: Plan[Server, T], server: Server, until: float) -> Program[T]:
        """The same, where each step counts only once enough replicas have it."""

        def ask(step: Step) -> Program[list[Any]]:
            *answers, confirmed = yield self._step(step.payload, step.answers, until)
            if not self._are_enough(confirmed):
                few = self._too_few(confirmed, server.site.where)
                raise OutcomeUnknown(f"{few}: this proves nothing")
            return answers

        return each_step(plan.start(server, until), ask)

    def _step(self, payload: bytes, answers: int, until: float) -> Step:
        patience = min(self._patience, max(0.0, until - _now()) * _SHARE)
        return Step(payload + pack("WAIT", self._replicas, milliseconds(patience)), answers + 1)

    def _are_enough(self, confirmed: Any) -> bool:
        return isinstance(confirmed, int) and confirmed >= self._replicas

    def _too_few(self, confirmed: Any, where: str) -> str:
        if not isinstance(confirmed, int):
            return f"{where} could not say how many replicas have it ({confirmed})"
        return (
            f"{where}: {confirmed} of {self._replicas} replicas had it within"
            f" {say_seconds(self._patience)} (wait_replicas)"
        )
