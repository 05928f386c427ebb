"""Memory tables with one planted bug each in the line of those who wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from incumbent.model import Ask, GiveOutcome, Key, Queued, Refused, TakeOutcome
from incumbent.stores.table import Line, MemoryTable, Waiter


class _Table(MemoryTable):
    """A table whose lines are of another kind."""

    line: type[Line] = Line

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        entry = self._entries.get(key)
        if entry is not None and type(entry.line) is not self.line:
            entry.line = self.line()
        return super().take(key, claim, ask, now, *rest, **more)


class _LastComesFirst(Line):
    def stand(self, waiter: Waiter, now: float, looks_in: float) -> int:
        if waiter.claim not in self.waiting:
            self.waiting = {waiter.claim: waiter, **self.waiting}
        return super().stand(waiter, now, looks_in)


class _BackToTheEnd(Line):
    def stand(self, waiter: Waiter, now: float, looks_in: float) -> int:
        self.waiting.pop(waiter.claim, None)
        return super().stand(waiter, now, looks_in)


class _OvertakenForEver(Line):
    def granted(self, claim: str, now: float, ttl: float) -> None:
        super().granted(claim, now, ttl)
        self.overtaken = 0


class _NeverOvertaken(Line):
    def before(self, claim: str, now: float) -> Waiter | None:
        first = self.first()
        return None if first is None or first.claim == claim or self.due <= now else first


class _CountsOn(Line):
    def _begin_turn(self, now: float) -> None:
        counted = self.overtaken
        super()._begin_turn(now)
        self.overtaken = counted


class _WaitsForTheSilent(Line):
    def free(self, now: float) -> None:
        super().free(now)
        self.due += 1e9


class _StaysWhenGranted(Line):
    def granted(self, claim: str, now: float, ttl: float) -> None:
        kept = dict(self.waiting)
        super().granted(claim, now, ttl)
        self.waiting, self.due = kept, now + ttl + 60


class _NeverLeaves(Line):
    def leave(self, claim: str, now: float, looks_in: float) -> bool:
        return False


class _NoTurnAfterACrash(Line):
    def stand(self, waiter: Waiter, now: float, looks_in: float) -> int:
        place = super().stand(waiter, now, looks_in)
        self.due = now + looks_in
        return place


class LastComesFirst(_Table):
    line = _LastComesFirst


class WhoAsksAgainGoesToTheEnd(_Table):
    line = _BackToTheEnd


class OvertakenForEver(_Table):
    line = _OvertakenForEver


class NeverOvertaken(_Table):
    """No barging at all: what nobody asked for, and what costs a hand-over each time."""

    line = _NeverOvertaken


class CountsOvertakingOn(_Table):
    line = _CountsOn


class WaitsForTheSilent(_Table):
    line = _WaitsForTheSilent


class StaysInLineWhenGranted(_Table):
    line = _StaysWhenGranted


class NeverLeavesTheLine(_Table):
    line = _NeverLeaves


class NoTurnAfterACrash(_Table):
    line = _NoTurnAfterACrash


class FairnessIsForgotten(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if ask.queue is not None:
            ask = replace(ask, queue=ask.queue._replace(fair=False))
        return super().take(key, claim, ask, now, *rest, **more)


class EverybodyStandsInLine(MemoryTable):
    """Also who tries once, and never comes back."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Refused) and not isinstance(outcome, Queued):
            return Queued(outcome.reason, outcome.holders, outcome.retry_after, outcome.seen)
        return outcome


class WaitingIsAChange(MemoryTable):
    """Every waiter would wake all others, without end."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Queued):
            self._entries[key].changes += 1
        return outcome


class TheLineComesBeforeASuccessor(MemoryTable):
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
        first = self._entries[key].line.first() if key in self._entries else None
        if reserve_for and first is not None:
            closed_for, reserve_for = 0.0, None
        return super().give(key, claim, token, now, wall, closed_for, slot, reserve_for)


class LeavingIsSilent(MemoryTable):
    """Who leaves when its turn has come tells nobody."""

    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        before = self._entries[key].changes if key in self._entries else 0
        outcome = super().give(key, claim, token, now, *rest, **more)
        if token is None:
            self._entries[key].changes = before
        return outcome


class WhoLeavesIsGivenUp(MemoryTable):
    """One that was only refused cannot come again."""

    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        return super().give(key, claim, token or None, now, *rest, **more)


class RepeatStandsInLine(MemoryTable):
    """A holder whose answer was lost would wait for itself."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        entry = self._entries.get(key)
        if entry is not None and ask.queue is not None and entry.line.first() is not None:
            held = entry.holding(now)
            if held is not None and held.claim == claim:
                return Queued("held", place=len(entry.line.waiting))
        return super().take(key, claim, ask, now, *rest, **more)
