"""A memory table in which bugs are planted: its records can be changed between two operations."""

from __future__ import annotations

from typing import Any

from incumbent.model import Key
from incumbent.rules.record import Grant, LeaseRecord, holders, micros
from incumbent.stores.memory import MemoryTable

__all__ = ["Planted"]


class Planted(MemoryTable):
    def known(self, key: Key) -> bool:
        """Whether anything is kept of `key`."""
        return key in self._kept

    def record(self, key: Key) -> LeaseRecord:
        """The record of `key`."""
        return self._of(key).record

    def change(self, key: Key, **parts: Any) -> None:
        """Replace parts of the record, if there is one."""
        if key in self._kept:
            self._kept[key].record = self._kept[key].record._replace(**parts)

    def change_grants(self, key: Key, **parts: Any) -> None:
        """Replace parts of each holder's grant."""
        grants = self.record(key).grants
        self.change(key, grants=tuple(grant._replace(**parts) for grant in grants))

    def alone(self, key: Key, now: float) -> Grant | None:
        """The claim that holds `key` alone."""
        there = holders(self.record(key), micros(now))
        return there[0] if there and there[0].permits is None else None
