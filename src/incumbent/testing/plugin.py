"""A pytest plugin for applications: a store in memory and a clock that tests can move.

    # conftest.py
    pytest_plugins = ["incumbent.testing.plugin"]

    # test_report.py
    def test_the_report_stops_when_its_lease_is_lost(incumbent_world):
        with incumbent.Lock("report", store=incumbent_world.store) as lease:
            with incumbent_world.cut_store():
                incumbent_world.advance(60)
            assert lease.lost

Tests do not wait: hours pass in milliseconds, and leases are renewed as often as in real hours.
While a test uses the fixture, the whole process uses the clock that it moves, and a lock without
`store=` uses the world's store.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import TypeVar

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.lease import LeaseState
from incumbent.locks.leases import SingleLease
from incumbent.protocol.claim import Claim
from incumbent.runtime import keeper as keepers
from incumbent.runtime import link, threads
from incumbent.runtime.aio import AsyncPort, LeaseScope
from incumbent.runtime.link import Link
from incumbent.runtime.sync import SyncPort
from incumbent.runtime.threads import AlarmThread, notifier
from incumbent.stores.memory import MemoryEngine, MemoryStore
from incumbent.stores.url import open_engine

__all__ = ["World", "incumbent_world"]

T = TypeVar("T")

_CHANGE_WITHIN = 5.0
"""Seconds of real time to wait for another thread, which needs only microseconds."""
_STEP = 0.001
"""Seconds: the clock's smallest step if an instant is due, and the time between two polls."""

_real_now = clock.now
_numbers = count(1)


@pytest.fixture
def incumbent_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A store of this test's own, and a clock that it can move; see World."""
    world = World()
    monkeypatch.setattr(clock, "now", world.now)
    monkeypatch.setattr(clock, "wall", world.wall)
    for port in (SyncPort, AsyncPort):
        monkeypatch.setattr(port, "now", staticmethod(world.now))
    monkeypatch.setattr(threads, "make_alarm", lambda: _MovedAlarm(world))
    monkeypatch.setenv("INCUMBENT_STORE", world.url)
    monkeypatch.setitem(link._by_url, world.url, world._link)
    monkeypatch.setitem(link._by_object, world.store, world._link)
    # A client has a link of its own, to the same store.
    monkeypatch.setattr(
        link, "open_engine", lambda url: world.store if url == world.url else open_engine(url)
    )
    yield world
    world._link.close()


class World:
    """`store` is for `store=`; `url` names the same store for this process."""

    def __init__(self) -> None:
        self._moved = 0.0
        self._memory = _WorldStore(self)
        self.url = f"memory:incumbent-world-{next(_numbers)}"
        self.store = MemoryEngine(self.url, self._memory)
        self._link = Link(self.store)

    # -- time --------------------------------------------------------------------------------

    def now(self) -> float:
        """The clock of deadlines, with the time that was advanced."""
        return _real_now() + self._moved

    def wall(self) -> float:
        """The wall clock, with the time that was advanced."""
        return time.time() + self._moved

    def advance(self, seconds: float) -> None:
        """Let time pass: leases are renewed meanwhile, or run out if the store is cut.

        In a coroutine use `advance_async`, or its task cannot react before all the time has passed.
        """
        for _ in self._steps(seconds):
            pass

    async def advance_async(self, seconds: float) -> None:
        """`advance`, while the tasks of the running loop react at every instant that matters."""
        for _ in self._steps(seconds):
            for _ in range(10):
                await asyncio.sleep(0)

    def _steps(self, seconds: float) -> Iterator[None]:
        target = self.now() + seconds
        self._notice_time()
        while (left := target - self.now()) > 0:
            step = max(_STEP, self._next_instant() - self.now())
            # To the next instant, not to the end: what is due then has to happen before more time
            # passes.
            self._moved += min(left, step)
            self._notice_time()
            yield

    def _next_instant(self) -> float:
        machines = [claim.machine for claim in self._held_claims()]
        instants = [at for machine in machines for at in (machine.stop_at, machine.deadline)]
        instants += [keeper._plan_sleep(keeper._state) for keeper in self._keepers()]
        return min((instant for instant in instants if instant > self.now()), default=inf)

    def _notice_time(self) -> None:
        """Make all waiters, keepers and scopes notice the present time."""
        # The store first: the keepers that are woken next ask it at the new time.
        self._memory.close()
        for keeper in list(keepers._keepers):
            for thread in (keeper._state.thread, keeper._state.deadlines.thread):
                # A thread that ends meanwhile may be started anew when it is woken.
                while isinstance(thread.alarm, _MovedAlarm):
                    if thread.alarm.wake_until_asleep(thread):
                        break
        for claim in self._held_claims():
            _check_scopes(claim, self.now())
        _await_callbacks()

    # -- faults ------------------------------------------------------------------------------

    def expire(self, lease: SingleLease | str) -> None:
        """End the ttl of a lease (or of each holder of that name), as if it was never renewed.

        No time passes for anything else.
        """
        now = self.now()
        for claim in self._which(lease):
            claim.machine.stop_at = claim.machine.deadline = now
            self._renew(claim)
        self._memory.forget(*_whose(lease))
        self._notice_time()

    def lose(self, lease: SingleLease | str) -> None:
        """Let the store lose the record; the renewal that finds it missing happens at once."""
        self._memory.forget(*_whose(lease))
        for claim in self._which(lease):
            self._renew(claim)
        self._notice_time()

    @contextmanager
    def cut_store(self) -> Iterator[None]:
        """Cut the store off until the block ends: every operation raises StoreUnavailable."""
        self._memory.cut = True
        try:
            yield
        finally:
            self._memory.cut = False

    # -- keepers and leases ------------------------------------------------------------------

    def _keepers(self) -> list[keepers.Keeper]:
        return [one for one in list(keepers._keepers) if one.port.store is self._memory]

    def _held_claims(self) -> list[Claim]:
        found = []
        for keeper in self._keepers():
            refs = keeper._state.refs()
            found += [claim for ref in refs if (claim := ref()) is not None]
        return [claim for claim in found if claim.machine.state is LeaseState.HELD]

    def _which(self, lease: SingleLease | str) -> list[Claim]:
        if isinstance(lease, SingleLease):
            return [lease._claim]
        return [claim for claim in self._held_claims() if claim.wanted.key.name == lease]

    def _renew(self, claim: Claim) -> None:
        for keeper in self._keepers():
            if claim.ref in keeper._state.refs():
                keeper.renew_now(claim, lambda: None)


def _whose(lease: SingleLease | str) -> tuple[str, str | None]:
    return (lease, None) if isinstance(lease, str) else (lease.name, lease._claim.id)


def _check_scopes(claim: Claim, now: float) -> None:
    if now < claim.machine.stop_at:
        return
    for watcher in claim.watchers:
        scope = getattr(watcher, "__self__", None)
        if isinstance(scope, LeaseScope):
            scope.recheck_soon()


def _await_callbacks() -> None:
    # Callbacks run in order in one thread: when ours has run, all earlier ones have.
    if notifier.running:
        done = threading.Event()
        notifier.call(done.set)
        done.wait(_CHANGE_WITHIN)


class _MovedAlarm:
    """The keeper's sleep on the moved clock; see incumbent.runtime.threads.Alarm."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._changed = threading.Condition()
        self._woken = False
        self._asleep = False

    def wait_until(self, instant: float) -> None:
        with self._changed:
            self._asleep = not self._woken
            self._changed.notify_all()
            while not self._woken and (left := instant - self._world.now()) > 0:
                self._changed.wait(min(left, _CHANGE_WITHIN))
            self._woken = self._asleep = False

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wake_until_asleep(self, thread: AlarmThread) -> bool:
        """Wake the thread, and return when it sleeps again; False if it has ended instead."""
        until = _real_now() + _CHANGE_WITHIN
        with self._changed:
            self._woken, self._asleep = True, False
            self._changed.notify_all()
            while not self._asleep and _real_now() < until:
                if thread.alarm is not self:
                    return False
                # The end of a thread notifies nobody, so poll.
                self._changed.wait(_STEP)
        return True


class _WorldStore(MemoryStore):
    """A memory store that can be cut off, and that forgets on request."""

    def __init__(self, world: World) -> None:
        super().__init__(world.now, world.wall)
        self.cut = False

    def _step(self, operation: Callable[[float], T]) -> T:
        if self.cut:
            raise StoreUnavailable("the test has cut the store off")
        return super()._step(operation)

    def forget(self, name: str, claim: str | None) -> None:
        """Let the holding of `claim` under `name` run out; if `claim` is None, each of them."""
        with self._changed:
            self._table.expire(name, claim, self._now())
