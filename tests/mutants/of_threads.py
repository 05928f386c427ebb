"""Mutations of the threads behind leases, and of what an interruption or a lost record leaves."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_LIVES = ("tests/protocol/test_keeper_lives.py",)
_DEADLINES = ("tests/protocol/test_deadlines.py",)
_WAITS = ("tests/top/test_waits_for_loss.py",)
_THREADED = ("tests/stores/test_threaded.py",)
_CLOSED = ("tests/top/test_closed_clients.py",)
_ONCE = ("tests/cron/test_once_interrupted.py",)

_p = in_area("protocol")

MUTATIONS: tuple[Mutation, ...] = (
    _p(
        "a debt writes into the keeper's plan",
        "runtime/keeper.py",
        "        state.debts.add(debt)\n",
        "        state.debts.add(debt)\n        state.thread.planned = -inf\n",
        "tests/protocol/test_keeper_plan.py",
    ),
    _p(
        "what ends the keeper's thread ends it for ever",
        "runtime/threads.py",
        "            self._woken = True\n        finally:",
        "        finally:",
        *_LIVES,
    ),
    _p(
        "a thread that could not be started is not tried again",
        "runtime/threads.py",
        "                self._note_absence()\n\n    def _end_sleep",
        "                pass\n\n    def _end_sleep",
        *_LIVES,
    ),
    _p(
        "who wakes a thread that is about to end is not heard",
        "runtime/threads.py",
        "        self._woken = True\n        # Kept",
        "        # Kept",
        "tests/protocol/test_keeper_plan.py",
    ),
    _p(
        "a job's thread is no work at the end of the interpreter",
        "runtime/threads.py",
        "    if any(thread.name not in SERVICES for thread in daemons):",
        '    if any("incumbent" not in thread.name for thread in daemons):',
        "tests/top/test_at_exit.py",
    ),
    _p(
        "a callback is no work at the end of the interpreter",
        "runtime/threads.py",
        "    if notifier.busy:",
        "    if notifier.running is None:",
        "tests/top/test_at_exit.py",
    ),
    _p(
        "every wait for a loss takes another place",
        "runtime/deadlines.py",
        "        sooner = ahead > self._ahead.get(claim.ref, -1.0)",
        "        sooner = True",
        *_DEADLINES,
    ),
    _p(
        "a watcher that fails silences the others",
        "runtime/keeper.py",
        "[error for watcher in watchers if (error := call_guarded(watcher))]",
        "[error for watcher in watchers if (error := watcher())]",
        *_LIVES,
    ),
    _p(
        "who acts at the deadline waits for the renewal",
        "runtime/keeper.py",
        "            self._state.deadlines.watch(claim, ahead)",
        "            pass",
        *_DEADLINES,
    ),
    _p(
        "a lease that comes after the close is kept, and never renewed",
        "runtime/keeper.py",
        "        if self.end.closed:\n            # The caller",
        "        if False:\n            # The caller",
        *_CLOSED,
    ),
    _p(
        "who begins to wait beside the close is not ended",
        "runtime/keeper.py",
        "        again = now + _AGAIN if None in self.end.waits.copy().values() else inf",
        "        again = inf",
        *_CLOSED,
    ),
    _p(
        "a close wakes nobody",
        "runtime/sync.py",
        "                if end is not None:\n",
        "                if False:\n",
        *_CLOSED,
    ),
    _p(
        "what is owed after the close is not paid",
        "runtime/keeper.py",
        "        return now if asked else min(again, state.debts.first(now - _PAID_FOR))",
        "        return now if asked else again",
        *_CLOSED,
    ),
    _p(
        "gone is a loss also after the deadline",
        "protocol/release.py",
        "    if port.now() < claim.machine.deadline:",
        "    if port.now():",
        "tests/top/test_release_of_what_is_gone.py",
    ),
    _p(
        "a loss that a release finds ends the process before the body's error is shown",
        "locks/leases.py",
        "            self._unwatch(self._exit_on_loss)",
        "            pass",
        "tests/top/test_release_of_what_is_gone.py",
    ),
    _p(
        "an asyncio lock is remembered before it is entered",
        "locks/lock.py",
        "        await lease.__aenter__()\n        self._note_entered(lease)\n",
        "        self._note_entered(lease)\n        await lease.__aenter__()\n",
        *_WAITS,
    ),
    _p(
        "a wait for the loss leaves its watcher behind",
        "locks/leases.py",
        "            self._unwatch(watcher)",
        "            pass",
        *_WAITS,
    ),
    _p(
        "a cancellation before the function began uses the slot of @once",
        "decorators.py",
        "    except BaseException:\n        # Nothing ran, also if it was cancelled",
        "    except Exception:\n        # Nothing ran, also if it was cancelled",
        *_ONCE,
    ),
    _p(
        "an interrupted beginning removes the record of an earlier run",
        "cron/ledger.py",
        "        if version and _is_same(found, run):",
        "        if version:",
        *_ONCE,
    ),
    _p(
        "work beside a body begins although the body has ended",
        "locks/elections.py",
        "            return None if port.over else work(term)",
        "            return work(term)",
        "tests/top/test_running.py",
    ),
    _p(
        "a lock does not keep what its caller acquired",
        "locks/lock.py",
        "        self._keep(lease)\n        return lease",
        "        return lease",
        "tests/top/test_what_other_locks_have.py",
    ),
    _p(
        "an earlier end of a lease waits for the next renewal",
        "lease.py",
        "        if self.stop_at > at_most_until:\n            self._prove(at_most_until)\n",
        "",
        "tests/top/test_lease.py",
    ),
    _p(
        "two texts make one name",
        "stores/names.py",
        "|@(?=-)|",
        "|",
        "tests/stores/test_safe_names.py",
    ),
    _p(
        "a lock of tooz is acquired for as long as it was not released",
        "tooz_driver.py",
        "        return lease is not None and lease.valid",
        "        return lease is not None",
        "tests/tooz_driver/test_locks.py",
    ),
    _p(
        "a member of tooz takes itself for the leader that it was before a crash",
        "tooz_driver.py",
        "leader if leader and (ours or leader.holder != self.holder) else None",
        "leader",
        "tests/tooz_driver/test_leaders.py",
    ),
    _p(
        "a lock of tooz is taken away under its holder",
        "tooz_driver.py",
        "            link.store.put(key, RESIGN, notice, None, clock.now() + _WITHIN)",
        "            link.store.give(key, holding.claim, None, clock.now() + _WITHIN)",
        "tests/tooz_driver/test_locks.py",
    ),
    _p(
        "a give overtakes the take that was cancelled in its thread",
        "stores/threaded.py",
        "if taker == claim]",
        "if taker != claim]",
        *_THREADED,
    ),
    _p(
        "a give is sent while the take of its claim is still in a thread",
        "stores/threaded.py",
        "            if not all(answer.done() for answer in takes):",
        "            if not takes:",
        *_THREADED,
    ),
    _p(
        "a request that is late in its thread was certainly not carried out",
        "stores/threaded.py",
        'raise OutcomeUnknown("the store did not answer',
        'raise StoreUnavailable("the store did not answer',
        *_THREADED,
    ),
    _p(
        "more requests are in threads than there are places",
        "stores/threaded.py",
        "self._requests = Semaphore(most)",
        "self._requests = Semaphore(most + 1)",
        *_THREADED,
    ),
    _p(
        "the time of a request in a thread begins before its turn",
        "stores/threaded.py",
        '        self.limits = limits("this store"',
        '        limits("this store"',
        *_THREADED,
    ),
)
