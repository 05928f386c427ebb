"""Both sides of `sqlite:`: the operations of `core`, tried again while somebody else writes.

An operation takes microseconds, so it runs in the event loop: a thread would cost more. Operations
that are on the disk before they are answered (a take with a slot, a put, a closing) keep the loop
for one fsync. While somebody else writes the coroutine sleeps: a peer never holds up the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.stores.base import Gave, Give, Take, Took
from incumbent.stores.inline import InlineAsyncStore
from incumbent.stores.sqlite.connection import Connection, FileBusy
from incumbent.stores.sqlite.core import Core
from incumbent.stores.sqlite.file import WRITE, Mode, SqliteFile

T = TypeVar("T")

_FIRST: Final = 0.0001  # a transaction takes some 20 us; a sleep is seldom shorter than this
_LONGEST: Final = 0.01


def pauses(path: Path, until: float, now: Callable[[], float] = clock.now) -> Iterator[float]:
    """Seconds to sleep before each further try, with jitter; StoreUnavailable from `until` on."""
    from random import random  # only if there is contention: start-up time counts

    pause = _FIRST
    while (left := until - now()) > 0:
        yield min(pause * (0.5 + random()), left)
        pause = min(pause * 1.5, _LONGEST)
    raise StoreUnavailable(
        f"{path} stayed locked by another process, which is writing or was stopped while it did;"
        f" nothing was changed (who: fuser {path})"
    )


class SqliteStore(Core):
    """The blocking Store. Threads and processes of one host, any number, may share the file."""

    def _transact(self, until: float, work: Callable[[Connection], T], mode: Mode = WRITE) -> T:
        waits = pauses(self.file.path, until)
        while True:
            try:
                return self.file.transact(work, mode)
            except FileBusy:
                time.sleep(next(waits))


class AsyncSqliteStore(InlineAsyncStore):
    """The AsyncStore. Nothing in it belongs to one loop."""

    def __init__(self, file: SqliteFile) -> None:
        self._core = Core(file)
        super().__init__(self._core)

    async def _run(self, until: float, operation: Callable[[], T]) -> T:
        waits = pauses(self._core.file.path, until)
        while True:
            try:
                return operation()
            except FileBusy:
                from asyncio import sleep  # the blocking side loads no asyncio

                await sleep(next(waits))

    async def take_all(self, takes: Sequence[Take], until: float) -> Took:
        return await self._run(until, lambda: self._core.take_all(takes, until))

    async def give_all(self, gives: Sequence[Give], until: float) -> Gave:
        return await self._run(until, lambda: self._core.give_all(gives, until))

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        from asyncio import sleep

        for pause in self._core.looks(key, seen, until):
            await sleep(pause)

    async def aclose(self) -> None:
        """Close the connections, which all loops share; a later operation opens them again."""
        self._core.close()
