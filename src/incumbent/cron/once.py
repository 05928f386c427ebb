"""The ledger's word on what an outside scheduler starts: `run --once-per`, `--slot`, `@once`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from incumbent._core.held import Held
from incumbent.cron.book import Book, BookPort, Pen
from incumbent.cron.ledger import JOB, Run, State
from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.model import ABSENT, ONCE, Slot

__all__ = ["OnceRun", "begin_once"]

_KEEP_RUNS = 100
_KEEP_FOR = 30 * 86_400.0
_SHORT = 1.0
"""Seconds beyond the proof for which an end is still told to a store that does not answer."""


@dataclass(slots=True)
class OnceRun:
    """A run that is on record as running; `wall` instants are the caller's clock."""

    port: BookPort
    held: Held
    book: Book
    run: Run

    async def end(
        self, state: State, wall: float, *, code: int | None = None, why: str = ""
    ) -> bool:
        """Put its end on record, before the lease is given back; False if it could not be.

        A run that outlived its lease is put on record as lost, whatever came of it.
        """
        pen = Pen(self.held.claim, self.held.machine.token)
        until = max(self.held.machine.deadline, self.port.now() + _SHORT)
        ended = await self.book.insist(
            self.run, state, pen, until, ended=wall, code=code, why=why[:500]
        )
        if ended is None:
            await self._outlived(wall, why)
        return ended is not None

    async def _outlived(self, wall: float, why: str) -> None:
        after = f"; it had ended before: {why}" if why else ""
        with suppress(StoreError):
            await self.book.outlived(self.run, f"the lease was lost before its end{after}", wall)

    async def undo(self) -> None:
        """It never started: the slot is anybody's again."""
        try:
            await self.book.undo(self.run)
        except StoreError:
            # Then it is found as lost, which is the safe side.
            return

    async def prune(self, wall: float) -> None:
        """Keep the ledger within its bounds, now and then."""
        if self.port.jitter() < 1 / 8:
            try:
                await self.book.prune(_KEEP_RUNS, _KEEP_FOR, wall)
            except StoreError:
                # The next run prunes.
                return


async def begin_once(
    port: BookPort, held: Held, wall: float, stamp: str, what: str
) -> OnceRun | None:
    """Put what was just claimed on record; None if its slot is on record already.

    `stamp` names this start in UTC, `what` is run, for people. Raises StoreError; then nothing may
    run, and nothing is on record, as after any other interruption.
    """
    wanted = held.wanted
    slot = wanted.ask.slot
    name = stamp if slot is None or slot.name == ONCE else slot.name
    book = Book(port, wanted.key)
    run = Run(name, State.RUNNING, wall, wanted.ask.holder, held.machine.token, wall)
    once = OnceRun(port, held, book, run)
    try:
        if not await book.begin_named(run):
            return None
        await _register(once, slot, what)
    except BaseException:
        # By an error or a cancellation: nothing runs, so nothing may say that it did.
        await once.undo()
        raise
    return once


async def _register(once: OnceRun, slot: Slot | None, what: str) -> None:
    """Have the ledger know what is run."""
    by = "by slot" if slot is None or slot.name != ONCE else f"once per {say_seconds(slot.keep)}"
    facts = {"schedule": by, "command": what, "since": once.run.due}
    key, until = once.held.wanted.key, once.port.now() + 2.0
    await once.port.put(key, JOB, json.dumps(facts).encode(), ABSENT, until)
