"""The operations of `sqlite:`, for threads and for event loops.

Each operation is decided by the rules within one transaction (`records`). What must outlive a power
loss is on the disk before the operation returns.

An operation takes microseconds, so it runs in the event loop: a thread would cost more. An
operation that waits for the disk blocks the loop for one fsync. While another connection writes,
the coroutine sleeps, so a peer never blocks the loop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Gone,
    Key,
    Parting,
    Queue,
    Released,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.net.readers import SharedWakeup, ThreadWakeup, Wakeup
from incumbent.stores.deciding import Deciding
from incumbent.stores.plan import BlockingTogether, Plan, run_blocking
from incumbent.stores.polling import in_line
from incumbent.stores.register_store import PollingOperations
from incumbent.stores.registers import Quick, Seen, Wanted
from incumbent.stores.sqlite.connection import FileBusy, SpoiledFile, SqliteConnection
from incumbent.stores.sqlite.file import (
    DURABLE,
    ONE_STATEMENT,
    PROBE,
    READ,
    WRITE,
    Mode,
    SqliteFile,
)
from incumbent.stores.sqlite.records import NEEDS_DISK, Records

T = TypeVar("T")

_HEARTBEAT_MOST: Final = 1.0
_READS: Final = ("read", "scan")


class SqliteOperations(PollingOperations):
    """The operations of one side: they suspend for waits, and while another connection writes."""

    def __init__(
        self,
        file: SqliteFile,
        wakeup: Callable[[], Wakeup],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.file = file
        # No take arrives late: the asking process carries it out itself.
        self.dialect = Deciding(f"sqlite://{file.path}", quick=Quick(renew=True), late_kept=0.0)
        self.looks = file.looks
        self._wakeup = wakeup
        self._sleep = sleep

    async def run(self, plan: Plan[None, T], until: float) -> T:
        """Carry out a plan in one transaction. Raises StoreError."""

        def work(db: SqliteConnection) -> Any:
            return Records(db).run_program(plan.start(None, until))

        mode = READ if plan.kind in _READS else WRITE
        return cast("T", await self._transact_on_disk_if_needed(work, until, mode))

    async def _transact_on_disk_if_needed(
        self, work: Callable[[SqliteConnection], Any], until: float, mode: Mode = WRITE
    ) -> Any:
        outcome = await self.transact(work, until, mode)
        if outcome is NEEDS_DISK:
            outcome = await self.transact(work, until, DURABLE)
        return outcome

    async def transact(
        self, work: Callable[[SqliteConnection], T], until: float, mode: Mode = WRITE
    ) -> T:
        """See SqliteFile.transact; it is tried again while another connection writes."""
        waits: Iterator[float] | None = None
        while True:
            try:
                return self.file.transact(work, mode)
            except FileBusy:
                waits = waits or pauses(self.file.path, until)
                await self._sleep(next(waits))

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        alone = ask.permits is None and ask.slot is None and not ask.candidacy

        def work(db: SqliteConnection) -> Any:
            records = Records(db)
            granted = records.try_take(key, claim, ask) if alone else None
            if granted is not None:
                return granted
            plan = self.dialect.take(key, claim, _with_short_heartbeat(ask))
            return records.run_program(plan.start(None, until))

        return in_line(await self._transact_on_disk_if_needed(work, until), claim, ask)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        try:
            return await super().renew(renewals, until)
        except SpoiledFile:
            # Others may have written without our log, so its content proves nothing any more.
            return [Gone("store_restarted") for _ in renewals]

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        if token and not parting.closed_for and not parting.slot:

            def work(db: SqliteConnection) -> bool:
                return Records(db).try_give(key, claim, token)

            if await self.transact(work, until, ONE_STATEMENT):
                self.looks.hurry(key)
                return Released()
        return await super().give(key, claim, token, until, parting=parting)

    async def look(self, key: Key, until: float) -> Seen:
        return await self.transact(lambda db: Records(db).load(Wanted(key)), until, READ)

    def wakeup(self) -> Wakeup:
        """See PollingOperations.wakeup."""
        return self._wakeup()

    def let_go(self) -> None:
        """Close the connections; a later operation opens the file again."""
        self.file.close()
        self.looks.end_waits()


def _with_short_heartbeat(ask: Ask) -> Ask:
    if ask.queue is None or ask.queue.fair:
        return ask
    # The first waiter asks every few milliseconds: if it is silent for longer, it is frozen or
    # dead, and loses its turn.
    return replace(ask, queue=Queue(min(ask.queue.heartbeat, _HEARTBEAT_MOST)))


# -- retrying --------------------------------------------------------------------------------------

_FIRST: Final = 0.0001  # a transaction takes some 20 us; a sleep is seldom shorter than this
_LONGEST: Final = 0.01


def pauses(path: Path, until: float, now: Callable[[], float] = clock.now) -> Iterator[float]:
    """Yield seconds to sleep before each further try, with jitter; StoreUnavailable at `until`."""
    from random import random  # imported only under contention, because start-up time counts

    pause = _FIRST
    while (left := until - now()) > 0:
        yield min(pause * (0.5 + random()), left)
        pause = min(pause * 1.5, _LONGEST)
    raise StoreUnavailable(
        f"{path} stayed locked by another process, which is writing or was stopped while it did;"
        f" nothing was changed (who: fuser {path})"
    )


class SqliteStore(BlockingTogether[SqliteOperations]):
    """The blocking Store. Any number of threads and processes of one host may share the file."""

    def __init__(self, file: SqliteFile) -> None:
        super().__init__(SqliteOperations(file, ThreadWakeup, _block))
        self.file = file

    def probe(self, until: float) -> str:
        """The journal mode. Raises StoreError if a take would."""
        return run_blocking(self.operations.transact(_journal_mode, until, PROBE))


class AsyncSqliteStore(SqliteOperations):
    """The AsyncStore. All event loops share the connections of the file."""

    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file, SharedWakeup, _suspend)

    async def aclose(self) -> None:
        """See let_go."""
        self.let_go()


def _journal_mode(db: SqliteConnection) -> str:
    (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    return str(mode)


async def _block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the blocking side awaits nothing else


async def _suspend(seconds: float) -> None:
    from asyncio import sleep  # the blocking side does not import asyncio

    await sleep(seconds)
