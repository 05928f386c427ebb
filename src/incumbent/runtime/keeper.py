"""The keeper: in each process a thread for each store, which renews leases and pays debts.

It is a thread also under asyncio, so that a blocked event loop does not cost the lease; each store
has one, so that a slow store does not cost another's leases. Leases due together share few bounded
requests. A debt is the release of a claim that ended here and may still stand in the store.

    arm --> new --> in a bucket --> due: one request for all of it --> back, a period later
             |           ^                |
             |           +-- no answer: due again by itself, sooner
             +--> released (disarm), or lost: its watchers are called
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
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf

from incumbent import clock, meters
from incumbent.chance import draw_jitter
from incumbent.durations import backoff_delay
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.lease import LeaseState
from incumbent.model import Key
from incumbent.protocol.claim import Claim
from incumbent.protocol.messages import waiting_so_far
from incumbent.protocol.port import Debt, Port
from incumbent.protocol.release import give_up, settle
from incumbent.protocol.renew import FIRST_FROM, Batches, RenewalAttempt, first_due, next_due, renew
from incumbent.runtime.buckets import FULL, Bucket, Buckets
from incumbent.runtime.deadlines import Deadlines
from incumbent.runtime.sync import ClientEnd, SyncPort
from incumbent.runtime.threads import AlarmThread, call_guarded, notifier, program_may_run
from incumbent.stores.base import Store
from incumbent.stores.plan import run_blocking
from incumbent.unpatched import unpatched

_log = logging.getLogger("incumbent")

# The most leases in a request for several buckets, as when the thread is late: with
# CPU-bound threads, each request costs a few GIL switches, however many leases it has.
_FULL_WHEN_LATE = 4 * FULL
# A bucket with fewer leases shares a request with the other buckets that are due.
_FEW = 64
# The most leases that wait until the thread wakes and gives them buckets: so few that it does not
# matter if their renewals then coincide.
_NEW = 64
# The most seconds that closing a client spends on its debts; the thread pays what is left.
_DRAIN = 0.5
# Seconds after which a store is closed once more, as long as somebody waits in it.
_AGAIN = 0.05
# Seconds after the ttl has ended a claim until a keeper that was closed leaves its debt unpaid.
_PAID_FOR = 5.0
# The most seconds that the end of the interpreter waits for the stores.
_AT_EXIT = 1.0
# Seconds from the first log line about an outage to the second, and the most between two lines.
_OUTAGE_FIRST, _OUTAGE_MOST = 5.0, 600.0
# Seconds without an error after which the next error begins another outage.
_OUTAGE_OVER = 60.0
# Seconds by which a thread may be late on any busy machine.
_LATE = 0.1
_LATE_AND_SAID = 1.0


# -- debts -----------------------------------------------------------------------------------------

_SETTLE_TIMEOUT = 1.0


@dataclass(slots=True)
class _Owed:
    debt: Debt
    tries: int = 0
    due: float = 0.0


class Debts:
    """Owed releases. Any thread, and `__del__`, may add one; they are paid one at a time."""

    def __init__(self) -> None:
        self._owed: deque[_Owed] = deque()
        self._paying: threading.Lock = unpatched("_thread", "allocate_lock")()

    def add(self, debt: Debt) -> None:
        """Add a debt that is due at once. Never blocks."""
        self._owed.append(_Owed(debt))

    def first(self, since: float = -inf) -> float:
        """The instant at which the next debt is due; of those whose claim the ttl ends `since`."""
        # A copy, made in one step: another thread may add a debt meanwhile.
        due = (owed.due for owed in list(self._owed) if owed.debt.until >= since)
        return min(due, default=inf)

    def pay(self, port: Port, renewals_due: float) -> None:
        """Pay the debts that are due, until the next renewals are due, which matter more.

        This takes a second at most, because a lease that is taken meanwhile needs renewals too.
        """
        if not self._owed:
            return
        renewals_due = min(renewals_due, clock.now() + _SETTLE_TIMEOUT)
        with self._paying:
            # Each once: what cannot be paid now is put back at the end.
            for _ in range(len(self._owed)):
                self._pay_one(port, self._owed.popleft(), renewals_due)

    def _pay_one(self, port: Port, owed: _Owed, renewals_due: float) -> None:
        now = clock.now()
        if owed.due > now or now >= renewals_due:
            self._owed.append(owed)
            return
        key, timeout = owed.debt.key, min(_SETTLE_TIMEOUT, renewals_due - now)
        if owed.debt.collected and not owed.tries:
            _log.warning("%s: a lease was dropped without a release, and is given back", key.name)
        try:
            settled = run_blocking(settle(port, owed.debt, timeout))
        except Exception:  # noqa: BLE001 - the thread must not end for it
            _log.exception("%s: a dead claim could not be given back; its ttl ends it", key)
            return
        if not settled:
            owed.tries += 1
            # From now, not from before the try: that one may have used up the pause.
            owed.due = clock.now() + backoff_delay(owed.tries, draw_jitter(), cap=2.0)
            self._owed.append(owed)

    def drain(self, port: Port, timeout: float) -> None:
        """Pay all debts, due or not, for at most `timeout` seconds."""
        until = clock.now() + timeout
        failed: list[_Owed] = []
        error: Exception | None = None
        # A debt that another thread is paying is not in the list: an exit now would interrupt it.
        if not self._paying.acquire(timeout=timeout):
            return
        try:
            while self._owed and clock.now() < until:
                # Removed only once it is paid: an interruption in between leaves it owed. Nobody
                # else removes one while we have the lock.
                owed = self._owed[0]
                try:
                    if not run_blocking(settle(port, owed.debt, until - clock.now())):
                        failed.append(owed)
                except Exception as its_error:  # noqa: BLE001 - it is raised below
                    error = error or its_error
                    failed.append(owed)
                # Also if it could not be paid: what is left of the time goes to the others.
                self._owed.popleft()
        finally:
            # Still owed, behind the others.
            self._owed.extend(failed)
            self._paying.release()
        # Of a defect, or of a signal handler. The other debts came first.
        if error is not None:
            raise error


# -- the keeper ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outage:
    """Decides when to log an outage of the store: each pause is twice as long as the one before."""

    since: float = -inf
    seen: float = -inf
    logged: float = -inf
    pause: float = 0.0

    def is_worth_a_line(self, now: float) -> bool:
        if now - self.seen > max(_OUTAGE_OVER, self.pause):
            self.since, self.pause = now, 0.0
        self.seen = now
        if now - self.logged < self.pause:
            return False
        self.logged, self.pause = now, min(_OUTAGE_MOST, max(_OUTAGE_FIRST, 2 * self.pause))
        return True


@dataclass(slots=True)
class Stats:
    """Counters of one keeper, for display and metrics.

    `renewals`: leases renewed and proved; `failures`: renewals that got no answer;
    `last_answer`: the instant of the last answer to a request for renewals (-inf: none yet).
    """

    renewals: int = 0
    failures: int = 0
    last_answer: float = -inf


class _KeeperState:
    """The state of one keeper thread; the child of a fork starts with a new one."""

    def __init__(self, keeper: Keeper) -> None:
        # One mutex for the buckets and the thread's wake-up time, which are decided together.
        self.mutex: threading.RLock = unpatched("_thread", "RLock")()
        self.buckets = Buckets(self.mutex, spread=keeper.spread)
        self.new: dict[weakref.ref[Claim], None] = {}
        """Leases without a bucket yet: most end before the thread wakes. Its steps are atomic."""
        self.debts = Debts()
        self.thread = AlarmThread(
            "incumbent-keeper", lambda: keeper._plan_sleep(self), lambda: keeper._act(self)
        )
        self.thread.ends_when_idle = keeper.end.closed
        self.deadlines = Deadlines(keeper._call_watchers)
        self.unscheduled = (0.0, 0.0)
        self.outage = _Outage()

    def replace_mutex(self) -> None:
        """Replace the mutex at the interpreter's end: a thread that was ended may hold it."""
        # Made by its type, because nothing can be imported any more.
        self.mutex = self.buckets.mutex = type(self.mutex)()

    def refs(self) -> list[weakref.ref[Claim]]:
        """References to all leases; a lease that is moving into its bucket may be there twice."""
        return [*self.new, *self.buckets.refs()]


class Keeper:
    """The keeper of one store. All methods may be called from any thread and in signal handlers."""

    def __init__(self, store: Store) -> None:
        self.end = ClientEnd()
        self.port = SyncPort(store, self)
        self.spread: bool = getattr(store, "renews_one_by_one", False)
        self._state = _KeeperState(self)
        self.stats = Stats()
        _keepers.add(self)

    # -- for leases --------------------------------------------------------------------------

    def arm(self, claim: Claim) -> None:
        """Renew `claim` from now on, until it ends or is dropped. Raises Misuse after a close."""
        if self.end.closed:
            # The caller may not know of it yet: what it does after an error must not matter.
            give_up(claim.port, claim, undo_slot=True)
            self.end.refuse(f"{claim.wanted.key.name!r}: ")
        state = self._state
        new = state.new
        new[claim.ref] = None
        # Write first, then compare. The thread does the reverse (it writes `planned`, then looks
        # for new leases), so at least one of the two sees what the other wrote.
        soonest = claim.began + claim.machine.policy.renew_every * FIRST_FROM
        # Most leases end before the thread wakes by itself: then neither a bucket nor a wake was
        # needed.
        if self.spread or soonest < state.thread.planned or len(new) > _NEW:
            self._put_in_bucket(state, claim)

    def disarm(self, claim: Claim) -> None:
        """Stop renewing `claim`, because its holder releases it, and call its watchers."""
        # If the thread moves it to a bucket after this, the next renewal finds it released there.
        self._state.new.pop(claim.ref, None)
        # One step, without the mutex: a release never waits for the thread.
        self._state.buckets.discard(claim)
        # Who asks for a renewal after this look puts the lease into a bucket, where it is found.
        if claim.watchers or claim.on_next_renewal:
            self._state.deadlines.forget(claim)
            self._call_watchers(claim)

    def watch(
        self, claim: Claim, watcher: Callable[[], None], *, ahead: float | None = 0.0
    ) -> None:
        """Call `watcher` once when the holding ends; at once if it has ended.

        A holding that runs out ends at its deadline, or `ahead` seconds before, without waiting for
        the store. With None the caller watches the deadline itself; `watcher` is called late then.
        """
        # Added first, then checked: a loss in between is seen by one of the two. With the mutex,
        # because `+=` reads and then writes: a watcher of another thread could be forgotten.
        with self._state.mutex:
            claim.watchers += (watcher,)
        if not claim.machine.valid(clock.now()):
            self._call_watchers(claim)
        elif ahead is not None:
            self._state.deadlines.watch(claim, ahead)

    def unwatch(self, claim: Claim, watcher: Callable[[], None]) -> None:
        """Stop calling `watcher`, which must be the same object that was given to `watch`."""
        with self._state.mutex:
            claim.watchers = tuple(one for one in claim.watchers if one is not watcher)

    def watch_renewals(self, claim: Claim, watcher: Callable[[], None]) -> None:
        """Call `watcher` in the keeper's thread after every proved renewal, until `claim` ends."""
        with self._state.mutex:
            claim.on_each_renewal += (watcher,)

    def renew_now(self, claim: Claim, asker: Callable[[], None], *, after: float = 0.0) -> None:
        """Renew `claim` in `after` seconds instead of when it is due, then call `asker`."""
        with self._state.mutex:
            # Before it is due: a renewal that begins at once must find the asker.
            claim.on_next_renewal += (asker,)
        self._make_due(claim, clock.now() + after)

    def refs(self) -> set[weakref.ref[Claim]]:
        """References to the leases that are renewed."""
        return set(self._state.refs())

    def seconds_unscheduled(self, deadline: float) -> float:
        """Seconds around `deadline` for which the thread was due but did not run, or 0.0."""
        since, until = self._state.unscheduled
        if not since <= deadline <= until:
            since, until = self._state.thread.planned, clock.now()
        late = until - since
        return late if 0 < since <= deadline and late > _LATE else 0.0

    def owe(self, debt: Debt) -> None:
        state = self._state
        # Added before the wake: the thread reads the debts after it.
        state.debts.add(debt)
        state.thread.wake()

    def log_outage(
        self, key: Key, error: StoreError, waited: float = 0.0, timeout: float | None = None
    ) -> None:
        now, outage = clock.now(), self._state.outage
        # After a close nobody waits: what fails is the end of the connections.
        if not self.end.closed and outage.is_worth_a_line(now):
            how_long = waiting_so_far(max(waited, now - outage.since), timeout)
            _log.warning("%s: waiting for the store%s: %s", key.name, how_long, error)

    def close(self) -> None:
        """Renew leases no longer, end all waits, and pay debts; the thread ends when all are paid.

        The watchers of a lease are still called when it runs out.
        """
        self.end.close()
        thread = self._state.thread
        thread.ends_when_idle = True
        try:
            self.drain(_DRAIN)
        finally:
            if thread.alarm is not None or self._plan_sleep(self._state) < inf:
                thread.wake()

    def drain(self, timeout: float) -> None:
        """Pay debts for at most `timeout` seconds."""
        self._state.debts.drain(self.port, timeout)

    def forked(self) -> None:
        """Reset in the child of a fork: it holds nothing, owes nothing, and has no thread."""
        # All of it is new: the parent's threads are not here, and may have left the mutex locked.
        before, self._state = self._state, _KeeperState(self)
        self.end.waits = {}
        self.stats = Stats()
        for ref in before.refs():
            if (claim := ref()) is not None:
                claim.machine.note_forked()

    # -- the thread --------------------------------------------------------------------------

    def _make_due(self, claim: Claim, due: float, *, earliest: float = inf) -> None:
        state = self._state
        if sys.is_finalizing():
            state.replace_mutex()
        due = state.buckets.add(claim, due, earliest=earliest)
        with state.mutex:
            if due >= state.thread.planned:
                return
            # Written here and not only by the thread: leases that are due later need not wake it.
            state.thread.planned = due
        state.thread.wake()

    def _put_in_bucket(self, state: _KeeperState, claim: Claim) -> None:
        # With jitter, so that leases taken together do not stay synchronised.
        self._make_due(claim, first_due(claim, draw_jitter()), earliest=claim.began)
        # Last: the child of a fork finds each lease in one of the two.
        state.new.pop(claim.ref, None)

    def _plan_sleep(self, state: _KeeperState) -> float:
        with state.mutex:
            # Written before `new` is read: see `arm`.
            state.thread.planned = min(state.buckets.first(), state.debts.first())
            if self.end.closed:
                state.thread.planned = self._plan_after_close(state)
            for ref in () if self.end.closed else list(state.new):
                claim = ref()
                if (
                    claim is None
                    or claim.bucket is not None
                    or claim.machine.state is not LeaseState.HELD
                ):
                    state.new.pop(ref, None)
                else:
                    self._put_in_bucket(state, claim)
            return state.thread.planned

    def _plan_after_close(self, state: _KeeperState) -> float:
        now = clock.now()
        asked = any(claim.on_next_renewal for ref in state.refs() if (claim := ref()))
        again = now + _AGAIN if None in self.end.waits.copy().values() else inf
        return now if asked else min(again, state.debts.first(now - _PAID_FOR))

    def _act_after_close(self, state: _KeeperState) -> None:
        for ref in state.refs():
            if claim := ref():
                self._call_askers(claim)
        state.debts.pay(self.port, inf)
        # That may have connected anew; and a wait that began beside the close ends by this one.
        self.port.store.close()

    def _act(self, state: _KeeperState) -> None:
        if self.end.closed:
            self._act_after_close(state)
            return
        now = clock.now()
        self._notice_lateness(state, now)
        due = state.buckets.take(now)
        try:
            for together in _requests(due, now):
                self._renew_buckets(together)
        finally:
            # Also after a defect of ours: a bucket that is not put back is never renewed again.
            for bucket in due:
                state.buckets.put_back(bucket)
        state.debts.pay(self.port, state.buckets.first())

    @staticmethod
    def _notice_lateness(state: _KeeperState, now: float) -> None:
        planned = state.thread.planned
        late = now - planned
        if planned > 0 and late > _LATE:
            state.unscheduled = (planned, now)
            if late > _LATE_AND_SAID:
                _log.warning("the renewals of this process were not scheduled for %.1f s", late)

    def _renew_buckets(self, buckets: Sequence[Bucket]) -> None:
        leases = [claim for bucket in buckets for claim in bucket.leases()]
        # Of the first bucket: they are found by the leases in them, so an unchanged request is
        # packed once.
        batches = buckets[0].batches
        batches.begin()
        sent = clock.now()
        for bucket in buckets:
            bucket.sent = sent
        size = FULL if len(buckets) == 1 else _FULL_WHEN_LATE
        for start in range(0, len(leases), size):
            self._renew(leases[start : start + size], batches)

    def _renew(self, leases: Sequence[Claim], batches: Batches) -> None:
        sent, attempt = clock.now(), RenewalAttempt()
        # Before the renewal, which moves it: the margin is what was left of the old proof.
        deadline = leases[0].machine.deadline
        error = run_blocking(renew(self.port, leases, batches, attempt))
        now = clock.now()
        if error is not None:
            self.log_outage(leases[0].wanted.key, error)
        self._report_trouble(attempt.needs_more, error, now)
        unproved = sum(
            1 for claim in attempt.needs_more if claim.failures or not claim.machine.valid(now)
        )
        self._plan_anew([*attempt.skipped, *attempt.needs_more], sent, now)
        self._count(len(attempt.asked), unproved, error, now - sent)
        if meters.on and error is None and attempt.asked and attempt.asked[0] is leases[0]:
            # The leases of a bucket have nearly the same deadline, so one of them represents all.
            left = (deadline - now) / leases[0].wanted.policy.ttl
            meters.observe(meters.MARGIN, max(0.0, left))
        # Nothing was proved without an answer, and who watches renewals announces a proof.
        if error is None:
            self._call_renewal_watchers(attempt.needs_more)

    @staticmethod
    def _report_trouble(claims: Sequence[Claim], error: StoreError | None, now: float) -> None:
        """Report the leases whose renewals begin to fail, and that are proved all the same."""
        failing = [claim for claim in claims if claim.failures == 1 and claim.machine.valid(now)]
        if not failing:
            return
        error = error or StoreUnavailable("the store did not confirm the renewal")
        left = min(claim.machine.remaining(now) for claim in failing)
        more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
        name = failing[0].wanted.key.name
        _log.info("%s%s: not renewed, proved for another %.3g s: %s", name, more, left, error)
        for claim in failing:
            if claim.on_trouble is not None:
                notifier.call(partial(claim.on_trouble, error))

    def _plan_anew(self, claims: Sequence[Claim], sent: float, now: float) -> None:
        """End the lost leases, and plan anew those that failed or that at_most_for ends."""
        for claim in claims:
            # By the instant after the answer: a lease that ran out meanwhile is not planned again.
            if not claim.machine.valid(now):
                self._state.buckets.discard(claim)
                # If the lease was released, the releaser calls the watchers once the store knows.
                if claim.machine.state is LeaseState.LOST:
                    self._call_watchers(claim)
            elif claim.failures or claim.machine.ends_by_at_most_for:
                self._make_due(claim, next_due(claim, sent, now, draw_jitter()))
            self._call_askers(claim)

    def _call_askers(self, claim: Claim) -> None:
        # Taken as in `_call_watchers`: a release meanwhile must not call them a second time.
        with self._state.mutex:
            askers, claim.on_next_renewal = claim.on_next_renewal, ()
        for asker in askers:
            asker()

    def _count(self, asked: int, unproved: int, error: StoreError | None, took: float) -> None:
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
        stats.renewals += asked - unproved
        stats.last_answer = clock.now()
        if meters.on:
            meters.count(meters.RENEWALS, amount=asked - unproved)

    @staticmethod
    def _call_renewal_watchers(renewed: Sequence[Claim]) -> None:
        """Call those who watch renewals; last, so that they delay no other lease's renewal."""
        for claim in renewed:
            if claim.on_each_renewal and claim.machine.state is LeaseState.HELD:
                for watcher in claim.on_each_renewal:
                    call_guarded(watcher)

    def _call_watchers(self, claim: Claim) -> None:
        if sys.is_finalizing():
            self._state.replace_mutex()
        with self._state.mutex:
            # Taken under the mutex, called outside: a watcher may add another one, or wait for a
            # thread that does. Who takes it calls it, so each is called once.
            watchers = claim.take_watchers()
        # All are called before a Ctrl-C is raised: it must not cost a callback, nor be lost.
        for interruption in [error for watcher in watchers if (error := call_guarded(watcher))]:
            raise interruption


def _requests(due: Sequence[Bucket], now: float) -> Iterator[list[Bucket]]:
    """The buckets of each request: small buckets share one, each of the others has its own."""
    # A bucket with a request of its own repeats its last one, which is prepared already. When the
    # thread is late, having fewer requests matters more.
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


def renewed_claims() -> Iterator[Claim]:
    """The claims that the keepers of this process renew. From any thread."""
    while True:
        try:
            keepers = list(_keepers)
            break
        except RuntimeError:
            # Another thread made a keeper meanwhile.
            continue
    for keeper in keepers:
        for ref in keeper.refs():
            if (claim := ref()) is not None:
                yield claim


def _reset_in_child() -> None:
    notifier.reset()
    for keeper in list(_keepers):
        keeper.forked()
    meters.reset()


@atexit.register
def _end_at_exit() -> None:
    """Give back what is held and pay what is owed, for at most a second in all."""
    until = clock.now() + _AT_EXIT
    if not program_may_run():
        for claim in renewed_claims():
            if claim.machine.state is LeaseState.HELD:
                # Before the debt is handed over: a renewal after the release would find nothing,
                # and say lost.
                claim.machine.note_leaving()
                claim.port.owe(claim.debt(clock.now(), undo_slot=False))
    # All of them, though one fails: another store's leases must not wait for their ttl.
    with ExitStack() as drains:
        for keeper in list(_keepers):
            drains.callback(lambda one: one.drain(max(0.0, until - clock.now())), keeper)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
