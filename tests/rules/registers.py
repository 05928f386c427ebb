"""Registers in a dict, whose rules can be left out one by one: what goes wrong then?"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.rules.codec import encoded, encoded_entry
from incumbent.rules.record import NOTHING, LeaseRecord, dated, dated_value
from incumbent.stores.deciding import present
from incumbent.stores.plan import Plan, Planned, run_blocking
from incumbent.stores.registers import (
    Incarnation,
    Join,
    Joined,
    Load,
    Place,
    Request,
    Scan,
    Seen,
    Swap,
    Swaps,
    Wanted,
    record_in,
    value_in,
)

__all__ = ["DictRegisters", "RegistersOf", "Row"]


@dataclass
class Row:
    """What the store keeps of a name: the text of its record, and those of the values beside it."""

    text: bytes
    version: int
    beside: dict[Place, bytes] = field(default_factory=dict)


class DictRegisters:
    """See stores.registers.Registers. `left_out`: the rules that it does not keep.

    "comparing": a swap is always carried out; "writes": it is acknowledged, and lost; "reads": what
    is read is what was there first; "numbers": a write keeps the version; and those of
    test_interleavings.
    """

    def __init__(self, *left_out: str) -> None:
        self.now = self.wall = 1_000_000_000
        self.rows: dict[Key, Row] = {}
        self.incarnation = Incarnation("first")
        self.left_out = set(left_out)
        self.requests = 0
        self._old: dict[Key, Seen | StoreError] = {}
        self._versions = count(1)

    def load(self, wanted: Sequence[Wanted], until: float) -> list[Seen | StoreError]:
        self.requests += 1
        if "reads" in self.left_out:
            return [self._old.setdefault(each.key, self._seen(each.key)) for each in wanted]
        return [self._seen(each.key) for each in wanted]

    def swap(self, swaps: Sequence[Swap], until: float) -> list[Seen | StoreError | None]:
        self.requests += 1
        return [self._swap(each) for each in swaps]

    def join(self, request: Join, until: float) -> Seen | StoreError:
        self.requests += 1
        there = self._seen(request.key)
        if isinstance(there, Seen):
            joined = Joined(None, request.waiter, request.looks_in, self.now)
            there = there._replace(joined=(joined,))
            text = encoded(present(there))
            self.rows[request.key] = Row(text, next(self._versions), self._beside(request.key))
        return there

    def scan(self, namespace: str, prefix: str, until: float) -> list[tuple[Key, Seen]]:
        return [
            (key, seen)
            for key in self.rows
            if (key.namespace, key.name.startswith(prefix)) == (namespace, True)
            and isinstance(seen := self._seen(key), Seen)
        ]

    def pass_time(self, seconds: float) -> None:
        """Time passes, and what nobody needs any more is forgotten."""
        self.now += int(seconds * 1e6)
        self.rows = {
            key: row
            for key, row in self.rows.items()
            if record_in(row.text, key, "dict:").keep_until > self.now
        }

    def fail_over_to(self, rows: dict[Key, Row], incarnation: Incarnation) -> None:
        """Another server goes on with these rows, which may lack the newest writes."""
        self.rows = rows
        self.incarnation = incarnation

    def copy(self) -> dict[Key, Row]:
        """The rows as a replica has them now."""
        return {key: replace(row, beside=dict(row.beside)) for key, row in self.rows.items()}

    def _seen(self, key: Key) -> Seen | StoreError:
        row = self.rows.get(key)
        try:
            record = record_in(row.text if row else None, key, "dict:")
        except StoreUnavailable as error:
            return error
        beside = {
            place: value_in(text, key, place, "dict:") for place, text in self._beside(key).items()
        }
        version = row.version if row else 0
        return Seen(record, version, self.now, self.wall, self.incarnation, beside=beside)

    def _beside(self, key: Key) -> dict[Place, bytes]:
        return dict(self.rows[key].beside) if key in self.rows else {}

    def _swap(self, swap: Swap) -> Seen | StoreError | None:
        there = self._seen(swap.wanted.key)
        if isinstance(there, StoreError):
            return there
        same = there.version == swap.seen.version or "comparing" in self.left_out
        same_incarnation = there.incarnation.id == swap.seen.incarnation.id
        if not same or not (same_incarnation or "incarnation" in self.left_out):
            return there
        if self.now < swap.not_before and "clock" not in self.left_out:
            return StoreUnavailable("dict: the clock stepped back")
        beside = self._beside(swap.wanted.key)
        for kind, name, value in swap.entries:
            beside.pop((kind, name), None)
            if value is not None:
                beside[kind, name] = encoded_entry(dated_value(value, self.now))
        record = dated(swap.record, self.now)
        version = self._next(there, record)
        if "writes" in self.left_out:
            return None
        self.rows[swap.wanted.key] = Row(encoded(record), version, beside)
        return None

    def _next(self, there: Seen, record: LeaseRecord) -> int:
        if "renewals" in self.left_out and record.token == there.record.token:
            return int(there.version)
        if "numbers" in self.left_out:
            return int(there.version)
        if "versions" in self.left_out:
            return 1 if there.record == NOTHING else int(there.version) + 1
        return next(self._versions)


class RegistersOf:
    """The registers of a store: each of these requests is an operation of its own."""

    def __init__(self, operations: Planned[Any]) -> None:
        self._operations = operations

    def load(self, wanted: Sequence[Wanted], until: float) -> list[Seen | StoreError]:
        return list(self._ask(Load(tuple(wanted)), until))

    def swap(self, swaps: Sequence[Swap], until: float) -> list[Seen | StoreError | None]:
        return list(self._ask(Swaps(tuple(swaps)), until))

    def scan(self, namespace: str, prefix: str, until: float) -> list[tuple[Key, Seen]]:
        return list(self._ask(Scan(namespace, prefix), until))

    def _ask(self, request: Request, until: float) -> Any:
        def start(_facts: Any, _until: float) -> Generator[Any, Any, Any]:
            return (yield request)

        return run_blocking(self._operations.run(Plan("look", start), until))
