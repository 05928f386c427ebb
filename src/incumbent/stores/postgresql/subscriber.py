"""One connection that listens, for all waiters of a store.

It has no thread of its own. One of the waiters is the reader: it waits for the socket, and wakes
the others. When the reader leaves, the next waiter takes over.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.net.pool import Broken
from incumbent.net.readers import Wakeup
from incumbent.stores.postgresql.dialect import LISTEN, OURS
from incumbent.stores.postgresql.wire import Wire

_FOLLOWS: Final = 0.05
"""Seconds within which the next waiter of a process that has its turn takes the lease."""

_now = clock.now


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiter for a key. `notified`: the key was notified, or the connection was lost."""

    key: str
    wakeup: Wakeup
    notified: bool = False


def pause() -> float:
    """Random seconds after which a process checks if a turn is over, so that not all do at once."""
    return random.uniform(0.005, 0.015)


class Subscriber:
    """The waiters of one store, and the connection that listens for them."""

    def __init__(
        self, connect: Callable[[float], Awaitable[Wire]], wakeup: Callable[[], Wakeup]
    ) -> None:
        self._connect = connect
        self._wakeup = wakeup
        self._waiters: set[_Waiter] = set()
        self._reading = threading.Lock()
        self._wire: Wire | None = None
        self._later: dict[str, float] = {}
        """The keys that are left to the waiters of one process, with the instant when that ends."""
        self._before = ""

    async def wait(self, key: str, until: float, is_same: Callable[[], Awaitable[bool]]) -> None:
        """Return when `key` was notified, at `until`, or when `is_same` returns False.

        `is_same` is called only while the connection listens, so that no change is missed. Raises
        StoreUnavailable if no connection can listen.
        """
        waiter = _Waiter(key, self._wakeup())
        self._waiters.add(waiter)
        asked_by: Wire | None = None
        try:
            while not waiter.notified and _now() < until:
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
                asked_by = wire
                if not await is_same():
                    return
        finally:
            self._leave(waiter)

    def close(self) -> None:
        """Close the connection, unless a waiter reads from it."""
        if self._reading.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._reading.release()

    async def _listen(
        self, waiter: _Waiter, until: float, is_same: Callable[[], Awaitable[bool]]
    ) -> None:
        try:
            wire = self._wire
            if wire is None or wire.closed:
                wire = self._wire = await self._begin(until)
                self._wake_all()  # now they can call is_same
            if not await is_same():
                return
            while not waiter.notified and _now() < until:
                soon = min([until, *self._later.values()])
                if all(each.key in self._later for each in list(self._waiters)):
                    # Pause before reading, so that not all look at once when the turn is over.
                    await waiter.wakeup.wait(min(soon, _now() + pause()))
                self._hear(await wire.notified(soon))
        except Broken:
            # All waiters return; their callers take again, and then wait on another connection.
            self._drop()
            self._notify(None)
        except BaseException:
            self._drop()
            raise

    async def _begin(self, until: float) -> Wire:
        wire = await self._connect(until)
        self._later.clear()
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

    def _hear(self, payloads: Iterable[str]) -> None:
        now = _now()
        left_to_one: dict[str, bool] = {}
        for payload in payloads:
            before, self._before = self._before, payload
            if not payload.endswith(OURS):
                left_to_one[payload] = before == payload + OURS
        for key, left in left_to_one.items():
            self._later[key] = now + _FOLLOWS * left
        for key, due in list(self._later.items()):
            if due <= now:
                del self._later[key]
                self._notify(key)

    def _notify(self, key: str | None) -> None:
        """Wake the waiters for `key`; None: all waiters."""
        for waiter in list(self._waiters):
            if key is None or waiter.key == key:
                waiter.notified = True
                waiter.wakeup.wake()

    def _wake_all(self) -> None:
        for waiter in list(self._waiters):
            waiter.wakeup.wake()

    def _leave(self, waiter: _Waiter) -> None:
        self._waiters.discard(waiter)
        if not self._reading.locked():
            for other in list(self._waiters)[:1]:
                other.wakeup.wake()
