"""Memory tables with one planted bug each in what elections need: candidates, hand-over, pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from incumbent.model import (
    Ask,
    GiveOutcome,
    Granted,
    Key,
    Refused,
    Renewal,
    Renewed,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.notices import PAUSE
from incumbent.stores.table import MemoryTable


class CandidateNeverExpires(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if ask.candidacy > 0:
            ask = replace(ask, candidacy=1e9)
        return super().take(key, claim, ask, now, *rest, **more)


class CandidateStaysWhenGranted(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        before = dict(self._entries[key].candidates) if key in self._entries else {}
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Granted):
            self._entries[key].candidates = before
        return outcome


class CandidateIsAChange(MemoryTable):
    """Every standby would wake all others, without end."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Refused) and ask.candidacy > 0:
            self._entries[key].changes += 1
        return outcome


class ReservationAdmitsEverybody(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        closing = self._entries[key].closing if key in self._entries else None
        if closing is not None and closing.reserved_for:
            closing.reserved_for = ask.holder
        return super().take(key, claim, ask, now, *rest, **more)


class ReservationAdmitsNobody(MemoryTable):
    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        now: float,
        wall: float,
        closed_for: float = 0.0,
        slot: str | None = None,
        reserve_for: str | None = None,
        shared: bool = False,
    ) -> GiveOutcome:
        return super().give(key, claim, token, now, wall, closed_for, slot)


class ReservationNeverEnds(MemoryTable):
    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        outcome = super().give(key, claim, token, now, *rest, **more)
        closing = self._entries[key].closing if key in self._entries else None
        if closing is not None and closing.reserved_for:
            closing.expires = now + 1e9
        return outcome


class ReservationOutlivesItsGrant(MemoryTable):
    """The next closing still admits whom an earlier one was for."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        before = self._entries[key].closing if key in self._entries else None
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Granted) and before is not None:
            self._entries[key].closing = before
        return outcome


class MetaChangeUnseen(MemoryTable):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        entry = self._entries.get(renewal.key)
        before = entry.changes if entry is not None else 0
        outcome = super().renew(renewal, now)
        if entry is not None:
            entry.changes = before
        return outcome


class EveryRenewalIsAChange(MemoryTable):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        outcome = super().renew(renewal, now)
        if isinstance(outcome, Renewed):
            self._entries[renewal.key].changes += 1
        return outcome


class PauseEndsByItself(MemoryTable):
    """The record's time is up, and the switch is forgotten with it."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[Key, float] = {}

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if now >= self._ends.get(key, now + 1):
            self._entries[key].fields.pop(PAUSE, None)
        self._ends.setdefault(key, now + ask.keep_record)
        return super().take(key, claim, ask, now, *rest, **more)


class PauseDiesWithTheStore(MemoryTable):
    def restart(self, now: float, *, empty: bool) -> None:
        super().restart(now, empty=empty)
        for entry in self._entries.values():
            entry.fields.pop(PAUSE, None)
