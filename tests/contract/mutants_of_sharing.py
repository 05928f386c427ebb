"""Memory tables with one planted bug each, about leases that several hold at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from incumbent.model import Ask, GiveOutcome, Granted, Key, Released, TakeOutcome
from incumbent.rules.record import Line, holders, micros
from tests.contract.planted import Planted


class _Sharing(Planted):
    @contextmanager
    def _without(self, key: Key, what: str, empty: Any) -> Iterator[None]:
        """Whatever happens meanwhile knows nothing of that part of the record."""
        kept = getattr(self.record(key), what)
        self.change(key, **{what: empty})
        yield
        there = getattr(self.record(key), what)
        self.change(key, **{what: kept if what == "line" else (*kept, *there)})


class OneMoreThanThereArePermits(_Sharing):
    def take(self, key: Key, claim: str, ask: Ask, *rest: Any, **more: Any) -> TakeOutcome:
        ask = replace(ask, permits=ask.permits and ask.permits + 1)
        return super().take(key, claim, ask, *rest, **more)


class WriterComesBesideReaders(_Sharing):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if ask.permits is not None:
            return super().take(key, claim, ask, now, *rest, **more)
        if self.alone(key, now) is not None:
            return super().take(key, claim, ask, now, *rest, **more)
        with self._without(key, "grants", ()):
            return super().take(key, claim, ask, now, *rest, **more)


class ReaderComesBesideAWriter(_Sharing):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if ask.permits is None:
            return super().take(key, claim, ask, now, *rest, **more)
        if self.alone(key, now) is None:
            return super().take(key, claim, ask, now, *rest, **more)
        with self._without(key, "grants", ()):
            return super().take(key, claim, ask, now, *rest, **more)


class AnyNumberOfPermits(_Sharing):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        there = holders(self.record(key), micros(now))
        if there and None not in (ask.permits, there[0].permits):
            ask = replace(ask, permits=there[0].permits)
        return super().take(key, claim, ask, now, *rest, **more)


class ThoseWhoShareHaveOneToken(_Sharing):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        there = holders(self.record(key), micros(now))
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Granted) and ask.permits is not None and there:
            self.change_grants(key, token=there[0].token)
            return outcome._replace(token=there[0].token)
        return outcome


class FirstToLeaveEndsItForAll(_Sharing):
    def give(self, key: Key, *rest: Any, **more: Any) -> GiveOutcome:
        outcome = super().give(key, *rest, **more)
        if isinstance(outcome, Released):
            self.change(key, grants=())
        return outcome


class LastToComeSaysWhenItEnds(_Sharing):
    def take(self, key: Key, claim: str, *rest: Any, **more: Any) -> TakeOutcome:
        outcome = super().take(key, claim, *rest, **more)
        grants = self.record(key).grants
        for grant in grants:
            if grant.claim == claim and grant.permits is not None:
                self.change_grants(key, expires=grant.expires)
        return outcome


class ReadersPassAWriter(_Sharing):
    def take(self, key: Key, claim: str, ask: Ask, *rest: Any, **more: Any) -> TakeOutcome:
        if ask.permits is None:
            return super().take(key, claim, ask, *rest, **more)
        with self._without(key, "line", Line()):
            return super().take(key, claim, ask, *rest, **more)
