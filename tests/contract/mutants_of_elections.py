"""Memory tables with one planted bug each in what elections need: candidates, hand-over, pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Granted,
    Key,
    Parting,
    Refused,
    Renewal,
    Renewed,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.rules.record import micros
from incumbent.stores.memory import MemoryTable
from tests.contract.planted import Planted


class CandidateNeverExpires(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if ask.candidacy > 0:
            ask = replace(ask, candidacy=1e9)
        return super().take(key, claim, ask, now, *rest, **more)


class CandidateStaysWhenGranted(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        before = self.record(key).candidates
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Granted):
            self.change(key, candidates=before)
        return outcome


class CandidateIsAChange(Planted):
    """Every standby would wake all others, without end."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Refused) and ask.candidacy > 0:
            self.change(key, changes=self.record(key).changes + 1)
        return outcome


class ReservationAdmitsEverybody(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        closing = self.record(key).closing
        if closing is not None and closing.reserved_for:
            self.change(key, closing=closing._replace(reserved_for=ask.holder))
        return super().take(key, claim, ask, now, *rest, **more)


class ReservationAdmitsNobody(MemoryTable):
    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        now: float,
        wall: float,
        parting: Parting = PLAIN,
    ) -> GiveOutcome:
        return super().give(key, claim, token, now, wall, parting._replace(reserve_for=None))


class ReservationNeverEnds(Planted):
    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        outcome = super().give(key, claim, token, now, *rest, **more)
        closing = self.record(key).closing
        if closing is not None and closing.reserved_for:
            self.change(key, closing=closing._replace(until=micros(now + 1e9)))
        return outcome


class ReservationOutlivesItsGrant(Planted):
    """The next closing still admits whom an earlier one was for."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        before = self.record(key).closing
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Granted) and before is not None:
            self.change(key, closing=before)
        return outcome


class MetaChangeUnseen(Planted):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        before = self.record(renewal.key).changes
        outcome = super().renew(renewal, now)
        self.change(renewal.key, changes=before)
        return outcome


class EveryRenewalIsAChange(Planted):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        outcome = super().renew(renewal, now)
        if isinstance(outcome, Renewed):
            self.change(renewal.key, changes=self.record(renewal.key).changes + 1)
        return outcome


class PauseEndsByItself(Planted):
    """The record's time is up, and the switch is forgotten with it."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[Key, float] = {}

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if now >= self._ends.get(key, now + 1):
            self.change(key, pause=None)
        self._ends.setdefault(key, now + ask.keep_record)
        return super().take(key, claim, ask, now, *rest, **more)


class PauseDiesWithTheStore(Planted):
    def restart(self, now: float, *, empty: bool) -> None:
        super().restart(now, empty=empty)
        for key in self._kept:
            self.change(key, pause=None)
