"""One connection that listens, for all who wait: whoever waits longest uses it, and tells others.

There is no thread of ours: of those who wait, one is the pump, who waits for the socket; the others
wait for their bells. When the pump leaves, the next one takes over.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from incumbent import clock
from incumbent.stores.postgresql.dialect import LISTEN
from incumbent.stores.postgresql.errors import Broken
from incumbent.stores.postgresql.wire import AnyWire

__all__ = ["Bell", "Listening"]

_now = clock.now

W = TypeVar("W", bound=AnyWire)


class Bell(Protocol):
    """What a side has for waking one of its own; it stays rung until it is cleared."""

    def ring(self) -> None:
        """Wake who waits."""

    def clear(self) -> None:
        """Wait anew."""

    async def wait(self, until: float) -> None:
        """Return when it is rung, or at `until`."""


class _Waiter:
    __slots__ = ("bell", "key", "told")

    def __init__(self, key: str, bell: Bell) -> None:
        self.key = key
        self.bell = bell
        self.told = False


class Listening(ABC, Generic[W]):
    """Those of one store who wait, and their connection."""

    def __init__(self, connect: Callable[[float], Awaitable[W]]) -> None:
        self._connect = connect
        self._waiters: set[_Waiter] = set()
        self._pump = threading.Lock()
        self._wire: W | None = None

    @abstractmethod
    def bell(self) -> Bell:
        """A bell of this side."""

    async def wait(self, key: str, until: float, is_same: Callable[[], Awaitable[bool]]) -> None:
        """Return when `key` was notified, at `until`, or when `is_same` says no.

        That is asked only while somebody listens, so that no change falls in between. Raises
        StoreUnavailable if nobody can listen.
        """
        waiter = _Waiter(key, self.bell())
        self._waiters.add(waiter)
        try:
            await self._wait(waiter, until, is_same)
        finally:
            self._leave(waiter)

    def close(self) -> None:
        """Let go of the connection, unless somebody waits on it."""
        if self._pump.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._pump.release()

    async def _wait(
        self, waiter: _Waiter, until: float, is_same: Callable[[], Awaitable[bool]]
    ) -> None:
        asked_by: W | None = None
        while True:
            waiter.bell.clear()  # before the look, so that no ring is lost after it
            if waiter.told or _now() >= until:
                return
            if self._pump.acquire(blocking=False):
                try:
                    await self._listen(waiter, until, is_same)
                finally:
                    self._pump.release()
                return
            wire = self._wire
            if wire is not None and wire is not asked_by:
                asked_by = wire
                if not await is_same():
                    return
            else:
                await waiter.bell.wait(until)

    async def _listen(
        self, waiter: _Waiter, until: float, is_same: Callable[[], Awaitable[bool]]
    ) -> None:
        try:
            wire = self._wire
            if wire is None or wire.closed:
                wire = self._wire = await self._begin(until)
                self._ring_all()  # now they can ask
            if not await is_same():
                return
            while not waiter.told and _now() < until:
                for key in await wire.notified(until):
                    self._tell(key)
        except Broken:
            # Whoever waits comes back, takes again, and then listens on another connection.
            self._drop()
            self._tell(None)
        except BaseException:
            self._drop()
            raise

    async def _begin(self, until: float) -> W:
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

    def _tell(self, key: str | None) -> None:
        """All who wait for `key`; None tells everybody."""
        for waiter in list(self._waiters):
            if key is None or waiter.key == key:
                waiter.told = True
                waiter.bell.ring()

    def _ring_all(self) -> None:
        for waiter in list(self._waiters):
            waiter.bell.ring()

    def _leave(self, waiter: _Waiter) -> None:
        self._waiters.discard(waiter)
        if not self._pump.locked():
            for other in list(self._waiters)[:1]:
                other.bell.ring()
