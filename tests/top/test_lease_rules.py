"""The two rules at the top of lease.py, under any inputs, answers and clocks."""

from __future__ import annotations

from math import inf
from typing import TypeAlias

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from incumbent.lease import TRANSITIONS, IllegalInput, Input, LeaseMachine, LeaseState
from incumbent.model import Granted
from incumbent.policy import Policy
from tests.top.test_lease import FEED, POLICY, T0, everything

Event: TypeAlias = tuple[Input | None, float, float]

short = st.floats(0, 4)
steps = short | st.floats(-5, 5) | st.floats(-2000, 2000)
ttls = st.floats(0.05, 100)
anything = st.tuples(st.sampled_from([*Input, None]), steps, ttls).map(lambda event: [event])


def phrase(*inputs: Input) -> st.SearchStrategy[list[Event]]:
    """Inputs as they come one after another, at instants at which a lease usually still lives."""
    return st.tuples(*(st.tuples(st.just(it), short, st.just(1e6)) for it in inputs)).map(list)


# Anything at all seldom gets far: most random inputs end a holding, so usual ones are mixed in.
usual = (
    phrase(Input.RENEW, Input.RENEWED, Input.RENEW, Input.RENEWED)
    | phrase(Input.RENEW, Input.RENEWED)
    | phrase(Input.RENEW, Input.UNRENEWED)
    | phrase(Input.RENEW, Input.RENEW)
    | phrase(Input.RENEW, Input.UNRENEWED, Input.RENEWED)
    | phrase(Input.LEAVE, Input.RENEWED)
)
beginnings = st.just(list[Event]()) | phrase(Input.SEND, Input.GRANT)
histories = st.tuples(beginnings, st.lists(usual | anything, max_size=12)).map(
    lambda parts: [*parts[0], *(event for part in parts[1] for event in part)]
)
policies = st.builds(
    lambda ttl, grace, rho, delay: Policy(ttl, grace=ttl * grace, rho=rho, lock_delay=delay),
    st.floats(2, 3600),
    st.floats(0, 0.4),
    st.floats(0, 0.05),
    st.just(0.0) | st.floats(0, 100),
)


class Watched:
    """A machine beside what an observer knows: instants of sending, and whether belief ended."""

    def __init__(self, policy: Policy, at_most_for: float) -> None:
        self.policy = policy
        self.at_most_for = at_most_for
        self.machine = LeaseMachine(policy, at_most_for)
        self.now = T0
        self.sent = -inf
        self.limit = -inf
        self.held_since: float | None = None
        self.over = False

    def feed(self, what: Input | None, step: float, ttl: float) -> None:
        self.now += step
        before, was = everything(self.machine), self.machine.state
        looks = what in {None, Input.RENEWED} and was is LeaseState.HELD
        self.over = self.over or (looks and self.now >= self.machine.deadline)
        try:
            self._call(what, ttl)
        except IllegalInput:
            assert everything(self.machine) == before
            assert what not in TRANSITIONS[was] or before["renewing"] or _decided_by_time(what)
        else:
            self._learn(what, was, before, ttl)

    def _call(self, what: Input | None, ttl: float) -> None:
        machine, now = self.machine, self.now
        match what:
            case None:
                machine.valid(now)
            case Input.SEND:
                machine.note_sent(now)
            case Input.GRANT | Input.LATE:
                machine.note_granted(Granted("claim", 1, ttl), now)
            case Input.RENEW:
                machine.note_renewal_sent(now)
            case Input.RENEWED:
                machine.note_renewed(now)
            case _:
                FEED[what](machine)

    def _learn(
        self, what: Input | None, was: LeaseState, before: dict[str, object], ttl: float
    ) -> None:
        held = self.machine.state is LeaseState.HELD
        if what is Input.RENEW:
            assert not before["renewing"]
        if what is not None and not _decided_by_time(what):
            assert self.machine.state is TRANSITIONS[was][what]
        if held and was is not LeaseState.HELD:
            assert not self.over, "a holding began again"
            self.held_since, self.limit = self.now, self._limit(ttl)
        elif held and what is Input.RENEWED and before["renewing"]:
            self.limit = self._limit(self.policy.kept_for)
        elif held:
            assert self.machine.deadline == before["deadline"]
        if what in {Input.SEND, Input.RENEW}:
            self.sent = self.now
        self.over = self.over or (was is LeaseState.HELD and not held)

    def _limit(self, ttl: float) -> float:
        """The latest instant that the last request can prove."""
        policy = self.policy
        counted = min(ttl - policy.lock_delay, policy.ttl)
        return self.sent + counted * (1 - 2 * policy.rho) - policy.margin

    def check(self) -> None:
        machine, now = self.machine, self.now
        if machine.state is LeaseState.HELD:
            assert self.held_since is not None
            assert machine.deadline <= self.limit + 1e-6
            assert machine.stop_at <= self.held_since + self.at_most_for
            assert machine.deadline == pytest.approx(machine.stop_at + self.policy.grace)
        proved = machine.state is LeaseState.HELD and now < machine.deadline
        assert machine.remaining(now) == (machine.deadline - now if proved else 0.0)
        self.over = self.over or (self.held_since is not None and not proved)
        assert machine.valid(now) is proved
        if self.over:
            assert not any(machine.valid(instant) for instant in (-inf, T0, now - 1))


def _decided_by_time(what: Input | None) -> bool:
    """Whether the machine chooses between two inputs by the clock."""
    return what in {Input.GRANT, Input.LATE, Input.RENEWED}


LATE_RENEWAL: list[Event] = [
    (Input.SEND, 0.0, 1e6),
    (Input.GRANT, 0.5, 1e6),
    (Input.RENEW, 8.0, 1e6),
    (Input.RENEWED, 8.0, 1e6),
]


@settings(max_examples=400)
@given(policies, st.just(inf) | st.floats(0, 100), histories)
@example(POLICY, inf, LATE_RENEWAL)
def test_whatever_happens_the_rules_hold(
    policy: Policy, at_most_for: float, history: list[Event]
) -> None:
    watched = Watched(policy, at_most_for)
    for event in history:
        watched.feed(*event)
        watched.check()


@given(policies, ttls, st.floats(0, 100))
def test_a_grant_is_believed_only_while_work_can_still_begin(
    policy: Policy, ttl: float, took: float
) -> None:
    machine = LeaseMachine(policy)
    machine.note_sent(T0)
    believed = machine.note_granted(Granted("claim", 1, ttl), T0 + took)
    assert believed == machine.valid(T0 + took)
    assert not believed or T0 + took < machine.stop_at


@given(policies, st.floats(0.1, 1000))
def test_a_holder_that_renews_in_time_never_loses_its_lease(policy: Policy, wait: float) -> None:
    assume(wait < policy.renew_deadline)
    machine = LeaseMachine(policy)
    machine.note_sent(T0)
    machine.note_granted(Granted("claim", 1, policy.kept_for), T0)
    for turn in range(1, 6):
        machine.note_renewal_sent(T0 + turn * wait)
        machine.note_renewed(T0 + turn * wait)
        assert machine.valid(T0 + turn * wait)
