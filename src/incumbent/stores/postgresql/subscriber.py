"""One connection that listens, for all waiters of a store.

It has no thread of its own. One of the waiters is the reader: it waits for the socket, and wakes
the others. When the reader leaves, the next waiter takes over.

    the server --- NOTIFY ---> A, which reads the socket --- wakes ---> B, C
                               A leaves ---> B reads
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.net.pool import Broken
from incumbent.net.readers import Wakeup
from incumbent.stores.postgresql.exchange import CLAIM_SEPARATOR, LISTEN
from incumbent.stores.postgresql.wire import PostgresWire

_SLICE: Final = 0.5
_now = clock.now


@dataclass(slots=True, eq=False)
class _NotifiedWaiter:
    """A waiter for a key. `notified`: it was notified, or the connection was lost.

    `claim`: if it stands in line, its claim; then it is not woken for the turn of another claim.
    """

    key: str
    claim: str
    wakeup: Wakeup
    notified: bool = False


def pause() -> float:
    """Random seconds after which a process checks if a turn is over, so that not all do at once."""
    return random.uniform(0.005, 0.015)


class NotificationListener:
    """The waiters of one store, and the connection that listens for them."""

    def __init__(
        self, connect: Callable[[float], Awaitable[PostgresWire]], wakeup: Callable[[], Wakeup]
    ) -> None:
        self._connect = connect
        self._wakeup = wakeup
        self._waiters: set[_NotifiedWaiter] = set()
        self._reading = threading.Lock()
        self._wire: PostgresWire | None = None

    async def wait(
        self, key: str, claim: str, until: float, is_same: Callable[[], Awaitable[bool]]
    ) -> None:
        """Return when `key` was notified, at `until`, or when `is_same` returns False.

        `claim`: its claim, if it stands in line: then turns of others do not wake it; or "".
        `is_same` is called only while the connection listens, so that no change is missed. Raises
        StoreUnavailable if no connection can listen.
        """
        waiter = _NotifiedWaiter(key, claim, self._wakeup())
        # Listed first: what is notified from now on is for it as well.
        self._waiters.add(waiter)
        asked_by: PostgresWire | None = None
        try:
            while not waiter.notified and _now() < until:
                # Never waited for: whoever does not get it is woken by the one who has it.
                if self._reading.acquire(blocking=False):
                    try:
                        await self._listen(waiter, until, is_same)
                    finally:
                        self._reading.release()
                    return
                wire = self._wire
                if wire is None or wire is asked_by:
                    await waiter.wakeup.wait(until)
                    continue
                # Once for each connection: what changed before it listened was not notified.
                asked_by = wire
                if not await is_same():
                    return
        finally:
            self._waiters.discard(waiter)
            # If it was the reader, another waiter has to read now.
            if not self._reading.locked():
                for other in list(self._waiters)[:1]:
                    other.wakeup.wake()

    def close(self) -> None:
        """End all waits, and close the connection unless a waiter reads from it."""
        self._notify()
        if self._reading.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._reading.release()

    async def _listen(
        self, waiter: _NotifiedWaiter, until: float, is_same: Callable[[], Awaitable[bool]]
    ) -> None:
        try:
            wire = self._wire
            if wire is None or wire.closed:
                wire = self._wire = await self._start_listening(until)
                for other in list(self._waiters):
                    other.wakeup.wake()  # now they can call is_same
            # What changed before LISTEN was not notified.
            if not await is_same():
                return
            while not waiter.notified and _now() < until:
                # In parts: nothing wakes a thread that reads.
                for payload in await wire.notified(min(until, _now() + _SLICE)):
                    self._notify(*payload.split(CLAIM_SEPARATOR, 1))
        except Broken:
            # All waiters return; their callers take again, and then wait on another connection.
            self._drop()
            self._notify()
        except BaseException:
            self._drop()
            raise

    async def _start_listening(self, until: float) -> PostgresWire:
        wire = await self._connect(until)
        try:
            await wire.query(LISTEN, until)
        except BaseException:
            wire.close()
            raise
        return wire

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _notify(self, key: str = "", claim: str = "") -> None:
        """Wake the waiters for `key`, or all. `claim`: of those in line only this one."""
        for waiter in list(self._waiters):
            concerned = not claim or waiter.claim in ("", claim)
            if not key or (waiter.key == key and concerned):
                waiter.notified = True
                waiter.wakeup.wake()
