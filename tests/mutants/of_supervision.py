"""Mutations of the supervisor and its guard."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_m = in_area("supervision")

MUTATIONS: tuple[Mutation, ...] = (
    _m(
        "a lease that was taken leaves CMD its grace",
        "supervise/plan.py",
        "    if proof.lost == _DISPROVED:",
        "    if False:",
        "tests/supervise/test_plan.py::test_no_grace_reaches_further_than_the_proof",
    ),
    _m(
        "KILL comes after the deadline",
        "supervise/plan.py",
        "    return max(proof.stop_at, proof.deadline - KILL_LEAD)",
        "    return proof.deadline + KILL_LEAD",
        "tests/supervise/test_plan.py::test_term_comes_when_the_work_has_to_stop_and_kill_before_the_deadline",
    ),
    _m(
        "KILL waits for the grace beyond the deadline",
        "supervise/plan.py",
        "    limit = min(course.kill_at, kill_at(proof))\n    if now >= limit:\n        return _kill",
        "    limit = course.kill_at\n    if now >= limit:\n        return _kill",
        "tests/supervise/test_plan.py::test_term_comes_when_the_work_has_to_stop_and_kill_before_the_deadline",
    ),
    _m(
        "a dead guard changes nothing",
        "supervise/plan.py",
        "    if not guarded:\n        return _kill(course, now, first=True)\n",
        "",
        "tests/supervise/test_plan.py::test_without_a_guard_everything_is_killed_at_once",
    ),
    _m(
        "descendants of CMD are left alone",
        "supervise/plan.py",
        "    if not tree:\n        return CourseStep(course, Action.LEAVE)",
        "    if not child:\n        return CourseStep(course, Action.LEAVE)",
        "tests/supervise/test_plan.py::test_the_descendants_are_asked_to_end_while_the_lease_is_renewed",
    ),
    _m(
        "what outlives KILL counts as gone",
        "supervise/plan.py",
        "        return CourseStep(course, Action.GIVE_UP, limit)",
        "        return CourseStep(course, Action.LEAVE, limit)",
        "tests/supervise/test_plan.py::test_what_outlives_kill_is_given_up_and_never_left",
    ),
    _m(
        "KILL is sent once",
        "supervise/plan.py",
        "    if now >= course.again_at:\n        return _kill(course, now, first=False)\n",
        "",
        "tests/supervise/test_plan.py::test_kill_is_repeated_because_a_fork_may_have_escaped_it",
    ),
    _m(
        "a message may move the guard's deadline beyond one ttl",
        "supervise/plan.py",
        "    bounded = min(kill_at, now + watch.ttl)",
        "    bounded = kill_at",
        "tests/supervise/test_deadline.py::test_no_proof_reaches_further_than_a_ttl",
    ),
    _m(
        "an older proof takes the newer back",
        "supervise/plan.py",
        "kill_at=max(bounded, watch.kill_at) if watch.armed else bounded)",
        "kill_at=bounded)",
        "tests/supervise/test_deadline.py::test_proofs_that_overtake_each_other_take_nothing_back",
    ),
    _m(
        "proofs of another term count",
        "supervise/plan.py",
        "    if term == 0 or term != watch.term or isnan(kill_at):",
        "    if isnan(kill_at):",
        "tests/supervise/test_deadline.py::test_what_is_no_number_and_what_belongs_to_another_term_says_nothing",
    ),
    _m(
        "an armed guard without a supervisor only leaves",
        "supervise/plan.py",
        "        return GuardVerdict.KILL_AND_LEAVE if watch.armed else GuardVerdict.LEAVE",
        "        return GuardVerdict.LEAVE",
        "tests/supervise/test_deadline.py::test_without_a_supervisor_the_tree_dies_at_once_and_the_guard_leaves",
    ),
    _m(
        "a command begins under a deadline that has passed",
        "supervise/plan.py",
        "    return term == watch.term and watch.armed and now < watch.kill_at",
        "    return term == watch.term and watch.armed",
        "tests/supervise/test_deadline.py::test_a_command_may_begin_only_under_a_deadline_that_is_ahead",
    ),
    _m(
        "CMD may open the local store by default",
        "supervise/launch.py",
        '    kept["INCUMBENT_STORE"] = WITHHELD if share_store is None else share_store',
        '    if share_store is not None:\n        kept["INCUMBENT_STORE"] = share_store',
        "tests/supervise/test_answers.py::test_the_store_and_every_way_to_it_are_withheld",
    ),
    _m(
        "one look that finds nobody is believed",
        "supervise/guard.py",
        "            if empty == _EMPTY:",
        "            if empty == 1:",
        "tests/supervise/test_guard_pure.py::test_one_that_forked_while_it_was_looked_for_is_found",
    ),
    _m(
        "a lease is given back while something lives",
        "supervise/run.py",
        "        if left_over:\n            self.lease.belief.abandon()\n",
        "",
        "tests/supervise/test_survivors.py::test_what_outlives_kill_keeps_its_lease_until_that_runs_out",
    ),
    _m(
        "the page of a service believes a worker beyond its proof",
        "serve/workers.py",
        "    proven_for = max(0.0, view.proven_for - age)",
        "    proven_for = view.proven_for",
        "tests/serve/test_workers.py::test_what_was_proved_is_believed_no_longer_than_that",
    ),
    _m(
        "other hosts get every page without a token",
        "serve/http.py",
        "        if self._probes_only:",
        "        if False:",
        "tests/serve/test_health.py::test_without_a_token_other_hosts_get_the_probes_alone",
    ),
    _m(
        "peers that send half a head keep probes out",
        "serve/http.py",
        "            oldest.transport.abort()\n",
        "            writer.transport.abort()\n",
        "tests/serve/test_listener.py::test_the_oldest_unfinished_head_goes_first",
    ),
    _m(
        "a probe waits behind answers that nobody takes",
        "serve/http.py",
        "page.status == HTTPStatus.OK and not _is_probe(request)",
        "page.status == HTTPStatus.OK",
        "tests/serve/test_listener.py",
    ),
    _m(
        "a form of another site acts for who is logged in",
        "serve/http.py",
        'return bool(origin) and origin == request.headers.get("host")',
        "return True",
        "tests/page/test_site.py::test_nothing_is_done_for_a_page_of_others_or_without_the_token",
    ),
    _m(
        "the page runs what stands in a record",
        "page/markup.py",
        'return text if _PLAIN.fullmatch(text) else escape(_UNSEEN.sub("\\ufffd", text))',
        "return text",
        "tests/page/test_page.py::test_hostile_names_reasons_and_outputs_are_text",
    ),
    _m(
        "the page calls a lease held while the store is silent",
        "page/view.py",
        "    if snapshot.problem:\n        why =",
        "    if False:\n        why =",
        "tests/page/test_page.py::test_while_the_store_is_silent_nothing_is_called_held_or_free",
    ),
    _m(
        "a store that could not be examined is said to give leases",
        "stores/findings.py",
        "    if unsure:\n",
        "    if False:\n",
        "tests/cli/test_true_answers.py"
        "::test_a_store_that_cannot_be_examined_is_neither_free_nor_waiting",
    ),
)
