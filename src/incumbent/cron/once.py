"""The ledger for runs that an outside scheduler starts: `run --once-per`, `--slot`, `@once`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from incumbent.cron.ledger import JOB, Ledger, LedgerPort, SlotRecord, SlotState
from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.model import ABSENT, ONCE, Slot
from incumbent.protocol.claim import Claim
from incumbent.protocol.messages import UNRECORDED, lease_lost

_KEEP_RUNS = 100
_KEEP_FOR = 30 * 86_400.0
_SHORT = 1.0
"""Seconds beyond the lease for which an end is still sent to a store that does not reply."""


@dataclass(slots=True)
class OnceRun:
    """A run that is recorded as running; `wall` is an instant of the caller's wall clock."""

    port: LedgerPort
    claim: Claim
    ledger: Ledger
    run: SlotRecord

    async def end(
        self, state: SlotState, wall: float, *, code: int | None = None, why: str = ""
    ) -> bool:
        """Record the run's end, before the lease is given back; return False if that failed.

        Then the run counts as lost, whatever it did: from now on, or once another run looks.
        """
        until = max(self.claim.machine.deadline, self.port.now() + _SHORT)
        ended = await self.ledger.record_until(
            self.run, state, self.claim.id, until, ended=wall, code=code, why=why[:500]
        )
        if ended is not None:
            return True
        lost = f"{why or state}, but the lease was lost before that was on record"
        try:
            # The end may be recorded all the same, by a request whose reply was lost.
            return await self.ledger.outlived(self.run, lost, wall) is state
        except StoreError:
            return False

    async def succeed(self, wall: float) -> None:
        """Record that the run succeeded. Raises LeaseLost if that is not possible."""
        machine = self.claim.machine
        state = SlotState.OK if machine.valid(self.port.now()) else SlotState.LOST
        if not await self.end(state, wall):
            raise lease_lost(self.claim.wanted.key.name, machine.reason or UNRECORDED)
        await self.prune(wall)

    async def undo(self) -> None:
        """Remove the record of a run that never started: any instance may take the slot again."""
        # If the store does not reply, the run will count as lost, which is the safe side.
        with suppress(StoreError):
            await self.ledger.undo(self.run)

    async def prune(self, wall: float) -> None:
        """Remove surplus records from the ledger, now and then."""
        # If the store does not reply, the next run prunes.
        with suppress(StoreError):
            await self.ledger.prune_sometimes(_KEEP_RUNS, _KEEP_FOR, wall)


async def begin_once(
    port: LedgerPort, claim: Claim, wall: float, stamp: str, what: str
) -> OnceRun | None:
    """Record a lease just claimed as a running run; None if its slot has a record already.

    `stamp`: the name of this start, in UTC. `what`: the command or function, as text. Raises
    StoreError; then nothing may run, and no record is left, as after any other interruption.
    """
    wanted = claim.wanted
    slot = wanted.unqueued.slot
    name = stamp if slot is None or slot.name == ONCE else slot.name
    ledger = Ledger(port, wanted.key)
    run = SlotRecord(name, SlotState.RUNNING, wall, wanted.holder, claim.machine.token, wall)
    once = OnceRun(port, claim, ledger, run)
    try:
        if not await ledger.create(run):
            return None
        await _register(once, slot, what)
    except BaseException:
        # After an error or a cancellation nothing runs, so no record may say that something did.
        await once.undo()
        raise
    return once


async def _register(once: OnceRun, slot: Slot | None, what: str) -> None:
    """Register in the ledger what is run."""
    by = "by slot" if slot is None or slot.name != ONCE else f"once per {say_seconds(slot.keep)}"
    facts = {"schedule": by, "command": what, "since": once.run.due}
    key, until = once.claim.wanted.key, once.port.now() + 2.0
    await once.port.put(key, JOB, json.dumps(facts).encode(), ABSENT, until)
