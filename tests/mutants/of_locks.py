"""Mutations of what locks add to leases: entering again, and several names at once."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_REENTRANT = ("tests/top/test_reentrant.py",)
_ASYNC = ("tests/top/test_locks_async.py", "tests/top/test_elections_async.py")
_MULTI = ("tests/top/test_multi.py",)
_SHARING = ("tests/top/test_sharing.py",)

_FORKS = ("tests/top/test_forks.py",)
_CALLERS = ("tests/stores/redis/test_compat_callers.py",)
_ONE_BODY = ("tests/top/test_one_body.py",)
_WAITS = ("tests/protocol/test_waits.py",)

_p = in_area("protocol")

MUTATIONS: tuple[Mutation, ...] = (
    _p(
        "a generator ends the permit of the thread that resumes it",
        "locks/lock.py",
        "        if within is not None and (ours",
        "        if within is None and (ours",
        *_ONE_BODY,
    ),
    _p(
        "a release is of the task that runs it, not of the one that calls it",
        "locks/leases.py",
        "            if own:\n",
        "            if own and scope.encloses_this:\n",
        *_ONE_BODY,
    ),
    _p(
        "an inner exit of a reentrant lock gives the lease back",
        "locks/leases.py",
        "        if not claim.drop_reentry():\n            forget_bodies",
        "        if claim.drop_reentry():\n            forget_bodies",
        *_REENTRANT,
    ),
    _p(
        "an inner body that is interrupted ends the renewals of the outer one",
        "locks/leases.py",
        "        if give_up(link.port, claim, undo_slot=undo_slot):\n",
        "        if give_up(link.port, claim, undo_slot=undo_slot) or claim:\n",
        *_REENTRANT,
    ),
    _p(
        "a task that releases its own lease is cancelled in the body",
        "locks/leases.py",
        "            scope.let_run()\n",
        "            pass\n",
        *_ASYNC,
    ),
    _p(
        "a body whose lease another task released ends in a bare cancellation",
        "locks/leases.py",
        "            if own_cancel and isinstance(error, CancelledError):\n                raise",
        "            if not own_cancel and isinstance(error, CancelledError):\n                raise",
        *_ASYNC,
    ),
    _p(
        "a lost holding is taken anew inside its own body",
        "locks/lock.py",
        "        if not proved:\n            raise claim_lost(claim",
        "        if not proved:\n            return None\n            raise claim_lost(claim",
        *_REENTRANT,
    ),
    _p(
        "a task enters again what its thread holds",
        "locks/callers.py",
        "    return threading.current_thread() if task is None else task\n",
        "    return threading.current_thread()\n",
        *_REENTRANT,
    ),
    _p(
        "some names are kept though another was refused",
        "protocol/acquire.py",
        "            await several.release_from(0)\n            raise\n    except BaseException:\n        several.end()\n        raise\n",
        "            raise\n    finally:\n        pass\n",
        *_MULTI,
    ),
    _p(
        "names behind the one that is waited for stay held",
        "protocol/acquire.py",
        "                await self.release_from(at + 1)\n",
        "                await self.release_from(len(self.claims))\n",
        "tests/top/test_multi_stores.py::test_while_it_waits_for_a_name_those_behind_it_are_left_to_others[sqlite]",
    ),
    _p(
        "several names are taken in the order in which they are listed",
        "locks/several.py",
        " for it in sorted(names)\n        ]",
        " for it in names\n        ]",
        *_MULTI,
    ),
    _p(
        "names that were lost during the wait count as held",
        "protocol/acquire.py",
        "        complete = all(it.valid(now) and now < it.stop_at for it in machines)\n",
        "        complete = any(it.valid(now) and now < it.stop_at for it in machines)\n",
        *_MULTI,
    ),
    _p(
        "of several names one may be past the time to stop when they are believed",
        "protocol/acquire.py",
        "        complete = all(it.valid(now) and now < it.stop_at for it in machines)\n",
        "        complete = all(it.valid(now) for it in machines)\n",
        "tests/sim/test_simulator.py::test_no_history_breaks_a_rule[parted-0]",
    ),
    _p(
        "of several releases none is owed",
        "protocol/release.py",
        "            confirmed += _conclude(port, claim, answer, now)\n",
        "            confirmed += isinstance(answer, Released) and _conclude(port, claim, answer, now)\n",
        *_MULTI,
    ),
    _p(
        "of several releases that are interrupted one is still believed",
        "protocol/release.py",
        "            if claim.machine.state is LeaseState.HELD:\n                # A signal",
        "            if claim.machine.state is LeaseState.LOST:\n                # A signal",
        "tests/protocol/test_debts.py",
    ),
    _p(
        "a read-write lock keeps no order of arrival",
        "locks/several.py",
        '{**settings, "fair": True}',
        '{**settings, "fair": False}',
        *_SHARING,
    ),
    _p(
        "a reader is told that it may write",
        "locks/callers.py",
        "claim.wanted.key != wanted.key or",
        "claim.wanted.unqueued != wanted.unqueued or",
        *_SHARING,
    ),
    _p(
        "a reader enters again, and writes",
        "locks/lock.py",
        "self._may_be_reentrant and self._wanted.permits is None",
        "self._may_be_reentrant",
        *_SHARING,
    ),
    _p(
        "locked() is said while a permit is left",
        "locks/lock.py",
        "        return 0 < permits <= len(holdings)\n",
        "        return bool(holdings)\n",
        *_SHARING,
    ),
    _p(
        "check lets NaN pass",
        "locks/leases.py",
        "if type(need) is float and 0 <= need <= DAY else",
        "if type(need) is float else",
        "tests/top/test_locks_sync.py::test_check_wants_a_number_of_seconds_that_can_be_compared",
    ),
    _p(
        "a thread that leaves hides another one",
        "locks/lock.py",
        "me, entries = self._caller_ref(), self._entries.copy()\n        inside",
        "me, entries = self._caller_ref(), self._entries\n        inside",
        "tests/top/test_sharing.py::test_a_thread_that_leaves_at_the_same_time_hides_no_other",
    ),
    _p(
        "a caller that ended inside keeps its reentrant lock",
        "locks/lock.py",
        "            self._keep(lease, entered=True)\n        else:\n            super()._note_entered(lease)",
        "            super()._note_entered(lease)\n        else:\n            super()._note_entered(lease)",
        "tests/top/test_reentrant.py::test_the_holding_of_a_thread_that_ended_inside_ends_too",
    ),
    _p(
        "a forked child enters what its parent holds",
        "locks/callers.py",
        "    _bodies.clear()\n    _own.clear()\n",
        "    _bodies.clear()\n",
        *_FORKS,
    ),
    _p(
        "a forked child inherits a campaign and a membership",
        "locks/callers.py",
        "        process, me = os.getpid(), object()\n",
        "        process, me = 0, object()\n",
        *_FORKS,
    ),
    _p(
        "a forked child is in the body of its parent",
        "locks/lock.py",
        "if entry.entered and entry.caller == me and entry.lease.valid:\n",
        "if entry.entered and entry.caller == me:\n",
        *_FORKS,
    ),
    _p(
        "a task releases what the task after it acquired",
        "locks/lock.py",
        "[entry.lease for entry in entries if entry.caller == me] or self._handed_over(entries)",
        "self._handed_over(entries[-1:])",
        "tests/top/test_shared_by_tasks.py",
    ),
    _p(
        "a task without a lease releases that of a task that goes on",
        "locks/lock.py",
        "is here or has_ended(caller)",
        "is here or True",
        "tests/top/test_shared_by_tasks.py",
    ),
    _p(
        "what a task lost is forgotten when the task after it acquires",
        "locks/lock.py",
        "(caller is None or caller is self._caller())",
        "True",
        "tests/top/test_shared_by_tasks.py",
    ),
    _p(
        "a task leaves the body of the task after it",
        "locks/lock.py",
        "        own = [entry for entry in inside if entry.caller == me] or inside\n",
        "        own = inside[-1:]\n",
        "tests/top/test_shared_by_tasks.py",
    ),
    _p(
        "a drop-in's caller gets the lock of the caller after it",
        "locks/callers.py",
        "        for caller, it in kept:\n",
        "        for caller, it in []:\n",
        *_CALLERS,
    ),
    _p(
        "who was handed a lock gets the newest one",
        "locks/callers.py",
        "left = (it for caller, it in kept if",
        "left = (it for caller, it in reversed(kept) if",
        *_CALLERS,
    ),
    _p(
        "a caller without a lock releases that of a caller in its body",
        "locks/callers.py",
        "if me not in self._tried or has_ended(caller())",
        "if True",
        *_CALLERS,
    ),
    _p(
        "an extension that leaves no time is one",
        "compat.py",
        "least=0.0 if more else 0.001)",
        "least=-1e9)",
        "tests/stores/redis/test_compat_errors.py",
    ),
    _p(
        "a drop-in waits through an outage for ever",
        "protocol/acquire.py",
        "if error.permanent or now - self.outage_began > self.claim.wanted.outage_most:\n",
        "if error.permanent:\n",
        "tests/stores/redis/test_compat_errors.py",
    ),
    _p(
        "a server that says when it grants again counts as an outage",
        "protocol/acquire.py",
        "            self.outage_began += error.retry_after or 0.0\n",
        "            pass\n",
        *_WAITS,
    ),
    _p(
        "a waiter sleeps beside a key that a foreign client gave back",
        "protocol/acquire.py",
        "if not place and any(holder.foreign for holder in refused.holders):\n",
        "if not place and not refused.holders:\n",
        *_WAITS,
    ),
    _p(
        "all waiters in line look at a foreign holder",
        "protocol/acquire.py",
        "if not place and any(holder.foreign",
        "if any(holder.foreign",
        *_WAITS,
    ),
    _p(
        "a used slot is waited for without end",
        "protocol/acquire.py",
        "        return self.until == inf or now + (refused.retry_after or 0.0) > self.until\n",
        "        return now + (refused.retry_after or 0.0) > self.until\n",
        *_WAITS,
    ),
    _p(
        "a used slot is waited for to the end of the timeout",
        "protocol/acquire.py",
        "        return self.until == inf or now + (refused.retry_after or 0.0) > self.until\n",
        "        return self.until == inf\n",
        *_WAITS,
    ),
    _p(
        "what may end sooner is not waited for",
        "protocol/acquire.py",
        'if refused.reason != "used" or self',
        "if self",
        *_WAITS,
    ),
)
