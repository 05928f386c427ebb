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
from incumbent._core.renew import SOONEST, Batches, Round, first_due, next_due, renew
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
_NEW = 64
"""Leases that may wait for the thread to give them their places. It does so when it wakes, so they
have to be too few to matter if their renewals then come at once."""
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
    new: dict[weakref.ref[Held], None] = field(default_factory=dict)
    """Leases that have no bucket yet: most end before the thread wakes. Its steps are atomic."""
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

    def refs(self) -> list[weakref.ref[Held]]:
        """All that are remembered; one that moves into its bucket now is perhaps there twice."""
        return [*self.new, *self.buckets.refs()]


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
        state = self._state
        new = state.new
        new[held.ref] = None
        # Noted first, then looked: the thread first says until when it sleeps, and then looks what
        # is new. So one of the two sees the other's.
        soonest = held.began + held.machine.policy.renew_every * SOONEST
        if soonest < state.planned or len(new) > _NEW or held.machine.unconfirmed:
            self._place(state, held)

    def disarm(self, held: Held) -> None:
        """The holder lets go of `held`: renew it no longer, and tell who watches."""
        self._state.new.pop(held.ref, None)
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
        for ref in before.refs():
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

    def _place(self, state: _State, held: Held) -> None:
        # Thousands that are taken at once are not renewed at once for ever after.
        self._plan(held, first_due(held, draw_jitter()), earliest=held.began)
        state.new.pop(held.ref, None)

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

    def _next(self, state: _State) -> float:
        with state.mutex:
            state.planned = min(state.buckets.first(), state.debts.first())
            for ref in list(state.new):
                self._admit(state, ref)
            return state.planned

    def _admit(self, state: _State, ref: weakref.ref[Held]) -> None:
        held = ref()
        if held is None or held.bucket is not None or held.machine.state is not State.HELD:
            state.new.pop(ref, None)
        else:
            self._place(state, held)

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
        sent, turn = clock.now(), Round()
        error = run(renew(self.port, leases, batches, turn))
        now = clock.now()
        if error is not None:
            self.tell_outage(leases[0].wanted.key, error)
        stopped = self._plan_others([*turn.skipped, *turn.others], sent, now)
        self._count(len(turn.asked), len(leases) - stopped, error, now - sent)
        if error is None:
            self._tell_followers(turn.others)

    def _plan_others(self, others: Sequence[Held], sent: float, now: float) -> int:
        """Plan what does not simply go on with its bucket; returns how many those are."""
        stopped = 0
        for held in others:
            if not held.machine.valid(now):
                stopped += 1
                self._end(held)
            elif held.failures or held.machine.bounded:
                stopped += 1
                self._plan(held, next_due(held, sent, now, draw_jitter()))
            if held.askers:
                held.tell_askers()
        return stopped

    def _count(self, asked: int, renewed: int, error: StoreError | None, took: float) -> None:
        if not asked:
            return
        stats = self.stats
        if error is not None:
            stats.failures += asked
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
