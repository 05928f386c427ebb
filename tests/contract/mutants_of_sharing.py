"""Memory tables with one planted bug each, about leases that several hold at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from incumbent.model import Ask, GiveOutcome, Granted, Key, Released, TakeOutcome
from incumbent.stores.table import Line, MemoryTable


class _Sharing(MemoryTable):
    @contextmanager
    def _without(self, key: Key, what: str, empty: Any) -> Iterator[None]:
        """Whatever happens meanwhile knows nothing of that part of the record."""
        entry: Any = self._entries.get(key)
        kept = getattr(entry, what, None)
        if kept:
            setattr(entry, what, empty)
        yield
        if kept:
            setattr(entry, what, kept)


class OneMoreThanThereArePermits(_Sharing):
    def take(self, key: Key, claim: str, ask: Ask, *rest: Any, **more: Any) -> TakeOutcome:
        ask = replace(ask, permits=ask.permits and ask.permits + 1)
        return super().take(key, claim, ask, *rest, **more)


class WriterComesBesideReaders(_Sharing):
    def take(self, key: Key, claim: str, ask: Ask, *rest: Any, **more: Any) -> TakeOutcome:
        if ask.permits is not None:
            return super().take(key, claim, ask, *rest, **more)
        with self._without(key, "sharers", {}):
            return super().take(key, claim, ask, *rest, **more)


class ReaderComesBesideAWriter(_Sharing):
    def take(self, key: Key, claim: str, ask: Ask, *rest: Any, **more: Any) -> TakeOutcome:
        if ask.permits is None:
            return super().take(key, claim, ask, *rest, **more)
        with self._without(key, "held", None):
            return super().take(key, claim, ask, *rest, **more)


class AnyNumberOfPermits(_Sharing):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        entry = self._entries.get(key)
        sharing = entry.sharing(now) if entry and ask.permits is not None else []
        ask = replace(ask, permits=sharing[0].permits) if sharing else ask
        return super().take(key, claim, ask, now, *rest, **more)


class ThoseWhoShareHaveOneToken(_Sharing):
    def _grant(self, entry: Any, claim: str, *rest: Any) -> Granted:
        grant = super()._grant(entry, claim, *rest)
        if claim in entry.sharers:
            first = next(iter(entry.sharers.values())).token
            entry.sharers[claim].token = first
            return grant._replace(token=first)
        return grant


class FirstToLeaveEndsItForAll(_Sharing):
    def give(self, key: Key, *rest: Any, **more: Any) -> GiveOutcome:
        outcome = super().give(key, *rest, **more)
        if isinstance(outcome, Released):
            self._entries[key].sharers.clear()
        return outcome


class LastToComeSaysWhenItEnds(_Sharing):
    def take(self, key: Key, claim: str, *rest: Any, **more: Any) -> TakeOutcome:
        outcome = super().take(key, claim, *rest, **more)
        sharers = self._entries[key].sharers if key in self._entries else {}
        for one in sharers.values():
            if claim in sharers:
                one.expires = sharers[claim].expires
        return outcome


class ReadersPassAWriter(_Sharing):
    def take(self, key: Key, claim: str, ask: Ask, *rest: Any, **more: Any) -> TakeOutcome:
        if ask.permits is None:
            return super().take(key, claim, ask, *rest, **more)
        with self._without(key, "line", Line()):
            return super().take(key, claim, ask, *rest, **more)
