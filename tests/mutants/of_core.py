"""Mutations of the lease machine, and of the protocols that feed it."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_LEASE = ("tests/top/test_lease.py", "tests/top/test_lease_rules.py")
_LOCKS = ("tests/top/test_locks_sync.py",)
_KEEPER = ("tests/protocol/test_keeper.py", "tests/protocol/test_keeper_plan.py")

_l = in_area("lease")
_p = in_area("protocol")

MUTATIONS: tuple[Mutation, ...] = (
    _l(
        "the deadline is not looked at",
        "lease.py",
        "            if now < self.deadline:\n                return True\n",
        "            if self.deadline:\n                return True\n",
        *_LEASE,
    ),
    _l(
        "a grant that came too late is believed",
        "lease.py",
        "        if now >= stop_at:\n            self._move(_LATE)",
        "        if now >= stop_at + policy.ttl:\n            self._move(_LATE)",
        *_LEASE,
    ),
    _l(
        "a grant for less than was asked counts as all of it",
        "lease.py",
        " - (short if short > 0 else 0.0)",
        "",
        *_LEASE,
    ),
    _l(
        "a late renewal revives",
        "lease.py",
        "        elif asked and (now < self.deadline or self.valid(now)):",
        "        elif asked:",
        *_LEASE,
    ),
    _l(
        "a refusal after a doubt counts as clean",
        "lease.py",
        "        _I.REFUSE: _S.DOUBT,",
        "        _I.REFUSE: _S.NEW,",
        *_LEASE,
    ),
    _l(
        "two renewals are on their way at a time",
        "lease.py",
        "        if self.renewing:\n            raise IllegalInput(",
        "        if False:\n            raise IllegalInput(",
        *_LEASE,
    ),
    _l(
        "a renewal forgets at_most_for",
        "lease.py",
        "            if proof[2] < self.bound:",
        "            if proof[2]:",
        *_LEASE,
    ),
    _l(
        "the answer to a failed renewal proves all the same",
        "lease.py",
        "        asked, self.renewing = self.renewing, False",
        "        asked, self.renewing = True, False",
        *_LEASE,
    ),
    _l(
        "a release that found nothing counts as one",
        "lease.py",
        "        self._end(Input.MISSED, reason)",
        "        self.given()",
        *_LEASE,
        "tests/top/test_release_of_what_is_gone.py",
    ),
    _l(
        "no room for the drift of clocks",
        "policy.py",
        "    span = ttl * (1 - 2 * rho) - margin",
        "    span = ttl - margin",
        "tests/top/test_policy.py",
    ),
    _l(
        "the work is stopped at the deadline, without a grace",
        "policy.py",
        "    left = span - grace",
        "    left = span",
        "tests/top/test_policy.py",
    ),
    _p(
        "the answer to another's claim is believed",
        "protocol/acquire.py",
        "    if grant.claim != held.claim:",
        "    if grant.claim == '':",
        "tests/sim/test_simulator.py::test_no_history_breaks_a_rule[network-0]",
    ),
    _p(
        "a take in doubt is not given back",
        "protocol/acquire.py",
        "    if held.machine.abandoned():\n        port.hand_over(",
        "    if not held.machine.abandoned():\n        port.hand_over(",
        *_LOCKS,
        "tests/sim/test_simulator.py::test_no_history_breaks_a_rule[signals-0]",
    ),
    _p(
        "who leaves the line does not say so",
        "protocol/acquire.py",
        "    elif held.in_line:",
        "    elif held.began < 0:",
        "tests/stores/redis/test_lines.py::test_who_gives_up_leaves_the_line",
    ),
    _p(
        "the deadline counts from the answer",
        "protocol/acquire.py",
        "    held.machine.sent(sent)\n    try:\n        outcome = await port.take(",
        "    try:\n        held.machine.sent(sent + 0.2)\n        outcome = await port.take(",
        "tests/sim/test_simulator.py::test_no_history_breaks_a_rule[pauses-0]",
    ),
    _p(
        "an acquire that is interrupted leaves its take behind",
        "protocol/acquire.py",
        "    if held.machine.state in _ON_ITS_WAY:\n        held.unsure += 1",
        "    if held.machine.state in _ON_ITS_WAY:\n        held.machine.refused()",
        "tests/sim/test_simulator.py::test_no_history_breaks_a_rule[signals-0]",
    ),
    _p(
        "a release in doubt owes nothing",
        "protocol/release.py",
        "        if not answered or held.unsure:\n            port.hand_over(held.debt(now, undo_slot=undo_slot))\n    return confirmed\n\n\ndef release_blocking",
        "        if not answered:\n            port.hand_over(held.debt(now, undo_slot=undo_slot))\n    return confirmed\n\n\ndef release_blocking",
        "tests/sim/test_simulator.py::test_no_history_breaks_a_rule[signals-0]",
    ),
    _p(
        "a release without an answer owes nothing",
        "protocol/release.py",
        "        if not answered or held.unsure:\n            port.hand_over(held.debt(now, undo_slot=undo_slot))\n    return confirmed\n\n\ndef _learn",
        "        if held.unsure:\n            port.hand_over(held.debt(now, undo_slot=undo_slot))\n    return confirmed\n\n\ndef _learn",
        *_LOCKS,
        "tests/protocol/test_debts.py",
        "tests/protocol/test_blocking_protocols.py",
    ),
    _p(
        "a claim in doubt is forgotten after a ttl",
        "protocol/release.py",
        "    if now >= debt.until and not debt.doubt:",
        "    if now >= debt.until:",
        "tests/protocol/test_debts.py",
        *_LOCKS,
    ),
    _p(
        "gone counts as released",
        "protocol/release.py",
        "    if isinstance(outcome, Released):\n        held.machine.given()",
        "    if outcome is not None:\n        held.machine.given()",
        "tests/top/test_release_of_what_is_gone.py",
    ),
    _p(
        "a lease that is gone is held until its deadline",
        "protocol/renew.py",
        "            machine.gone(outcome.reason)",
        "            _fail(held)",
        *_KEEPER,
        *_LOCKS,
    ),
    _p(
        "an operator's wish is not heard",
        "protocol/renew.py",
        "                machine.broken(_NOTICED[held.notice.kind])",
        "                machine.bounded",
        "tests/sim/test_simulator.py::test_no_history_breaks_a_rule[operators-0]",
    ),
    _p(
        "a renewal is waited for as long as the ttl",
        "protocol/renew.py",
        "            patience = min(patience, policy.request_timeout)",
        "            patience = min(patience, policy.ttl)",
        "tests/protocol/test_keeper.py::test_a_renewal_waits_for_its_answer_no_longer_than_a_request_may_take",
    ),
    _p(
        "a fork's child goes on holding",
        "protocol/keeper.py",
        "            if (held := ref()) is not None:\n                held.machine.forked()",
        "            ref()",
        *_LOCKS,
        *_KEEPER,
    ),
    _p(
        "the watchers of a lease that has ended are told nothing",
        "protocol/keeper.py",
        "        if not held.machine.valid(clock.now()):\n            self._tell_ended(held)\n        elif",
        "        if",
        "tests/protocol/test_keeper.py::test_who_watches_a_lease_that_was_lost_already_is_told_at_once",
    ),
    _p(
        "current() counts from the answer",
        "inside.py",
        '            return _Answer(asked + float(facts["remaining"]), str(facts["lost"]))',
        '            return _Answer(clock.now() + float(facts["remaining"]), str(facts["lost"]))',
        "tests/top/test_current.py",
    ),
)
