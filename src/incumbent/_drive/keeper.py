"""The keeper: one thread a store and process that renews its leases and pays what is owed to it.

A thread also under asyncio, so that a blocked event loop does not cost the lease; one a store, so
that a slow store does not cost the leases of another. What is due together is renewed in few
requests of a bounded size.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from incumbent import clock
from incumbent._core.held import Held
from incumbent._core.onestep import run
from incumbent._core.port import Debt
from incumbent._core.renew import Batches, first_due, next_due, renew
from incumbent._drive.alarm import Alarm, make_alarm
from incumbent._drive.buckets import FULL, Bucket, Buckets
from incumbent._drive.debts import Debts
from incumbent._drive.notifier import notifier
from incumbent._drive.sync import SyncPort, draw_jitter
from incumbent.errors import StoreError
from incumbent.lease import State
from incumbent.model import Key
from incumbent.stores.base import Store
from incumbent.unpatched import original, start_thread

__all__ = ["Keeper", "Stats"]

_log = logging.getLogger("incumbent")

_FULL_WHEN_LATE = 4 * FULL
"""The same, where the thread comes too seldom: beside threads that burn CPU each request costs it
the interpreter some times, however many leases are in it."""
_FEW = 64
"""Leases of a bucket that are not worth a request of their own, where others are due too."""
_DRAIN = 0.5
"""Seconds that a process gives at its exit to what it still owes."""
_OUTAGE_EVERY = 60.0
_LATE = 0.1
"""Seconds by which a thread is late on any busy machine."""
_LATE_AND_SAID = 1.0


@dataclass(slots=True)
class Stats:
    """Counters of one keeper, for people and metrics.

    `renewals`: leases renewed and proved; `failures`: renewals that got no answer;
    `last_answer`: the instant of the last answer to a request for renewals (-inf: none yet);
    `last_took`: seconds that it took.
    """

    renewals: int = 0
    failures: int = 0
    last_answer: float = -inf
    last_took: float = 0.0


@dataclass(slots=True)
class _State:
    """What one keeper thread owns; a fork's child starts with a new one."""

    mutex: threading.RLock = field(default_factory=original("_thread", "RLock"))
    buckets: Buckets = field(init=False)
    debts: Debts = field(default_factory=Debts)
    alarm: Alarm | None = None
    planned: float = inf
    missed: tuple[float, float] = (0.0, 0.0)
    stopped: bool = False
    outage_told: float = -inf

    def __post_init__(self) -> None:
        # One mutex for both: what is planned and when the thread wakes are decided together.
        self.buckets = Buckets(self.mutex)

    def renew_mutex(self) -> None:
        """At the interpreter's end: a thread that was ended inside of the mutex has it for ever."""
        # By its type: nothing can be imported any more.
        self.mutex = self.buckets.mutex = type(self.mutex)()


class Keeper:
    """See the module. All methods may be called from any thread, and in signal handlers."""

    def __init__(self, store: Store) -> None:
        self.port = SyncPort(store, self)
        self._state = _State()
        self.stats = Stats()
        _keepers.add(self)

    # -- for leases --------------------------------------------------------------------------

    def arm(self, held: Held) -> None:
        """Renew `held` from now on, until it ends or is dropped."""
        # Thousands that are taken at once are not renewed at once for ever after.
        self._plan(held, first_due(held, draw_jitter()), earliest=held.began)

    def disarm(self, held: Held) -> None:
        """The holder lets go of `held`: renew it no longer, and tell who watches."""
        self._state.buckets.discard(held)
        if held.watchers:
            self._tell_ended(held)

    def watch(self, held: Held, watcher: Callable[[], None]) -> None:
        """Call `watcher` once when the holding ends; at once if it has ended."""
        with self._state.mutex:
            held.watchers += (watcher,)
            if held.machine.valid(clock.now()):
                return
        self._tell_ended(held)

    def follow(self, held: Held, follower: Callable[[], None]) -> None:
        """Call `follower` in the keeper's thread after every proved renewal, until `held` ends."""
        with self._state.mutex:
            held.followers += (follower,)

    def renew_now(self, held: Held, asker: Callable[[], None], *, after: float = 0.0) -> None:
        """Renew `held` now (`after` seconds) instead of when it is due, then call `asker`."""
        with self._state.mutex:
            held.askers += (asker,)
        self._plan(held, clock.now() + after)

    def missed(self, deadline: float) -> float:
        """Seconds around `deadline` for which the thread was due and did not run; else 0.0."""
        since, until = self._state.missed
        if not since <= deadline <= until:
            since, until = self._state.planned, clock.now()
        late = until - since
        return late if 0 < since <= deadline and late > _LATE else 0.0

    def hand_over(self, debt: Debt) -> None:
        """See Port.hand_over."""
        state = self._state
        state.debts.add(debt)
        state.planned = -inf
        self._wake(state)

    def tell_outage(self, key: Key, error: StoreError) -> None:
        """See Port.tell_outage."""
        now = clock.now()
        if now - self._state.outage_told >= _OUTAGE_EVERY:
            self._state.outage_told = now
            _log.warning("%s: the store gives no answer, trying on: %s", key.name, error)

    def close(self) -> None:
        """Pay what is owed, briefly, and end the thread; leases are renewed no longer."""
        self.drain(_DRAIN)
        self._state.stopped = True
        self._wake(self._state)

    def drain(self, timeout: float) -> None:
        """Pay what is owed, for at most `timeout` seconds."""
        self._state.debts.drain(self.port, timeout)

    def forked(self) -> None:
        """In the child of a fork: nothing is held, nothing is owed, and there is no thread."""
        before, self._state = self._state, _State()
        self.stats = Stats()
        for ref in before.buckets.refs():
            if (held := ref()) is not None:
                held.machine.forked()

    # -- the thread --------------------------------------------------------------------------

    def _plan(self, held: Held, due: float, *, earliest: float = inf) -> None:
        state = self._state
        if sys.is_finalizing():
            state.renew_mutex()
        due = state.buckets.add(held, due, earliest=earliest)
        if due < state.planned:
            state.planned = due
            self._wake(state)

    def _wake(self, state: _State) -> None:
        if sys.is_finalizing():
            # There is no thread to wake any more: what is owed now is left to the ttl.
            return
        # Under the mutex: a thread that ends closes the alarm, whose numbers may then be others'.
        with state.mutex:
            if state.alarm is None:
                if state.stopped:
                    return
                state.alarm = make_alarm()
                self._start_unless_exiting(self._run)
            state.alarm.wake()

    @staticmethod
    def _start_unless_exiting(work: Callable[[], None]) -> None:
        try:
            start_thread(work, "incumbent-keeper")
        except RuntimeError:
            # The interpreter is shutting down: what is owed is paid at exit, or by the ttl.
            _log.debug("no keeper thread can be started any more")

    def _run(self) -> None:
        state = self._state
        while not state.stopped:
            self._sleep(state)
            try:
                self._tick(state)
            except Exception:  # noqa: BLE001
                # Whatever it was, it must not cost the leases their next renewals.
                _log.exception("the keeper met an error; what it could not renew is tried again")
        with state.mutex:
            alarm, state.alarm = state.alarm, None
            if alarm is not None:
                alarm.close()

    def _sleep(self, state: _State) -> None:
        alarm = state.alarm
        if alarm is not None:
            alarm.wait_until(self._next(state))

    @staticmethod
    def _next(state: _State) -> float:
        with state.mutex:
            state.planned = min(state.buckets.first(), state.debts.first())
            return state.planned

    def _tick(self, state: _State) -> None:
        now = clock.now()
        self._notice_lateness(state, now)
        due = state.buckets.take(now)
        try:
            for together in _requests(due, now):
                self._renew_buckets(together)
        finally:
            for bucket in due:
                state.buckets.give_back(bucket)
        state.debts.pay(self.port, state.buckets.first())

    @staticmethod
    def _notice_lateness(state: _State, now: float) -> None:
        late = now - state.planned
        if state.planned > 0 and late > _LATE:
            state.missed = (state.planned, now)
            if late > _LATE_AND_SAID:
                _log.warning("the renewals of this process were not scheduled for %.1f s", late)

    def _renew_buckets(self, buckets: Sequence[Bucket]) -> None:
        leases = [held for bucket in buckets for held in bucket.leases()]
        batches = buckets[0].batches
        batches.begin()
        sent = clock.now()
        for bucket in buckets:
            bucket.sent = sent
        size = FULL if len(buckets) == 1 else _FULL_WHEN_LATE
        for start in range(0, len(leases), size):
            self._renew(leases[start : start + size], batches)

    def _renew(self, leases: Sequence[Held], batches: Batches) -> None:
        sent = clock.now()
        asked = [held for held in leases if held.worth_renewing]
        error = run(renew(self.port, asked, batches))
        now = clock.now()
        if error is not None:
            self.tell_outage(leases[0].wanted.key, error)
        renewed, followed = self._plan_after(leases, sent, now)
        self._count(asked, renewed, error, now - sent)
        if followed and error is None:
            self._tell_followers(asked)

    def _plan_after(self, leases: Sequence[Held], sent: float, now: float) -> tuple[int, bool]:
        """Plan what does not simply go on with its bucket.

        Returns how many do, and whether anybody follows any of them.
        """
        going_on, followed = 0, False
        for held in leases:
            machine = held.machine
            if not machine.valid(now):
                self._end(held)
            elif held.failures or machine.bounded:
                self._plan(held, next_due(held, sent, now, draw_jitter()))
            else:
                going_on += 1
            if held.askers:
                held.tell_askers()
            if held.followers:
                followed = True
        return going_on, followed

    def _count(
        self, asked: Sequence[Held], renewed: int, error: StoreError | None, took: float
    ) -> None:
        if not asked:
            return
        stats = self.stats
        if error is not None:
            stats.failures += len(asked)
        else:
            stats.renewals += renewed
            stats.last_answer, stats.last_took = clock.now(), took

    @staticmethod
    def _tell_followers(renewed: Sequence[Held]) -> None:
        """After all that is planned: what they do cannot delay another lease's next renewal."""
        for held in renewed:
            if held.followers and held.machine.state is State.HELD:
                for follower in held.followers:
                    follower()

    def _end(self, held: Held) -> None:
        self._state.buckets.discard(held)
        # Who lets go of a lease tells them that it ended, once the store knows.
        if held.machine.state is State.LOST:
            self._tell_ended(held)

    def _tell_ended(self, held: Held) -> None:
        if sys.is_finalizing():
            self._state.renew_mutex()
        with self._state.mutex:
            watchers = held.take_watchers()
        for watcher in watchers:
            watcher()


def _requests(due: Sequence[Bucket], now: float) -> Iterator[list[Bucket]]:
    """Which buckets are renewed in one go: small ones together, the others each for itself.

    A bucket for itself says what it said the last time, which need not be prepared again. When
    the thread is late, there is no time for that.
    """
    late = bool(due) and now - due[0].due > due[0].every / 2
    together: list[Bucket] = []
    for bucket in due:
        if len(bucket) > _FEW and not late:
            yield [bucket]
        else:
            together.append(bucket)
    if together:
        yield together


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _forget_everything() -> None:
    notifier.reset()
    for keeper in list(_keepers):
        keeper.forked()


@atexit.register
def _pay_at_exit() -> None:
    for keeper in list(_keepers):
        keeper.drain(_DRAIN)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_everything)
