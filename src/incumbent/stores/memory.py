"""`memory:`, leases among the threads and loops of one process, for tests and examples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar, Unpack

from incumbent import clock
from incumbent.interrupts import raise_handlers
from incumbent.model import (
    Ask,
    Capabilities,
    GiveOutcome,
    Granted,
    Guard,
    Key,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.base import Parting
from incumbent.stores.inline import InlineAsyncStore
from incumbent.stores.table import MemoryTable

T = TypeVar("T")


class MemoryStore:
    """A `MemoryTable` behind a mutex. Tests that move clocks pass `now` and `wall`."""

    def __init__(
        self,
        now: Callable[[], float] = clock.now,
        wall: Callable[[], float] = clock.wall,
        restart_wait: float | None = None,
    ) -> None:
        self._now = now
        self._wall = wall
        self._restart_wait = restart_wait
        self._table = MemoryTable()
        self._changed = threading.Condition()
        self._listeners: set[Callable[[], None]] = set()

    def _step(
        self, operation: Callable[[float], T], tells: Callable[[T], bool] = lambda _: False
    ) -> T:
        """Run an operation at one instant, under the mutex. `tells`: whether to wake waiters."""
        with self._changed:
            outcome = operation(self._now())
            if tells(outcome):
                self._tell()
            return outcome

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return self._step(
            lambda now: self._table.take(key, claim, ask, now, self._wall(), self._restart_wait),
            # The next waiters may share the lease with a new holder that shares it.
            lambda outcome: (
                (ask.candidacy > 0 or ask.permits is not None) and isinstance(outcome, Granted)
            ),
        )

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return self._step(lambda now: [self._renew_one(renewal, now) for renewal in renewals])

    def _renew_one(self, renewal: Renewal, now: float) -> RenewOutcome:
        before = self._table.seen(renewal.key)
        outcome = self._table.renew(renewal, now)
        if self._table.seen(renewal.key) != before:
            self._tell()
        return outcome

    def give(
        self, key: Key, claim: str, token: int | None, until: float, **parting: Unpack[Parting]
    ) -> GiveOutcome:
        return self._step(
            lambda now: self._table.give(key, claim, token, now, self._wall(), **parting),
            lambda _: True,
        )

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return self._step(
            lambda now: self._table.put(key, field, value, guard, now), lambda _: True
        )

    def read(self, key: Key, until: float) -> Record:
        return self._step(lambda now: self._table.read(key, now))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return self._step(lambda now: self._table.scan(namespace, prefix, now))

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._table.seen(key) != seen, max(0.0, until - clock.now())
            )

    def restart(self, *, empty: bool) -> None:
        """Begin a new incarnation, which has lost all data if `empty`. For tests."""
        with self._changed:
            self._table.restart(self._now(), empty=empty)
            self._tell()

    def listen(self, key: Key, seen: str, tell: Callable[[], None]) -> bool:
        """Have `tell` called at every change; False if `key` has changed since `seen` already."""
        with self._changed:
            if self._table.seen(key) != seen:
                return False
            self._listeners.add(tell)
            return True

    def unlisten(self, tell: Callable[[], None]) -> None:
        """Undo `listen`."""
        with self._changed:
            self._listeners.discard(tell)

    def _tell(self) -> None:
        self._changed.notify_all()
        for tell in self._listeners:
            tell()

    def close(self) -> None:
        """See Store.close: there is nothing to close."""


class AsyncMemoryStore(InlineAsyncStore):
    """The table of a MemoryStore for coroutines; its operations never block."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._memory = store

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        from asyncio import Event, get_running_loop, timeout

        # Not a SharedWakeup: a signal handler may release a lease in the loop's own thread while
        # the loop sleeps, and tests move `clock.now`.
        loop, changed = get_running_loop(), Event()

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        if not self._memory.listen(key, seen, tell):
            return
        try:
            async with timeout(max(0.0, until - clock.now())):
                await changed.wait()
        except TimeoutError as error:
            raise_handlers(error)
        finally:
            self._memory.unlisten(tell)


class MemoryEngine:
    """The engine of `memory:`; see stores.base.Engine."""

    capabilities = Capabilities(
        waits="event",
        ttl_clock="boottime",
        queue=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
        shared=True,
    )

    def __init__(self, url: str = "memory:", store: MemoryStore | None = None) -> None:
        self.url = url
        self._store = store or MemoryStore()
        self._async_store = AsyncMemoryStore(self._store)

    def store(self) -> MemoryStore:
        return self._store

    def async_store(self) -> AsyncMemoryStore:
        return self._async_store

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        return [("warning", "memory: excludes only within this process", "name a shared store")]


_engines: dict[str, MemoryEngine] = {}


def open_memory(url: str) -> MemoryEngine:
    """The engine of `memory:` or `memory:LABEL`; each label has one in a process."""
    # One step without a lock; protocol.link says why.
    return _engines.setdefault(url, MemoryEngine(url))
