"""The keeper: one thread a store and process that renews its leases and pays what is owed to it.

A thread also under asyncio, so that a blocked event loop does not cost the lease; one a store, so
that a slow store does not cost the leases of another. What is due together is renewed in few
requests of a bounded size. Owed is the release of claims that ended here and may still stand there.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from incumbent import clock, meters
from incumbent.durations import backoff_delay
from incumbent.errors import StoreError
from incumbent.lease import State
from incumbent.model import Key
from incumbent.protocol.buckets import FULL, Bucket, Buckets
from incumbent.protocol.chance import draw_jitter
from incumbent.protocol.deadlines import Deadlines
from incumbent.protocol.held import Held
from incumbent.protocol.port import Debt, Port, run
from incumbent.protocol.release import settle
from incumbent.protocol.renew import SOONEST, Batches, Round, first_due, next_due, renew
from incumbent.protocol.sync import SyncPort
from incumbent.protocol.threads import AlarmThread, call_guarded, notifier
from incumbent.protocol.words import waiting_so_far
from incumbent.stores.base import Store
from incumbent.unpatched import original

_log = logging.getLogger("incumbent")

_FULL_WHEN_LATE = 4 * FULL
"""The same, where the thread comes too seldom: beside threads that burn CPU each request costs it
the interpreter some times, however many leases are in it."""
_FEW = 64
"""A bucket with fewer leases shares a request with the other buckets that are due."""
_NEW = 64
"""Leases that may wait for the thread to give them their places. It does so when it wakes, so they
have to be too few to matter if their renewals then come at once."""
_DRAIN = 0.5
"""Seconds that a process gives at its exit to what it still owes."""
_OUTAGE_FIRST, _OUTAGE_MOST = 5.0, 600.0
"""Seconds from the first line on an outage to the second, and at most between two of them."""
_OUTAGE_OVER = 60.0
"""Seconds without a word of it after which the next one is of another outage."""
_LATE = 0.1
"""Seconds by which a thread is late on any busy machine."""
_LATE_AND_SAID = 1.0


# -- debts -----------------------------------------------------------------------------------------

_SETTLE_TIMEOUT = 1.0


@dataclass(slots=True)
class _Owed:
    debt: Debt
    tries: int = 0
    due: float = 0.0


class Debts:
    """Releases that are owed. Any thread, and `__del__`, may add; they are paid one at a time."""

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()
        self._paying: threading.Lock = original("_thread", "allocate_lock")()

    def add(self, debt: Debt) -> None:
        """It is due at once. Never blocks."""
        self._owed.append(_Owed(debt))

    def first(self) -> float:
        """The instant at which the next is due."""
        # A copy in one step: another thread may add meanwhile.
        return min((owed.due for owed in list(self._owed)), default=inf)

    def pay(self, port: Port, renewals_due: float) -> None:
        """Pay what is due, until the next renewals are due, which matter more.

        It takes a second at most, for a lease that is taken meanwhile needs renewals too.
        """
        if not self._owed:
            return
        renewals_due = min(renewals_due, clock.now() + _SETTLE_TIMEOUT)
        with self._paying:
            for _ in range(len(self._owed)):
                self._pay_one(port, self._owed.popleft(), renewals_due)

    def _pay_one(self, port: Port, owed: _Owed, renewals_due: float) -> None:
        now = clock.now()
        if owed.due > now or now >= renewals_due:
            self._owed.append(owed)
        elif not _settle(port, owed.debt, min(_SETTLE_TIMEOUT, renewals_due - now)):
            owed.tries += 1
            owed.due = clock.now() + backoff_delay(owed.tries, draw_jitter(), cap=2.0)
            self._owed.append(owed)

    def drain(self, port: Port, timeout: float) -> None:
        """Pay everything, due or not, for at most `timeout` seconds."""
        until = clock.now() + timeout
        # What another thread is paying is not in the list: an exit now would cut it short.
        if not self._paying.acquire(timeout=timeout):
            return
        try:
            while self._owed and clock.now() < until:
                _settle(port, self._owed.popleft().debt, until - clock.now())
        finally:
            self._paying.release()


def _settle(port: Port, debt: Debt, timeout: float) -> bool:
    try:
        return run(settle(port, debt, timeout))
    except Exception:  # noqa: BLE001 - an exit or the thread must not end for it
        _log.exception("%s: a dead claim could not be given back; its ttl ends it", debt.key)
        return True


# -- the keeper ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outage:
    """When to speak of an outage of the store: each pause is twice as long as the one before."""

    since: float = -inf
    seen: float = -inf
    told: float = -inf
    pause: float = 0.0

    def is_worth_a_line(self, now: float) -> bool:
        if now - self.seen > max(_OUTAGE_OVER, self.pause):
            self.since, self.pause = now, 0.0
        self.seen = now
        if now - self.told < self.pause:
            return False
        self.told, self.pause = now, min(_OUTAGE_MOST, max(_OUTAGE_FIRST, 2 * self.pause))
        return True


@dataclass(slots=True)
class Stats:
    """Counters of one keeper, for people and metrics.

    `renewals`: leases renewed and proved; `failures`: renewals that got no answer;
    `last_answer`: the instant of the last answer to a request for renewals (-inf: none yet).
    """

    renewals: int = 0
    failures: int = 0
    last_answer: float = -inf


class _State:
    """What one keeper thread owns; a fork's child starts with a new one."""

    def __init__(self, keeper: Keeper) -> None:
        # Of the buckets, and of when the thread wakes: the two are decided together.
        self.mutex: threading.RLock = original("_thread", "RLock")()
        self.buckets = Buckets(self.mutex)
        self.new: dict[weakref.ref[Held], None] = {}
        """Leases without a bucket yet: most end before the thread wakes. Its steps are atomic."""
        self.debts = Debts()
        self.thread = AlarmThread(
            "incumbent-keeper",
            lambda: keeper._next(self),
            lambda: keeper._tick(self),
        )
        self.deadlines = Deadlines(keeper._tell_ended)
        self.missed = (0.0, 0.0)
        self.outage = _Outage()

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
        self._state = _State(self)
        self.stats = Stats()
        _keepers.add(self)

    # -- for leases --------------------------------------------------------------------------

    def arm(self, held: Held) -> None:
        """Renew `held` from now on, until it ends or is dropped."""
        state = self._state
        new = state.new
        new[held.ref] = None
        # Write first, then compare. The thread does the same the other way round (it writes
        # `planned`, then looks for new leases), so one of the two sees what the other wrote.
        soonest = held.began + held.machine.policy.renew_every * SOONEST
        if soonest < state.thread.planned or len(new) > _NEW:
            self._place(state, held)

    def disarm(self, held: Held) -> None:
        """The holder lets go of `held`: renew it no longer, and call its watchers."""
        self._state.new.pop(held.ref, None)
        self._state.buckets.discard(held)
        if held.watchers:
            self._state.deadlines.forget(held)
            self._tell_ended(held)

    def watch(self, held: Held, watcher: Callable[[], None], *, ahead: float | None = 0.0) -> None:
        """Call `watcher` once when the holding ends; at once if it has ended.

        Time ends it at the deadline, or `ahead` seconds before; no store is waited for. With None
        the caller looks at the deadline itself, and hears of it late.
        """
        with self._state.mutex:
            held.watchers += (watcher,)
        if not held.machine.valid(clock.now()):
            self._tell_ended(held)
        elif ahead is not None:
            self._state.deadlines.watch(held, ahead)

    def unwatch(self, held: Held, watcher: Callable[[], None]) -> None:
        """Call `watcher` no longer: the very object that was given to `watch`."""
        with self._state.mutex:
            held.watchers = tuple(one for one in held.watchers if one is not watcher)

    def follow(self, held: Held, follower: Callable[[], None]) -> None:
        """Call `follower` in the keeper's thread after every proved renewal, until `held` ends."""
        with self._state.mutex:
            held.followers += (follower,)

    def renew_now(self, held: Held, asker: Callable[[], None], *, after: float = 0.0) -> None:
        """Renew `held` now (`after` seconds) instead of when it is due, then call `asker`."""
        with self._state.mutex:
            held.askers += (asker,)
        self._plan(held, clock.now() + after)

    def refs(self) -> set[weakref.ref[Held]]:
        """The leases that are renewed."""
        return set(self._state.refs())

    def missed(self, deadline: float) -> float:
        """Seconds around `deadline` for which the thread was due and did not run; else 0.0."""
        since, until = self._state.missed
        if not since <= deadline <= until:
            since, until = self._state.thread.planned, clock.now()
        late = until - since
        return late if 0 < since <= deadline and late > _LATE else 0.0

    def hand_over(self, debt: Debt) -> None:
        state = self._state
        state.debts.add(debt)
        state.thread.wake()

    def tell_outage(
        self, key: Key, error: StoreError, waited: float = 0.0, timeout: float | None = None
    ) -> None:
        now, outage = clock.now(), self._state.outage
        if outage.is_worth_a_line(now):
            how_long = waiting_so_far(max(waited, now - outage.since), timeout)
            _log.warning("%s: waiting for the store%s: %s", key.name, how_long, error)

    def close(self) -> None:
        """Pay what is owed, briefly, and end the thread; leases are renewed no longer.

        The watchers of one are still called when it runs out.
        """
        self.drain(_DRAIN)
        self._state.thread.stop()

    def drain(self, timeout: float) -> None:
        """Pay what is owed, for at most `timeout` seconds."""
        self._state.debts.drain(self.port, timeout)

    def forked(self) -> None:
        """In the child of a fork: nothing is held, nothing is owed, and there is no thread."""
        before, self._state = self._state, _State(self)
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
        with state.mutex:
            if due >= state.thread.planned:
                return
            state.thread.planned = due
        state.thread.wake()

    def _place(self, state: _State, held: Held) -> None:
        # With jitter, so that leases taken together do not stay synchronised.
        self._plan(held, first_due(held, draw_jitter()), earliest=held.began)
        state.new.pop(held.ref, None)

    def _next(self, state: _State) -> float:
        with state.mutex:
            state.thread.planned = min(state.buckets.first(), state.debts.first())
            for ref in list(state.new):
                self._admit(state, ref)
            return state.thread.planned

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
        planned = state.thread.planned
        late = now - planned
        if planned > 0 and late > _LATE:
            state.missed = (planned, now)
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
        deadline = leases[0].machine.deadline
        error = run(renew(self.port, leases, batches, turn))
        now = clock.now()
        if error is not None:
            self.tell_outage(leases[0].wanted.key, error)
        stopped = self._plan_others([*turn.skipped, *turn.others], sent, now)
        self._count(len(turn.asked), len(leases) - stopped, error, now - sent)
        if meters.on and error is None and turn.asked and turn.asked[0] is leases[0]:
            # The leases of a bucket have nearly the same deadline: one of them speaks for all.
            left = (deadline - now) / leases[0].wanted.policy.ttl
            meters.observe(meters.MARGIN, max(0.0, left))
        if error is None:
            self._tell_followers(turn.others)

    def _plan_others(self, others: Sequence[Held], sent: float, now: float) -> int:
        """Plan the leases that do not stay in their bucket's rhythm; returns how many."""
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
        if meters.on:
            meters.observe(meters.RENEWAL, took)
        if error is not None:
            stats.failures += asked
            if meters.on:
                meters.failed(error)
                meters.count(meters.RENEWAL_FAILURES, amount=asked)
            return
        stats.renewals += renewed
        stats.last_answer = clock.now()
        if meters.on:
            meters.count(meters.RENEWALS, amount=renewed)

    @staticmethod
    def _tell_followers(renewed: Sequence[Held]) -> None:
        """Called when all is planned, so that a follower cannot delay another lease's renewal."""
        for held in renewed:
            if held.followers and held.machine.state is State.HELD:
                for follower in held.followers:
                    call_guarded(follower)

    def _end(self, held: Held) -> None:
        self._state.buckets.discard(held)
        # The watchers of a released lease are called by the releaser, once the store knows.
        if held.machine.state is State.LOST:
            self._tell_ended(held)

    def _tell_ended(self, held: Held) -> None:
        if sys.is_finalizing():
            self._state.renew_mutex()
        with self._state.mutex:
            watchers = held.take_watchers()
        for watcher in watchers:
            call_guarded(watcher)


def _requests(due: Sequence[Bucket], now: float) -> Iterator[list[Bucket]]:
    """Which buckets are renewed in one go: small ones together, the others each for itself.

    A bucket that is sent by itself repeats its last request, which is prepared already. When the
    thread is late, fewer requests matter more.
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


def remembered() -> Iterator[Held]:
    """What the keepers of this process renew. From any thread."""
    while True:
        try:
            keepers = list(_keepers)
            break
        except RuntimeError:
            # Another thread made one meanwhile.
            continue
    for keeper in keepers:
        for ref in keeper.refs():
            if (held := ref()) is not None:
                yield held


def _forget_everything() -> None:
    notifier.reset()
    for keeper in list(_keepers):
        keeper.forked()
    meters.reset()


@atexit.register
def _pay_at_exit() -> None:
    for keeper in list(_keepers):
        keeper.drain(_DRAIN)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_everything)
