"""Writing in the ledger: one small request each, by whoever may say it (see `ledger`).

Coroutines against a port, as the protocols of a lease are: blocking code drives them in one step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from incumbent.cron.ledger import (
    JOB,
    Run,
    State,
    encode,
    field_of,
    is_settled,
    joined,
    pruned_field,
    pruned_spans,
    read_job,
    run_at,
    runs_of,
    step,
    surplus,
)
from incumbent.durations import backoff_delay
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import (
    ABSENT,
    ByClaim,
    ByVersion,
    Field,
    Guard,
    Key,
    PutOutcome,
    Record,
    Stored,
)
from incumbent.protocol.port import Port

__all__ = ["Book", "BookPort", "Pen"]

_WITHIN = 2.0
"""Seconds for one request."""


class BookPort(Port, Protocol):
    """A port that also reads and writes fields."""

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See stores.base.Store.put."""
        ...

    async def read(self, key: Key, until: float) -> Record:
        """See stores.base.Store.read."""
        ...


@dataclass(frozen=True, slots=True)
class Pen:
    """What lets a holder write: its claim and token."""

    claim: str
    token: int


class Book:
    """The ledger of one job. Every method raises StoreError where the store does not say."""

    def __init__(self, port: BookPort, key: Key, within: float = _WITHIN) -> None:
        self._port = port
        self._key = key
        self._within = within

    async def sleep_until(self, instant: float) -> None:
        """Wait for an instant of the port's clock."""
        await self._port.sleep_until(instant)

    async def read(self) -> Record:
        """All that is on record, for looking; nothing is granted on it."""
        return await self._port.read(self._key, self._port.now() + self._within)

    # -- by the holder -----------------------------------------------------------------------

    async def begin(self, run: Run) -> bool:
        """Put a new run on record as running; False if the slot has had its turn.

        Then it ran, or was skipped, missed or lost for somebody else, and must not run. That may be
        long ago, and forgotten since: a clock may be hours behind. Looking comes first: while the
        lease and its slot are ours no record of it is made by others, so none is forgotten either.
        """
        fields = (await self.read()).fields
        if (found := run_at(fields, run.slot)) is not None:
            return _is_same(found, run)
        return not is_settled(fields, run.slot, run.due) and await self.begin_named(run)

    async def begin_named(self, run: Run) -> bool:
        """`begin` for a slot that no schedule names: `due` is but the instant at which it began."""
        try:
            outcome = await self._put(run, ABSENT)
        except OutcomeUnknown:
            return await self._is_ours(run)
        return isinstance(outcome, Stored) or await self._is_ours(run)

    async def _is_ours(self, run: Run) -> bool:
        # Our own request may have been applied although its answer was lost.
        found = run_at((await self.read()).fields, run.slot)
        if found is None:
            return isinstance(await self._put(run, ABSENT), Stored)
        return _is_same(found, run)

    async def move(self, run: Run, state: State, pen: Pen, **changes: Any) -> Run | None:
        """The run in its next state, on record; None if its token no longer holds the lease."""
        moved = step(run, state, **changes)
        outcome = await self._put(moved, ByClaim(pen.claim, pen.token))
        return moved if isinstance(outcome, Stored) else None

    async def insist(
        self, run: Run, state: State, pen: Pen, until: float, **changes: Any
    ) -> Run | None:
        """`move`, tried on through an outage until an instant of the port's clock."""
        tries = 0
        while True:
            try:
                return await self.move(run, state, pen, **changes)
            except StoreError as error:
                tries += 1
                wake = self._port.now() + backoff_delay(tries, self._port.jitter(), cap=1.0)
                if error.permanent or wake >= until:
                    return None
                await self._port.sleep_until(wake)

    async def outlived(self, run: Run, why: str, now: float) -> State | None:
        """Put on record that a run went on beyond its lease, unless its end is there; returns what
        is on record then, None if that is not ours.
        """
        found, version = runs_of((await self.read()).fields).get(run.slot, (run, 0))
        if not version or found.token != run.token:
            return None
        if found.state.ended:
            return found.state
        return State.LOST if await self.lose(found, version, why, now) else None

    async def undo(self, run: Run) -> None:
        """Nothing came of it: the slot is as if we had not begun. Another's record stays."""
        found, version = runs_of((await self.read()).fields).get(run.slot, (run, 0))
        if version and _is_same(found, run):
            await self._field(field_of(run.slot), None, ByVersion(version))

    async def prune(self, keep: int, keep_for: float, now: float) -> int:
        """Remove what is beyond the bounds; `now` is the wall clock. Returns how many."""
        fields = (await self.read()).fields
        beyond = surplus(runs_of(fields), keep, keep_for, now)
        # First, so that no slot is ever neither remembered nor known to be forgotten.
        for name in sorted({pruned_field(run.slot) for run, _ in beyond}):
            spans = [(run.since, run.due) for run, _ in beyond if pruned_field(run.slot) == name]
            value = json.dumps(joined((*pruned_spans(fields, name), *spans))).encode()
            # Two that prune at a time must not undo each other's word.
            guard: Guard = ByVersion(fields[name].version) if name in fields else ABSENT
            if not isinstance(await self._field(name, value, guard), Stored):
                return 0
        for run, version in beyond:
            await self._field(field_of(run.slot), None, ByVersion(version))
        return len(beyond)

    # -- by anybody --------------------------------------------------------------------------

    async def note(self, run: Run) -> bool:
        """Put a slot on record that did not run; False if something is on record already."""
        return isinstance(await self._put(run, ABSENT), Stored)

    async def lose(self, run: Run, version: int, why: str, now: float) -> bool:
        """Say that a run's holder vanished; False if somebody wrote meanwhile."""
        lost = step(run, State.LOST, ended=now, why=why)
        return isinstance(await self._put(lost, ByVersion(version)), Stored)

    async def register(self, fields: Mapping[str, Field], facts: Mapping[str, Any]) -> bool:
        """Have the job's field say `facts`; `fields` are those it was seen with."""
        if read_job(fields) == dict(facts):
            return False
        value = json.dumps(dict(facts), separators=(",", ":")).encode()
        await self._field(JOB, value, None)
        return True

    # -- one request -------------------------------------------------------------------------

    async def _put(self, run: Run, guard: Guard) -> PutOutcome:
        return await self._field(field_of(run.slot), encode(run), guard)

    async def _field(self, name: str, value: bytes | None, guard: Guard) -> PutOutcome:
        until = self._port.now() + self._within
        return await self._port.put(self._key, name, value, guard, until)


def _is_same(found: Run, run: Run) -> bool:
    return found.token == run.token and not found.state.ended
