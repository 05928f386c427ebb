"""Memory tables with one planted bug each in what becomes of a take that arrives too late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from incumbent.model import Ask, GiveOutcome, Granted, Key, TakeOutcome
from incumbent.rules.record import GivenUp, micros
from incumbent.stores.memory import MemoryTable
from tests.contract.planted import Planted


class LateTakeIsGranted(MemoryTable):
    late_kept = 0.0


class LateIsForgottenAfterATtl(MemoryTable):
    late_kept = 10.0


class OnlyTheUnknownIsGivenUp(Planted):
    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        held = self.alone(key, now)
        if held and held.claim == claim:
            token = held.token
        return super().give(key, claim, token, now, *rest, **more)


class _LateTake(Planted):
    def _is_late(self, key: Key, claim: str, now: float) -> bool:
        gone = self.record(key).given_up
        return any(it.claim == claim and it.until > micros(now) for it in gone)


class LateTakeUsesItsSlot(_LateTake):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if self._is_late(key, claim, now) and ask.slot is not None:
            other = super().take(key, "somebody else", ask, now, *rest, **more)
            assert isinstance(other, Granted)
            super().give(key, other.claim, other.token, now, now)
        return outcome


class LateTakeStandsInLine(_LateTake):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if self._is_late(key, claim, now) and ask.queue is not None:
            super().take(key, "late", replace(ask, slot=None), now, *rest, **more)
        return outcome


class EverybodyIsLate(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        gone = self.record(key).given_up
        self.change(key, given_up=(*gone, *(GivenUp(claim, it.until) for it in gone)))
        return super().take(key, claim, ask, now, *rest, **more)
