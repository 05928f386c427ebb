"""`memory:`, leases among the threads and loops of one process, for tests and examples.

It is the smallest store: a dict of records, and the rules. The simulator's server is the same.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import (
    PLAIN,
    Ask,
    Capabilities,
    Field,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.rules import keeping, taking
from incumbent.rules.record import (
    NOTHING,
    Beside,
    Entry,
    Grant,
    LeaseRecord,
    Line,
    Moment,
    Ruling,
    dated,
    dated_value,
    holders,
    may_forget,
    micros,
    seen_of,
)
from incumbent.rules.showing import shown
from incumbent.stores.findings import restart_words, wait_after_restart
from incumbent.stores.inline import InlineAsyncStore

T = TypeVar("T")

_SWEEP_EVERY = 256


@dataclass(slots=True)
class _KeptName:
    """What is kept of a name: its record, and the values beside it by kind and name."""

    record: LeaseRecord = NOTHING
    entries: dict[tuple[str, str], Beside] = field(default_factory=dict)

    def field(self, name: str) -> Field | None:
        """The field of that name, if there is one."""
        value = self.entries.get(("field", name))
        return value if isinstance(value, Field) else None

    def use_of(self, slot: str | None) -> Grant | None:
        """The last grant that used the slot."""
        value = None if slot is None else self.entries.get(("slot", slot))
        return value if isinstance(value, Grant) else None

    def may_go(self, now: int) -> bool:
        """Whether the name can be forgotten."""
        if not may_forget(self.record, now):
            return False
        beside = self.entries.values()
        return not any(
            isinstance(it, Field) or (isinstance(it, Grant) and it.expires > now) for it in beside
        )


class MemoryTable:
    """The records, with every instant as an argument: `now` counts ttls, `wall` starts tokens."""

    late_kept = keeping.LATE_KEPT
    """LATE_KEPT; or 0.0 to be a store that treats a late take as a new one, as some stores do."""

    def __init__(self, started: float | None = None) -> None:
        self._kept: dict[Key, _KeptName] = {}
        # Another one for each look at a name.
        self._look = object()
        self._started = started
        self._longest = 0.0
        self._takes = 0
        self.epoch = uuid.uuid4().hex
        self.changed: Callable[[], None] = lambda: None
        """Called when waiters have to look at the record."""

    def restart(self, now: float, *, empty: bool) -> None:
        """Begin a new incarnation; `empty` loses all data, as a store without a disk does."""
        self.epoch = uuid.uuid4().hex
        self._started = now
        held = [it for kept in self._kept.values() for it in holders(kept.record, micros(now))]
        self._longest = 0.0 if empty else max((it.ttl / 1e6 for it in held), default=0.0)
        if empty:
            self._kept.clear()

    def take(
        self,
        key: Key,
        claim: str,
        ask: Ask,
        now: float,
        wall: float,
        restart_wait: float | None = None,
    ) -> TakeOutcome:
        """See Store.take; `restart_wait`: see wait_after_restart."""
        self._admit(wait_after_restart(restart_wait, ask.ttl, self._longest), now)
        self._sweep(now)
        at, slot = self._at(now, wall), ask.slot and ask.slot.name
        return self._decide(
            key, now, lambda it: taking.take(it.record, claim, ask, at, it.use_of(slot))
        )

    def _admit(self, wait: float, now: float) -> None:
        if self._started is not None and now < self._started + wait:
            left = self._started + wait - now
            raise StoreUnavailable(
                restart_words("the store", "started", now - self._started, left), retry_after=left
            )

    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        """See Store.renew, for one lease."""
        at = self._at(now)
        return self._decide(renewal.key, now, lambda it: keeping.renew(it.record, renewal, at))

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        now: float,
        wall: float,
        parting: Parting = PLAIN,
    ) -> GiveOutcome:
        """See Store.give."""
        at = self._at(now, wall)

        def rule(it: _KeptName) -> Ruling[GiveOutcome]:
            used, late = it.use_of(parting.slot), self.late_kept
            return keeping.give(it.record, claim, token, at, parting, used=used, late_kept=late)

        return self._decide(key, now, rule)

    def put(self, key: Key, name: str, value: bytes | None, guard: Guard, now: float) -> PutOutcome:
        """See Store.put."""
        at = self._at(now)
        return self._decide(
            key, now, lambda it: keeping.put(it.record, name, value, guard, at, it.field(name))
        )

    def read(self, key: Key, now: float) -> Record:
        """See Store.read."""
        kept = self._of(key)
        beside = [Entry(*which, value) for which, value in kept.entries.items()]
        return shown(key, kept.record, beside, self._at(now))

    def scan(self, namespace: str, prefix: str, now: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return tuple(
            self.read(key, now)
            for key in sorted(self._kept)
            if key.namespace == namespace and key.name.startswith(prefix)
        )

    def expire(self, name: str, claim: str | None, now: float) -> None:
        """Let the holding of `claim` under `name` run out; of None, each of them. For tests."""
        for key, kept in self._kept.items():
            for held in kept.record.grants if key.name == name else ():
                if claim in (None, held.claim):
                    ended = held._replace(expires=min(held.expires, micros(now)))
                    grants = tuple(ended if it is held else it for it in kept.record.grants)
                    kept.record = kept.record._replace(grants=grants)

    def line_of(self, key: Key) -> Line:
        """The waiters for `key`. For tests."""
        return self._of(key).record.line

    def seen(self, key: Key) -> str:
        """The value that `wait_change` compares."""
        return seen_of(self._of(key).record, self.epoch)

    def _of(self, key: Key) -> _KeptName:
        """What is kept of `key`; nothing is kept by looking."""
        return self._kept.get(key) or _KeptName()

    def _at(self, now: float, wall: float = 0.0) -> Moment:
        return Moment(micros(now), micros(wall), 0, self.epoch)

    def _decide(self, key: Key, now: float, rule: Callable[[_KeptName], Ruling[T]]) -> T:
        """Write what a rule decides. No other thread writes meanwhile."""
        while True:
            # Before it looks: a signal handler's operation, which may come at any call, looks too.
            look = self._look = object()
            kept = self._of(key)
            ruling = rule(kept)
            # Kept only with a record: a name that was merely asked for is forgotten at once.
            if ruling.record is None:
                break
            entries = kept.entries.copy()
            for kind, name, value in ruling.entries:
                if value is None:
                    entries.pop((kind, name), None)
                else:
                    entries[kind, name] = dated_value(value, micros(now))
            decided = _KeptName(dated(ruling.record, micros(now)), entries)
            # If one came meanwhile, the rule is asked anew. None comes between these two lines:
            # they call nothing.
            if self._look is look:
                self._kept[key] = decided
                break
        # After the write: a waiter that wakes up looks at once.
        if ruling.wake:
            self.changed()
        return ruling.outcome

    def _sweep(self, now: float) -> None:
        self._takes += 1
        if self._takes % _SWEEP_EVERY:
            return
        for key in list(self._kept):
            look = self._look = object()
            # As in `_decide`.
            if self._of(key).may_go(micros(now)) and self._look is look:
                self._kept.pop(key, None)


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
        self._table.changed = self._notify
        self._changed = threading.Condition()
        self._listeners: set[Callable[[], None]] = set()
        self._hints = 0

    def _step(self, operation: Callable[[float], T]) -> T:
        """Run an operation at one instant, under the mutex."""
        with self._changed:
            return operation(self._now())

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        return self._step(
            lambda now: self._table.take(key, claim, ask, now, self._wall(), self._restart_wait)
        )

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return self._step(lambda now: [self._table.renew(renewal, now) for renewal in renewals])

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        return self._step(
            lambda now: self._table.give(key, claim, token, now, self._wall(), parting)
        )

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return self._step(lambda now: self._table.put(key, field, value, guard, now))

    def read(self, key: Key, until: float) -> Record:
        return self._step(lambda now: self._table.read(key, now))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return self._step(lambda now: self._table.scan(namespace, prefix, now))

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        with self._changed:
            hints = self._hints
            self._changed.wait_for(
                lambda: self._hints != hints or self._table.seen(key) != seen,
                max(0.0, until - clock.now()),
            )

    def restart(self, *, empty: bool) -> None:
        """Begin a new incarnation, which has lost all data if `empty`. For tests."""
        with self._changed:
            self._table.restart(self._now(), empty=empty)
            self._notify()

    def listen(self, key: Key, seen: str, notify: Callable[[], None]) -> bool:
        """Have `notify` called at every change; False if `key` has changed since `seen` already."""
        # In one step: a change is either found here, or notifies.
        with self._changed:
            if self._table.seen(key) != seen:
                return False
            self._listeners.add(notify)
            return True

    def unlisten(self, notify: Callable[[], None]) -> None:
        """Undo `listen`."""
        with self._changed:
            self._listeners.discard(notify)

    def _notify(self) -> None:
        self._changed.notify_all()
        for notify in list(self._listeners):
            notify()

    def close(self) -> None:
        """See Store.close: end the waits, which is all that there is to close."""
        with self._changed:
            self._hints += 1
            self._notify()


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

        def notify() -> None:
            loop.call_soon_threadsafe(changed.set)

        if not self._memory.listen(key, seen, notify):
            return
        try:
            async with timeout(max(0.0, until - clock.now())):
                await changed.wait()
        except TimeoutError as error:
            raise_if_from_signal(error)
        finally:
            self._memory.unlisten(notify)


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
    # One step without a lock; runtime.link says why.
    return _engines.setdefault(url, MemoryEngine(url))
