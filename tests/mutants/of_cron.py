"""Mutations of cron."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_m = in_area("cron")

MUTATIONS: tuple[Mutation, ...] = (
    _m(
        "a slot that the ledger has forgotten begins again",
        "cron/ledger.py",
        "        return not is_settled(fields, run.slot, run.due) and await self.begin_named(run)",
        "        return await self.begin_named(run)",
        "tests/cron/test_book.py::test_a_slot_that_was_forgotten_is_not_begun_again",
    ),
    _m(
        "two that prune at a time undo each other's word",
        "cron/ledger.py",
        "guard: Guard = ByVersion(fields[name].version) if name in fields else ABSENT",
        "guard: Guard = None",
        "tests/cron/test_book.py::test_of_two_that_prune_at_a_time_none_undoes_the_others_word",
    ),
    _m(
        "success that the ledger could not be told is reported all the same",
        "cli/once_record.py",
        "        return ending if ending.cause else replace(ending, cause=UNRECORDED, outlived=True)",
        "        return ending",
        "tests/cli/test_exit_codes.py",
    ),
    _m(
        "an operator's clock alone says how old a trigger is",
        "cron/instance.py",
        "max(trigger.when, looked)",
        "trigger.when",
        "tests/cron/test_instance.py",
    ),
    _m(
        "a run that lost its lease writes its end",
        "cron/ledger.py",
        "        outcome = await self._put(moved, ByClaim(claim, run.token))",
        "        outcome = await self._put(moved, None)",
        "tests/cron/test_book.py::test_who_lost_the_lease_cannot_write_ok",
    ),
    _m(
        "lost is written over whatever stands there",
        "cron/ledger.py",
        "        return isinstance(await self._put(lost, ByVersion(version)), Stored)",
        "        return isinstance(await self._put(lost, None), Stored)",
        "tests/cron/test_book.py::test_who_lost_the_lease_cannot_write_ok",
    ),
    _m(
        "a record is begun over one that is there",
        "cron/ledger.py",
        "            outcome = await self._put(run, ABSENT)\n        except OutcomeUnknown",
        "            outcome = await self._put(run, None)\n        except OutcomeUnknown",
        "tests/cron/test_book.py::test_what_was_noted_while_a_run_was_about_to_begin_counts",
    ),
    _m(
        "a run that waits for its next attempt can end well",
        "cron/ledger.py",
        "    _S.WAITING: frozenset({_S.RUNNING, _S.FAILED, _S.TIMED_OUT, _S.LOST}),",
        "    _S.WAITING: frozenset({_S.RUNNING, _S.OK, _S.FAILED, _S.TIMED_OUT, _S.LOST}),",
        "tests/cron/test_ledger.py::test_only_a_run_that_began_can_end_well",
    ),
    _m(
        "a run is alive while anybody holds the lease",
        "cron/ledger.py",
        "    return any(holding.token == run.token for holding in record.holdings)",
        "    return bool(record.holdings)",
        "tests/cron/test_ledger.py::test_a_run_is_lost_once_its_token_no_longer_holds_the_lease",
    ),
    _m(
        "a run that goes on is pruned",
        "cron/ledger.py",
        "        if run.state.ended and run.due != _UNREADABLE",
        "        if run.due != _UNREADABLE",
        "tests/cron/test_ledger.py::test_a_run_that_goes_on_is_never_removed",
    ),
    _m(
        "joined spans leave a gap out",
        "cron/ledger.py",
        "        found[at : at + 2] = [(found[at][0], found[at + 1][1])]",
        "        del found[at]",
        "tests/cron/test_book.py::test_joined_spans_cover_every_one_and_join_the_nearest",
    ),
    _m(
        "a forgotten slot is judged as due",
        "cron/slots.py",
        "    elif is_settled(record.fields, slot.name, slot.due):\n        return",
        "    elif False:\n        return",
        "tests/cron/test_ledger.py::test_what_the_ledger_has_forgotten_does_not_run_again",
    ),
    _m(
        "a slot is missed before the slowest clock had its turn",
        "cron/slots.py",
        "    left = slot.due + GRACE - now",
        "    left = slot.due - now",
        "tests/cron/test_ledger.py::test_nothing_is_missed_before_the_slowest_clock_has_had_its_turn",
    ),
    _m(
        "a retry that somebody has already is made again",
        "cron/slots.py",
        "    if is_retried(spec, run, now) and not known and",
        "    if is_retried(spec, run, now) and",
        "tests/cron/test_ledger.py::test_a_retry_that_somebody_has_is_left_to_it",
    ),
    _m(
        "a claim takes the lease without its slot",
        "cron/runs.py",
        "asking(slot=StoreSlot(name, SLOT_KEEP), meta=name.encode())",
        "asking(meta=name.encode())",
        "tests/cron/test_launcher.py::test_a_claim_takes_the_slot_along_with_the_lease",
    ),
    _m(
        "a clock set back a little begins all jobs anew",
        "cron/agenda.py",
        "        if now >= self._now - CORRECTION:",
        "        if now >= self._now:",
        "tests/cron/test_agenda.py::test_a_clock_set_back_a_little_repeats_nothing_and_does_not_spin",
    ),
    _m(
        "a clock that is ahead cancels slots to come",
        "cron/execute.py",
        "        if self._peers.any_behind(presences(record), missed[-1].due, self._port.now()):",
        "        if False:",
        "tests/cron/test_execute.py::test_a_clock_that_is_an_hour_ahead_cancels_no_slot_that_is_yet_to_come",
    ),
    _m(
        "a trigger of now is taken for a stale one",
        "cron/instance.py",
        "                    if clock.now() - since > STALE:\n",
        "                    if True:\n",
        "tests/cron/test_instance.py::test_a_clock_an_hour_ahead_takes_no_trigger_away_from_others",
    ),
    _m(
        "an instance that lives is forgotten by a clock ahead",
        "cron/fleet.py",
        " or before.get(peer.instance) != peer.seen",
        "",
        "tests/cron/test_instance.py::test_a_clock_two_days_ahead_forgets_nobody_who_lives",
    ),
    _m(
        "a coroutine goes on when its proof is over",
        "cron/jobs.py",
        "        cause = self.lease.belief.proof.verdict(clock.now())",
        '        cause = ""',
        "tests/cron/test_jobs.py::test_a_coroutine_without_a_loop_gets_one_and_is_cancelled_in_time",
    ),
)
