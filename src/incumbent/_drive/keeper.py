"""The keeper: one thread a store and process that renews its leases and pays what is owed to it.

A thread also under asyncio, so that a blocked event loop does not cost the lease. It remembers
leases weakly, in buckets by the instant at which they are due, and renews a bucket in one request.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from incumbent import clock
from incumbent._core.held import Held
from incumbent._core.onestep import run
from incumbent._core.port import Debt
from incumbent._core.release import settle
from incumbent._core.renew import first_due, next_due, renew
from incumbent._drive.alarm import Alarm, make_alarm
from incumbent._drive.notifier import notifier
from incumbent._drive.sync import SyncPort, draw_jitter
from incumbent.backoff import backoff_delay
from incumbent.errors import StoreError
from incumbent.lease import State
from incumbent.model import Key
from incumbent.stores.base import Store
from incumbent.unpatched import original, start_thread

__all__ = ["Keeper", "Stats"]

_log = logging.getLogger("incumbent")

_BUCKETS = 32
"""Parts of a renewal interval whose leases are renewed together."""
_BATCH = 500
"""Leases in one request."""
_SETTLE_TIMEOUT = 1.0
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


_Bucket = dict["weakref.ref[Held]", None]


@dataclass(slots=True)
class _Owed:
    debt: Debt
    tries: int = 0
    due: float = 0.0


@dataclass(slots=True)
class _State:
    """What one keeper thread owns; a fork's child starts with a new one."""

    mutex: threading.RLock = field(default_factory=original("_thread", "RLock"))
    buckets: dict[float, _Bucket] = field(default_factory=dict)
    in_hand: list[weakref.ref[Held]] = field(default_factory=list)
    owed: deque[_Owed] = field(default_factory=deque)
    paying: threading.Lock = field(default_factory=original("_thread", "allocate_lock"))
    alarm: Alarm | None = None
    planned: float = inf
    missed: tuple[float, float] = (0.0, 0.0)
    stopped: bool = False
    outage_told: float = -inf


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
        self._plan(held, first_due(held, draw_jitter()))

    def disarm(self, held: Held) -> None:
        """The holder lets go of `held`: renew it no longer, and tell who watches."""
        if held.bucket is not None:
            held.bucket.pop(held.ref, None)
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
        state.owed.append(_Owed(debt))
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
        until = clock.now() + timeout
        owed, paying = self._state.owed, self._state.paying
        # What the thread is paying is not in the list: an exit now would cut it short.
        if not paying.acquire(timeout=timeout):
            return
        try:
            while owed and clock.now() < until:
                self._settle(owed.popleft().debt, until - clock.now())
        finally:
            paying.release()

    def forked(self) -> None:
        """In the child of a fork: nothing is held, nothing is owed, and there is no thread."""
        before, self._state = self._state, _State()
        self.stats = Stats()
        for refs in (*before.buckets.values(), before.in_hand):
            for ref in refs:
                if (held := ref()) is not None:
                    held.machine.forked()

    # -- the thread --------------------------------------------------------------------------

    def _plan(self, held: Held, due: float) -> None:
        state = self._state
        # Rounding down to a bucket brings leases together and never makes one late.
        due -= due % (held.wanted.policy.renew_every / _BUCKETS)
        with state.mutex:
            held.bucket = state.buckets.setdefault(due, {})
            held.bucket[held.ref] = None
        if due < state.planned:
            state.planned = due
            self._wake(state)

    def _wake(self, state: _State) -> None:
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
                # Whatever it was, the other leases still need their renewals.
                _log.exception("the keeper met an error; leases it could not renew will expire")
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
            due = min(state.buckets, default=inf)
            state.planned = min(due, min((owed.due for owed in state.owed), default=inf))
            return state.planned

    def _tick(self, state: _State) -> None:
        now = clock.now()
        self._notice_lateness(state, now)
        due = self._collect(state, now)
        for start in range(0, len(due), _BATCH):
            self._renew(due[start : start + _BATCH])
        state.in_hand = []
        self._pay(state)

    @staticmethod
    def _notice_lateness(state: _State, now: float) -> None:
        late = now - state.planned
        if state.planned > 0 and late > _LATE:
            state.missed = (state.planned, now)
            if late > _LATE_AND_SAID:
                _log.warning("the renewals of this process were not scheduled for %.1f s", late)

    def _collect(self, state: _State, now: float) -> list[Held]:
        with state.mutex:
            past = [instant for instant in state.buckets if instant <= now]
            # Noted before they leave their buckets: a fork between the two must still find them.
            state.in_hand = [ref for instant in past for ref in state.buckets[instant]]
            for instant in past:
                del state.buckets[instant]
        return [held for ref in state.in_hand if (held := ref()) is not None]

    def _renew(self, batch: list[Held]) -> None:
        sent = clock.now()
        held_now = [held for held in batch if held.machine.state is State.HELD]
        asked = [held for held in held_now if held.worth_renewing]
        error = run(renew(self.port, asked))
        now = clock.now()
        if error is not None:
            self.tell_outage(held_now[0].wanted.key, error)
        self._count(asked, error, sent, now)
        for held in held_now:
            if held.machine.valid(now):
                self._plan(held, next_due(held, sent, now, draw_jitter()))
                held.tell_askers()
            else:
                self._tell_ended(held)
        if error is None:
            self._tell_followers(asked)

    def _count(self, asked: list[Held], error: StoreError | None, sent: float, now: float) -> None:
        if not asked:
            return
        stats = self.stats
        if error is not None:
            stats.failures += len(asked)
            return
        stats.renewals += sum(held.machine.state is State.HELD for held in asked)
        stats.last_answer, stats.last_took = now, now - sent

    @staticmethod
    def _tell_followers(renewed: list[Held]) -> None:
        """After all that is planned: what they do cannot delay another lease's next renewal."""
        for held in renewed:
            if held.machine.state is State.HELD:
                for follower in held.followers:
                    follower()

    def _tell_ended(self, held: Held) -> None:
        with self._state.mutex:
            watchers = held.take_watchers()
        for watcher in watchers:
            watcher()

    def _pay(self, state: _State) -> None:
        if not state.owed:
            return
        with state.paying:
            for _ in range(len(state.owed)):
                self._pay_one(state, state.owed.popleft(), min(state.buckets, default=inf))

    def _pay_one(self, state: _State, owed: _Owed, renewals_due: float) -> None:
        """Pay, unless it is too early or the next renewals are due: they matter more."""
        now = clock.now()
        if owed.due > now or now >= renewals_due:
            state.owed.append(owed)
        elif not self._settle(owed.debt, min(_SETTLE_TIMEOUT, renewals_due - now)):
            owed.tries += 1
            owed.due = clock.now() + backoff_delay(owed.tries, draw_jitter(), cap=2.0)
            state.owed.append(owed)

    def _settle(self, debt: Debt, timeout: float) -> bool:
        try:
            return run(settle(self.port, debt, timeout))
        except Exception:  # noqa: BLE001 - an exit or the thread must not end for it
            _log.exception("%s: a dead claim could not be given back; its ttl ends it", debt.key)
            return True


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
