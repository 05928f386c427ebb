"""Memory tables with one planted bug each in the line of those who wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, Queued, Refused, TakeOutcome
from incumbent.rules import line as lines
from incumbent.rules.record import Instant, Line, Waiter, after
from incumbent.stores.memory import MemoryTable
from tests.contract.planted import Planted


class _Lines(Planted):
    """A table in which one rule of the line is another one, while it works."""

    rules: ClassVar[dict[str, Any]] = {}

    def take(self, *rest: Any, **more: Any) -> TakeOutcome:
        with patch.multiple(lines, **self.rules):
            return super().take(*rest, **more)

    def give(self, *rest: Any, **more: Any) -> GiveOutcome:
        with patch.multiple(lines, **self.rules):
            return super().give(*rest, **more)


join, leave, preceding, served = lines.join, lines.leave, lines.preceding, lines.served
next_turn = lines._next_turn


def _join_as_the_first(line: Line, waiter: Waiter, looks_in: int, now: Instant) -> Line:
    others = tuple(it for it in line.waiters if it.claim != waiter.claim)
    if len(others) == len(line.waiters):
        line = line._replace(waiters=(waiter, *others))
    return join(line, waiter, looks_in, now)


def _join_at_the_end(line: Line, waiter: Waiter, looks_in: int, now: Instant) -> Line:
    others = tuple(it for it in line.waiters if it.claim != waiter.claim)
    return join(line._replace(waiters=others), waiter, looks_in, now)


def _join_without_a_turn(line: Line, waiter: Waiter, looks_in: int, now: Instant) -> Line:
    new = join(line, waiter, looks_in, now)
    return new._replace(lapses_at=after(looks_in)) if new.waiters[0].claim == waiter.claim else new


def _never_counts(line: Line, claim: str, ttl: int, now: Instant) -> Line:
    return served(line, claim, ttl, now)._replace(overtaken=0)


def _counts_on(line: Line, claim: str, ttl: int, now: Instant) -> Line:
    new = served(line, claim, ttl, now)
    return new._replace(overtaken=max(new.overtaken, line.overtaken)) if new.waiters else new


def _stays(line: Line, claim: str, ttl: int, now: Instant) -> Line:
    served(line, claim, ttl, now)
    return line._replace(lapses_at=after(ttl + 60_000_000)) if line.waiters else line


def _strictly_preceding(line: Line, claim: str, now: Instant) -> Waiter | None:
    first = lines.first(line)
    return None if first is None or first.claim == claim or line.lapses_at <= now else first


def _endless_turn(waiters: tuple[Waiter, ...], looks_in: int = 0) -> Line:
    new = next_turn(waiters, looks_in)
    return new._replace(lapses_at=new.lapses_at + 10**15) if waiters else new


def _endless_free(line: Line) -> Line:
    return _endless_turn(line.waiters)._replace(overtaken=line.overtaken) if line.waiters else line


class LastComesFirst(_Lines):
    rules: ClassVar = {"join": _join_as_the_first}


class WhoAsksAgainGoesToTheEnd(_Lines):
    rules: ClassVar = {"join": _join_at_the_end}


class OvertakenForEver(_Lines):
    rules: ClassVar = {"served": _never_counts}


class NeverOvertaken(_Lines):
    """No barging at all: what nobody asked for, and what costs a hand-over each time."""

    rules: ClassVar = {"preceding": _strictly_preceding}


class CountsOvertakingOn(_Lines):
    rules: ClassVar = {"served": _counts_on}


class WaitsForTheSilent(_Lines):
    rules: ClassVar = {"_next_turn": _endless_turn, "begin_turn": _endless_free}


class StaysInLineWhenGranted(_Lines):
    rules: ClassVar = {"served": _stays}


class NeverLeavesTheLine(_Lines):
    rules: ClassVar = {"leave": lambda line, _claim, _looks_in: line}


class NoTurnAfterACrash(_Lines):
    rules: ClassVar = {"join": _join_without_a_turn}


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


class WaitingIsAChange(Planted):
    """Every waiter would wake all others, without end."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Queued):
            self.change(key, changes=self.record(key).changes + 1)
        return outcome


class TheLineComesBeforeASuccessor(Planted):
    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        now: float,
        wall: float,
        parting: Parting = PLAIN,
    ) -> GiveOutcome:
        if parting.reserve_for and self.record(key).line.waiters:
            parting = parting._replace(closed_for=0.0, reserve_for=None)
        return super().give(key, claim, token, now, wall, parting)


class LeavingIsSilent(Planted):
    """Who leaves when its turn has come tells nobody."""

    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        before = self.record(key).changes
        outcome = super().give(key, claim, token, now, *rest, **more)
        if token is None:
            self.change(key, changes=before)
        return outcome


class WhoLeavesIsGivenUp(MemoryTable):
    """One that was only refused cannot come again."""

    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        return super().give(key, claim, token or None, now, *rest, **more)


class RepeatStandsInLine(Planted):
    """A holder whose answer was lost would wait for itself."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        waiters, held = self.record(key).line.waiters, self.alone(key, now)
        if ask.queue is not None and waiters and held is not None and held.claim == claim:
            return Queued("held", place=len(waiters))
        return super().take(key, claim, ask, now, *rest, **more)
