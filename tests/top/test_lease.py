"""The lease machine: what one claim's holder may believe, in every state and at every instant."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf

import pytest

from incumbent.lease import TRANSITIONS, IllegalInput, Input, LeaseMachine, LeaseState
from incumbent.model import Granted
from incumbent.policy import make_policy

POLICY = make_policy(15)
T0 = 1000.0
LATE = T0 + POLICY.renew_deadline
GRANT = Granted("claim", token=7, ttl=15.0, epoch="first")

FEED: dict[Input, Callable[[LeaseMachine], object]] = {
    Input.SEND: lambda machine: machine.note_sent(T0),
    Input.GRANT: lambda machine: machine.note_granted(GRANT, T0 + 0.1),
    Input.LATE: lambda machine: machine.note_granted(GRANT, LATE),
    Input.REFUSE: LeaseMachine.note_refused,
    Input.UNSENT: LeaseMachine.note_unsent,
    Input.UNANSWERED: LeaseMachine.note_unanswered,
    Input.ABANDON: LeaseMachine.note_abandoned,
    Input.RENEW: lambda machine: machine.note_renewal_sent(T0 + 1),
    Input.RENEWED: lambda machine: machine.note_renewed(T0 + 1.1),
    Input.UNRENEWED: LeaseMachine.note_unrenewed,
    Input.GONE: lambda machine: machine.note_gone("taken"),
    Input.BREAK: LeaseMachine.note_broken,
    Input.EXPIRE: LeaseMachine.note_expired,
    Input.FORK: LeaseMachine.note_forked,
    Input.LEAVE: LeaseMachine.note_leaving,
    Input.GIVEN: LeaseMachine.note_given,
    Input.MISSED: lambda machine: machine.note_missed("taken"),
}

_HOLDING = (Input.SEND, Input.GRANT)
WAY_TO: dict[LeaseState, tuple[Input, ...]] = {
    LeaseState.NEW: (),
    LeaseState.ASKING: (Input.SEND,),
    LeaseState.DOUBT: (Input.SEND, Input.UNANSWERED),
    LeaseState.ASKING_AGAIN: (Input.SEND, Input.UNANSWERED, Input.SEND),
    LeaseState.HELD: _HOLDING,
    LeaseState.LEAVING: (*_HOLDING, Input.LEAVE),
    LeaseState.RELEASED: (*_HOLDING, Input.LEAVE, Input.GIVEN),
    LeaseState.LOST: (*_HOLDING, Input.GONE),
    LeaseState.DROPPED: (Input.ABANDON,),
    LeaseState.OWING: (Input.SEND, Input.ABANDON),
}
PAIRS = list(product(LeaseState, Input))
LEGAL = [(state, what) for state, what in PAIRS if what in TRANSITIONS[state]]
ILLEGAL = [(state, what) for state, what in PAIRS if what not in TRANSITIONS[state]]


def machine_in(state: LeaseState, at_most_for: float = inf) -> LeaseMachine:
    machine = LeaseMachine(POLICY, at_most_for)
    for what in WAY_TO[state]:
        FEED[what](machine)
    assert machine.state is state
    return machine


def everything(machine: LeaseMachine) -> dict[str, object]:
    return {slot: getattr(machine, slot) for slot in LeaseMachine.__slots__}


# -- the table -------------------------------------------------------------------------------


def test_the_table_has_every_state() -> None:
    assert set(TRANSITIONS) == set(LeaseState)


@pytest.mark.parametrize(("state", "what"), LEGAL)
def test_a_legal_input_leads_where_the_table_says(state: LeaseState, what: Input) -> None:
    machine = machine_in(state)
    FEED[what](machine)
    assert machine.state is TRANSITIONS[state][what]


@pytest.mark.parametrize(("state", "what"), ILLEGAL)
def test_an_illegal_input_raises_and_changes_nothing(state: LeaseState, what: Input) -> None:
    machine = machine_in(state)
    before = everything(machine)
    with pytest.raises(IllegalInput, match=state.name):
        FEED[what](machine)
    assert everything(machine) == before


def test_only_a_grant_of_a_take_leads_to_held() -> None:
    entries = {
        (state, what)
        for state, moves in TRANSITIONS.items()
        for what, target in moves.items()
        if target is LeaseState.HELD and state is not LeaseState.HELD
    }
    assert entries == {(LeaseState.ASKING, Input.GRANT), (LeaseState.ASKING_AGAIN, Input.GRANT)}


def test_no_way_leads_from_the_end_of_a_holding_back_to_it() -> None:
    reached, new = set[LeaseState](), {LeaseState.LEAVING, LeaseState.LOST, LeaseState.RELEASED}
    while new:
        reached |= new
        new = {target for state in new for target in TRANSITIONS[state].values()} - reached
    assert reached == {LeaseState.LEAVING, LeaseState.LOST, LeaseState.RELEASED}


def test_a_fork_leaves_no_state_believed() -> None:
    assert all(
        moves.get(Input.FORK) not in {LeaseState.HELD, None} for moves in TRANSITIONS.values()
    )


def test_every_state_can_end() -> None:
    ends = {LeaseState.RELEASED, LeaseState.LOST, LeaseState.DROPPED}
    assert all(state in ends or ends & set(TRANSITIONS[state].values()) for state in LeaseState)


# -- instants --------------------------------------------------------------------------------


def test_the_deadline_counts_from_before_the_request() -> None:
    machine = LeaseMachine(POLICY)
    machine.note_sent(T0)
    machine.note_granted(GRANT, T0 + 3)
    assert machine.deadline == pytest.approx(T0 + 15 * 0.98 - 0.25)
    assert machine.stop_at == pytest.approx(machine.deadline - POLICY.grace)


def test_a_repeat_counts_from_the_repeat() -> None:
    machine = LeaseMachine(POLICY)
    machine.note_sent(T0)
    machine.note_unanswered()
    machine.note_sent(T0 + 2)
    machine.note_granted(GRANT, T0 + 2.1)
    assert machine.deadline == pytest.approx(T0 + 2 + POLICY.span)


def test_nothing_is_believed_at_the_deadline_itself() -> None:
    machine = machine_in(LeaseState.HELD)
    assert machine.valid(machine.deadline - 0.001)
    assert not machine.valid(machine.deadline)
    assert (machine.state, machine.reason) == (LeaseState.LOST, "expired")


def test_a_clock_that_goes_back_revives_nothing() -> None:
    machine = machine_in(LeaseState.HELD)
    assert not machine.valid(machine.deadline)
    assert not machine.valid(T0)
    assert machine.remaining(T0) == 0.0


def test_remaining_is_the_time_to_the_deadline() -> None:
    machine = machine_in(LeaseState.HELD)
    assert machine.remaining(T0 + 4) == machine.deadline - (T0 + 4)


def test_a_grant_that_comes_too_late_is_not_believed() -> None:
    machine = machine_in(LeaseState.ASKING)
    assert not machine.note_granted(GRANT, T0 + POLICY.renew_deadline)
    assert (machine.state, machine.valid(T0)) == (LeaseState.DOUBT, False)


def test_a_shorter_grant_is_believed_for_a_shorter_time() -> None:
    machine = machine_in(LeaseState.ASKING)
    machine.note_granted(Granted("claim", 1, ttl=12.0), T0)
    assert machine.deadline <= T0 + 12 * 0.98 - 0.25


def test_a_longer_grant_is_believed_no_longer_than_was_asked() -> None:
    machine = machine_in(LeaseState.ASKING)
    machine.note_granted(Granted("claim", 1, ttl=600.0), T0)
    assert machine.deadline == pytest.approx(T0 + POLICY.span)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    machine = machine_in(LeaseState.HELD)
    machine.note_renewal_sent(T0 + 3)
    machine.note_renewed(T0 + 3.5)
    assert machine.deadline == pytest.approx(T0 + 3 + POLICY.span)


def test_a_renewal_without_proof_leaves_the_deadline_where_it_was() -> None:
    machine = machine_in(LeaseState.HELD)
    before = machine.deadline
    machine.note_renewal_sent(T0 + 3)
    assert machine.deadline == before
    machine.note_unrenewed()
    assert (machine.deadline, machine.renewing) == (before, False)


def test_an_answer_to_no_renewal_proves_nothing() -> None:
    machine = machine_in(LeaseState.HELD)
    before = machine.deadline
    machine.note_renewal_sent(T0 + 3)
    machine.note_unrenewed()
    machine.note_renewed(T0 + 3.5)
    assert machine.deadline == before


def test_a_late_renewal_does_not_revive() -> None:
    machine = machine_in(LeaseState.HELD)
    machine.note_renewal_sent(T0 + 3)
    machine.note_renewed(machine.deadline)
    assert (machine.state, machine.reason) == (LeaseState.LOST, "expired")


def test_a_renewal_that_was_overtaken_by_the_end_changes_nothing() -> None:
    machine = machine_in(LeaseState.HELD)
    machine.note_renewal_sent(T0 + 3)
    machine.note_leaving()
    machine.note_renewed(T0 + 3.1)
    assert (machine.state, machine.valid(T0 + 3.1)) == (LeaseState.LEAVING, False)


def test_a_second_renewal_waits_for_the_first() -> None:
    machine = machine_in(LeaseState.HELD)
    machine.note_renewal_sent(T0 + 3)
    before = everything(machine)
    with pytest.raises(IllegalInput, match="on its way"):
        machine.note_renewal_sent(T0 + 4)
    assert everything(machine) == before


def test_at_most_for_counts_from_the_grant() -> None:
    machine = LeaseMachine(POLICY, at_most_for=4)
    machine.note_sent(T0)
    machine.note_granted(GRANT, T0 + 1)
    assert (machine.stop_at, machine.ends_by_at_most_for) == (T0 + 5, True)
    assert machine.deadline == T0 + 5 + POLICY.grace


def test_at_most_for_is_what_ended_a_holding_that_it_bounds() -> None:
    machine = LeaseMachine(POLICY, at_most_for=4)
    machine.note_sent(T0)
    machine.note_granted(GRANT, T0)
    machine.valid(machine.deadline)
    assert machine.reason == "at_most_for"


def test_renewals_do_not_move_at_most_for() -> None:
    machine = LeaseMachine(POLICY, at_most_for=12)
    machine.note_sent(T0)
    machine.note_granted(GRANT, T0)
    assert not machine.ends_by_at_most_for
    machine.note_renewal_sent(T0 + 9)
    machine.note_renewed(T0 + 9.1)
    assert (machine.stop_at, machine.ends_by_at_most_for) == (T0 + 12, True)


def test_a_renewal_that_failed_is_not_mistaken_for_at_most_for() -> None:
    machine = LeaseMachine(POLICY, at_most_for=12)
    machine.note_sent(T0)
    machine.note_granted(GRANT, T0)
    machine.note_renewal_sent(T0 + 9)
    machine.note_unrenewed()
    assert not machine.ends_by_at_most_for
    machine.valid(machine.deadline)
    assert machine.reason == "expired"


def test_the_first_reason_stays() -> None:
    machine = machine_in(LeaseState.HELD)
    machine.note_broken("paused")
    machine.note_gone("taken")
    machine.note_expired()
    assert machine.reason == "paused"


def test_giving_up_says_whether_the_store_has_to_be_told() -> None:
    assert not machine_in(LeaseState.NEW).note_abandoned()
    assert all(
        machine_in(state).note_abandoned()
        for state in (LeaseState.ASKING, LeaseState.DOUBT, LeaseState.ASKING_AGAIN)
    )


@pytest.mark.parametrize("answer", [Input.REFUSE, Input.UNSENT, Input.LATE, Input.UNANSWERED])
def test_no_answer_but_a_grant_settles_an_earlier_doubt(answer: Input) -> None:
    """It is the answer to the second take; the first may arrive after it."""
    machine = machine_in(LeaseState.ASKING_AGAIN)
    FEED[answer](machine)
    assert machine.note_abandoned()


def test_the_token_and_the_incarnation_are_the_grants() -> None:
    machine = machine_in(LeaseState.HELD)
    assert (machine.token, machine.epoch) == (7, "first")


def test_another_bound_ends_belief_earlier_at_once_and_later_only_once_renewed() -> None:
    machine = LeaseMachine(POLICY, at_most_for=5)
    machine.note_sent(T0)
    assert machine.note_granted(GRANT, T0)
    assert (machine.stop_at, machine.ends_by_at_most_for) == (T0 + 5, True)
    machine.move_end(T0 + 60)
    assert (machine.stop_at, machine.ends_by_at_most_for) == (T0 + 5, False), (
        "nothing has proved more"
    )
    machine.note_renewal_sent(T0 + 1)
    machine.note_renewed(T0 + 1.1)
    assert machine.stop_at == T0 + 1 + POLICY.renew_deadline
    machine.move_end(T0 + 2)
    assert (machine.stop_at, machine.deadline) == (T0 + 2, T0 + 2 + POLICY.grace)
    assert not machine.valid(machine.deadline)
    machine.move_end(inf)
    assert not machine.valid(T0 + 2), "what ended does not come back"
    assert machine.reason == "at_most_for"


class _Interrupted(dict[Input, LeaseState]):
    """A row of the table at whose look-up another thread is faster."""

    other: Callable[[], object] = staticmethod(lambda: None)

    def get(self, what: Input, default: LeaseState | None = None) -> LeaseState | None:  # type: ignore[override]  # no other default is asked for
        found, other = super().get(what), self.other
        self.other = lambda: None
        other()
        return found


@pytest.mark.parametrize(
    ("state", "slow", "fast", "then"),
    [
        (LeaseState.HELD, Input.UNRENEWED, Input.LEAVE, LeaseState.LEAVING),
        (LeaseState.HELD, Input.UNRENEWED, Input.GONE, LeaseState.LOST),
        (LeaseState.LEAVING, Input.UNRENEWED, Input.GIVEN, LeaseState.RELEASED),
        (LeaseState.LEAVING, Input.EXPIRE, Input.GIVEN, LeaseState.RELEASED),
    ],
)
def test_an_answer_that_changes_nothing_undoes_no_move_of_another_thread(
    state: LeaseState,
    slow: Input,
    fast: Input,
    then: LeaseState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, row = machine_in(state), _Interrupted(TRANSITIONS[state])
    monkeypatch.setitem(TRANSITIONS, state, row)
    row.other = lambda: FEED[fast](machine)
    FEED[slow](machine)
    assert machine.state is then
