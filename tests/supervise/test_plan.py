"""Whatever happens to a command, KILL falls inside its lease, and nothing is left early."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.lease import Proof
from incumbent.supervise.plan import (
    KILL_LEAD,
    Action,
    Phase,
    Progress,
    RunStep,
    asked_to_leave,
    asked_to_stop,
    decide,
    kill_at,
)

GRACE = 1.0
ORDER = list(Phase)


def step(
    progress: Progress, now: float, proof: Proof, *, child: bool = True, tree: bool = True
) -> RunStep:
    return decide(progress, now, proof, GRACE, child=child, tree=tree)


def held(stop_at: float = 10.0, *, lost: str = "", bounded: bool = False) -> Proof:
    return Proof(stop_at, stop_at + GRACE, lost, bounded)


def test_a_command_with_a_proved_lease_is_left_alone() -> None:
    assert step(Progress(), 5, held()) == RunStep(Progress(), Action.WAIT, 10.0)


def test_term_comes_when_the_work_has_to_stop_and_kill_before_the_deadline() -> None:
    asked = step(Progress(), 10, held())
    assert (asked.action, asked.progress.cause) == (Action.TERM, "expired")
    waiting = step(asked.progress, 10.1, held())
    assert waiting.action is Action.WAIT
    assert waiting.wake == 11 - KILL_LEAD
    assert step(waiting.progress, waiting.wake, held()).action is Action.KILL


def test_the_bound_of_the_holder_itself_is_named_as_such() -> None:
    assert step(Progress(), 10, held(bounded=True)).progress.cause == "at_most_for"


@pytest.mark.parametrize("lost", ["broken", "paused", "resigned", "store_restarted"])
def test_a_lease_that_ends_while_nobody_else_can_hold_it_is_left_within_the_grace(
    lost: str,
) -> None:
    asked = step(Progress(), 3, held(lost=lost))
    assert (asked.action, asked.progress.cause) == (Action.TERM, lost)
    assert step(asked.progress, 3.5, held(lost=lost)).wake == 4.0
    assert step(asked.progress, 4.0, held(lost=lost)).action is Action.KILL


def test_no_grace_reaches_further_than_the_proof() -> None:
    gone = step(Progress(), 3, held(lost="taken"))
    assert (gone.action, gone.progress.cause) == (Action.KILL, "taken")
    asked = step(asked_to_stop(Progress(), "signal:SIGTERM"), 3, held())
    assert asked.action is Action.TERM
    assert step(asked.progress, 3.1, held(lost="taken")).action is Action.KILL
    left = step(Progress(), 3, held(), child=False)
    assert left.progress.phase is Phase.ENDING
    assert step(left.progress, 3.1, held(lost="taken"), child=False).action is Action.KILL


def test_after_the_deadline_there_is_no_time_for_term() -> None:
    late = step(Progress(), 20, held(lost="expired"))
    assert (late.action, late.progress.phase) == (Action.KILL, Phase.KILLED)


def test_what_ended_by_itself_in_time_has_no_cause() -> None:
    assert step(Progress(), 10.5, held(), child=False, tree=False).progress.cause == ""


def test_what_ended_after_a_loss_has_outlived_its_lease() -> None:
    ended = step(Progress(), 10.5, held(lost="taken"), child=False, tree=False)
    assert (ended.action, ended.progress.cause) == (Action.LEAVE, "taken")


def test_the_descendants_are_asked_to_end_while_the_lease_is_renewed() -> None:
    asked = step(Progress(), 5, held(), child=False)
    assert (asked.action, asked.progress.phase) == (Action.TERM, Phase.ENDING)
    renewed = step(asked.progress, 5.9, held(16), child=False)
    assert (renewed.action, renewed.wake) == (Action.WAIT, 6.0)
    assert step(renewed.progress, 6.0, held(16), child=False).action is Action.KILL


def test_the_descendants_do_not_outlive_the_lease_either() -> None:
    asked = step(Progress(), 9.9, held(), child=False)
    stopped = step(asked.progress, 10.89, held(), child=False)
    assert stopped.wake == 9.9 + GRACE
    lost = step(asked.progress, 10, Proof(9.0, 9.5, "expired"), child=False)
    assert (lost.action, lost.progress.cause) == (Action.KILL, "expired")


def test_what_outlives_kill_is_given_up_and_never_left() -> None:
    killed = step(Progress(), 20, held(lost="expired"))
    assert step(killed.progress, 20.01, held(lost="expired")).action is Action.WAIT
    assert step(killed.progress, 24.9, held(lost="expired")).action is Action.KILL
    assert step(killed.progress, 25, held(lost="expired")).action is Action.GIVE_UP


def test_kill_is_repeated_because_a_fork_may_have_escaped_it() -> None:
    killed = step(Progress(), 20, held(lost="expired"))
    waiting = step(killed.progress, 20.01, held(lost="expired"))
    again = step(waiting.progress, waiting.wake, held(lost="expired"))
    assert again.action is Action.KILL
    assert again.progress.kill_at == 20, "the time until it is given up counts from the first"
    later = step(again.progress, waiting.wake + 0.01, held(lost="expired"))
    assert later.wake > waiting.wake


def test_without_a_guard_everything_is_killed_at_once() -> None:
    found = decide(Progress(), 5, held(), GRACE, child=True, tree=True, guarded=False)
    assert (found.action, found.progress.cause) == (Action.KILL, "guard")
    asked = step(Progress(), 10, held())
    found = decide(asked.progress, 10.1, held(), GRACE, child=True, tree=True, guarded=False)
    assert (found.action, found.progress.cause) == (Action.KILL, "expired")


def test_what_the_guard_took_along_did_not_end_by_itself() -> None:
    found = decide(Progress(), 5, held(), GRACE, child=False, tree=False, guarded=False)
    assert (found.action, found.progress.cause) == (Action.LEAVE, "guard")


def test_a_signal_begins_an_orderly_stop_within_the_grace() -> None:
    progress = asked_to_stop(Progress(), "signal:SIGTERM")
    asked = step(progress, 3, held())
    assert (asked.action, asked.progress.phase) == (Action.TERM, Phase.STOPPING)
    assert step(asked.progress, 3.5, held()).wake == 4.0
    killed = step(asked.progress, 4.0, held())
    assert (killed.action, killed.progress.cause) == (Action.KILL, "signal:SIGTERM")


def test_what_began_the_stop_stays_its_cause() -> None:
    asked = step(Progress(), 3, held(lost="taken"))
    assert asked_to_stop(asked.progress, "signal:SIGTERM").cause == "taken"


def test_a_signal_to_leave_is_remembered_whatever_the_cause() -> None:
    alone = asked_to_leave(Progress(), "SIGTERM")
    assert (alone.cause, alone.leaving) == ("signal:SIGTERM", "SIGTERM")
    late = asked_to_leave(step(Progress(), 3, held(lost="taken")).progress, "SIGINT")
    assert (late.cause, late.leaving) == ("taken", "SIGINT")
    assert asked_to_leave(late, "SIGTERM").leaving == "SIGINT"


@dataclass
class World:
    """A command and a lease whose events come in any order; time only goes on."""

    progress: Progress = field(default_factory=Progress)
    now: float = 0.0
    proof: Proof = field(default_factory=held)
    child: bool = True
    tree: bool = True
    said: list[Action] = field(default_factory=list)

    def renew(self) -> None:
        if not self.proof.lost_reason and self.now < self.proof.deadline:
            self.proof = held(self.now + 10)

    def look(self) -> RunStep:
        if self.now >= self.proof.deadline and not self.proof.lost_reason:
            self.proof = Proof(self.proof.stop_at, self.proof.deadline, "expired")
        found = step(self.progress, self.now, self.proof, child=self.child, tree=self.tree)
        self.progress = found.progress
        self.said.append(found.action)
        return found


EVENTS = st.sampled_from(["renew", "lose", "child ends", "tree ends", "nothing"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 15)), max_size=12))
def test_in_every_history_kill_is_in_time_and_only_the_empty_tree_is_left(
    history: list[tuple[str, float]],
) -> None:
    world = World()
    for event, later in history:
        world.now += later
        happen(world, event)
        phase = world.progress.phase
        found = world.look()
        assert ORDER.index(found.progress.phase) >= ORDER.index(phase)
        judge(world, found)
        if found.action in (Action.LEAVE, Action.GIVE_UP):
            return


def happen(world: World, event: str) -> None:
    match event:
        case "renew":
            world.renew()
        case "lose":
            world.proof = Proof(world.proof.stop_at, world.proof.deadline, "taken")
        case "child ends":
            world.child = False
        case "tree ends":
            world.child = world.tree = False


def judge(world: World, found: RunStep) -> None:
    assert (found.action is Action.LEAVE) == (not world.tree)
    if not world.tree:
        return
    if found.progress.phase is not Phase.KILLED:
        assert world.now < kill_at(world.proof), "alive beyond the last instant for KILL"
    if found.action is Action.WAIT:
        assert found.wake > world.now, "a busy loop"
        if found.progress.phase is not Phase.KILLED:
            assert found.wake <= kill_at(world.proof), "sleeps through its deadline"
    if found.progress.phase is Phase.KILLED:
        assert Action.KILL in world.said
