"""Grants and renewals that count only once enough replicas have them (`wait_replicas`).

WAIT tells how many replicas have received everything that was written before it. A grant that too
few of them have is given back; a renewal that too few of them have proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Ask, Granted, Key, Renewal, RenewOutcome, TakeOutcome
from incumbent.stores.redis.exchange import Exchange, carry_out, is_forgotten
from incumbent.stores.redis.incarnation import Known
from incumbent.stores.redis.layers.base import Layer
from incumbent.stores.redis.resp import Program, Step, as_eval, milliseconds, pack
from incumbent.stores.redis.taking import give_back, take_program

__all__ = ["Confirmed"]

T = TypeVar("T")

_now = clock.now
_SHARE: Final = 0.5
"""Of the time that is left, at most this goes to waiting: a grant may have to be given back."""


class Confirmed(Layer):
    """Asks `replicas` replicas for at most `patience` seconds."""

    def __init__(self, exchange: Exchange[Any], replicas: int, patience: float) -> None:
        super().__init__(exchange)
        self._exchange = exchange
        self._replicas = replicas
        self._patience = patience

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take. A grant that is not confirmed is none, and is given back."""

        async def asking() -> TakeOutcome:
            return await self._do(
                lambda wire: self._take(key, claim, ask, wire, until),
                until,
                ask.ttl,
                repeatable=False,
            )

        return await self._exchange.hub.said_or_asked(claim, ask, asking)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew. Raises OutcomeUnknown where it is not confirmed."""
        return await self._do(
            lambda wire: self.confirmed(self._exchange.dialect.renew(renewals, wire.epoch), until),
            until,
        )

    async def _do(
        self,
        start: Callable[[Known], Program[T]],
        until: float,
        ttl: float = 0.0,
        *,
        repeatable: bool = True,
    ) -> T:
        async def operate(wire: Any) -> T:
            return await carry_out(wire, start(wire), until)

        return await self._exchange.do(operate, until, ttl, repeatable=repeatable)

    def _take(
        self, key: Key, claim: str, ask: Ask, wire: Known, until: float
    ) -> Program[TakeOutcome]:
        dialect = self._exchange.dialect
        outcome = yield from take_program(
            self._exchange.site, dialect, wire, key, claim, ask, until
        )
        if not isinstance(outcome, Granted):
            return outcome
        (said,) = yield self._step(b"", 0, until)
        if self._are_enough(said):
            return outcome
        yield from give_back(dialect, key, outcome, ask)
        raise StoreUnavailable(f"{self._too_few(said)}: the grant was given back", retry_after=0.1)

    def confirmed(self, program: Program[T], until: float) -> Program[T]:
        """The same, where each step counts only once enough replicas have it."""
        answers: Any = None
        try:
            while True:
                step = program.send(answers)
                *answers, said = yield self._step(step.payload, step.answers, until)
                if step.answers == 1 and is_forgotten(answers[0]):
                    *answers, said = yield self._step(as_eval(step.payload), step.answers, until)
                if not self._are_enough(said):
                    raise OutcomeUnknown(f"{self._too_few(said)}: this proves nothing")
        except StopIteration as end:
            result: T = end.value
            return result

    def _step(self, payload: bytes, answers: int, until: float) -> Step:
        patience = min(self._patience, max(0.0, until - _now()) * _SHARE)
        return Step(payload + pack("WAIT", self._replicas, milliseconds(patience)), answers + 1)

    def _are_enough(self, said: Any) -> bool:
        return isinstance(said, int) and said >= self._replicas

    def _too_few(self, said: Any) -> str:
        where = self._exchange.site.where
        if not isinstance(said, int):
            return f"{where} could not say how many replicas have it ({said})"
        return (
            f"{where}: {said} of {self._replicas} replicas had it within"
            f" {say_seconds(self._patience)} (wait_replicas)"
        )
