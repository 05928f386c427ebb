"""Whatever happens to a command, KILL falls inside its lease, and nothing is left early."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from incumbent.supervise.plan import KILL_LEAD, Action, Belief, Course, Phase, Step, decide

GRACE = 1.0
ORDER = list(Phase)


def step(
    course: Course, now: float, belief: Belief, *, child: bool = True, group: bool = True
) -> Step:
    return decide(course, now, belief, GRACE, child=child, group=group)


def held(stop_at: float = 10.0, *, lost: str = "", bounded: bool = False) -> Belief:
    return Belief(stop_at, stop_at + GRACE, lost, bounded)


def test_a_command_with_a_proved_lease_is_left_alone() -> None:
    assert step(Course(), 5, held()) == Step(Course(), Action.WAIT, 10.0)


def test_term_comes_when_the_work_has_to_stop_and_kill_before_the_deadline() -> None:
    asked = step(Course(), 10, held())
    assert (asked.action, asked.course.cause) == (Action.TERM, "expired")
    waiting = step(asked.course, 10.1, held())
    assert waiting.action is Action.WAIT
    assert waiting.wake == 11 - KILL_LEAD
    assert step(waiting.course, waiting.wake, held()).action is Action.KILL


def test_the_bound_of_the_holder_itself_is_named_as_such() -> None:
    assert step(Course(), 10, held(bounded=True)).course.cause == "at_most_for"


def test_a_lease_lost_early_is_left_within_the_grace() -> None:
    asked = step(Course(), 3, held(lost="taken"))
    assert (asked.action, asked.course.cause) == (Action.TERM, "taken")
    assert step(asked.course, 3.5, held(lost="taken")).wake == 4.0
    assert step(asked.course, 4.0, held(lost="taken")).action is Action.KILL


def test_after_the_deadline_there_is_no_time_for_term() -> None:
    late = step(Course(), 20, held(lost="expired"))
    assert (late.action, late.course.phase) == (Action.KILL, Phase.KILLED)


def test_what_ended_by_itself_in_time_has_no_cause() -> None:
    assert step(Course(), 10.5, held(), child=False, group=False).course.cause == ""


def test_what_ended_after_a_loss_has_outlived_its_lease() -> None:
    ended = step(Course(), 10.5, held(lost="taken"), child=False, group=False)
    assert (ended.action, ended.course.cause) == (Action.LEAVE, "taken")


def test_the_rest_of_the_group_is_asked_to_end_while_the_lease_is_renewed() -> None:
    asked = step(Course(), 5, held(), child=False)
    assert (asked.action, asked.course.phase) == (Action.TERM, Phase.ENDING)
    renewed = step(asked.course, 5.9, held(16), child=False)
    assert (renewed.action, renewed.wake) == (Action.WAIT, 6.0)
    assert step(renewed.course, 6.0, held(16), child=False).action is Action.KILL


def test_the_rest_of_the_group_does_not_outlive_the_lease_either() -> None:
    asked = step(Course(), 9.9, held(), child=False)
    stopped = step(asked.course, 10.89, held(), child=False)
    assert stopped.wake == 9.9 + GRACE
    lost = step(asked.course, 10, Belief(9.0, 9.5, "expired"), child=False)
    assert (lost.action, lost.course.cause) == (Action.KILL, "expired")


def test_what_outlives_kill_is_given_up_and_never_left() -> None:
    killed = step(Course(), 20, held(lost="expired"))
    waiting = step(killed.course, 21, held(lost="expired"))
    assert waiting.action is Action.WAIT
    assert step(killed.course, waiting.wake, held(lost="expired")).action is Action.GIVE_UP


@dataclass
class World:
    """A command and a lease whose events come in any order; time only goes on."""

    course: Course = field(default_factory=Course)
    now: float = 0.0
    belief: Belief = field(default_factory=held)
    child: bool = True
    group: bool = True
    said: list[Action] = field(default_factory=list)

    def renew(self) -> None:
        if not self.belief.lost and self.now < self.belief.deadline:
            self.belief = held(self.now + 10)

    def look(self) -> Step:
        if self.now >= self.belief.deadline and not self.belief.lost:
            self.belief = Belief(self.belief.stop_at, self.belief.deadline, "expired")
        found = step(self.course, self.now, self.belief, child=self.child, group=self.group)
        self.course = found.course
        self.said.append(found.action)
        return found


EVENTS = st.sampled_from(["renew", "lose", "child ends", "group ends", "nothing"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 15)), max_size=12))
def test_in_every_history_kill_is_in_time_and_only_the_empty_group_is_left(
    history: list[tuple[str, float]],
) -> None:
    world = World()
    for event, later in history:
        world.now += later
        happen(world, event)
        phase = world.course.phase
        found = world.look()
        assert ORDER.index(found.course.phase) >= ORDER.index(phase)
        judge(world, found)
        if found.action in (Action.LEAVE, Action.GIVE_UP):
            return


def happen(world: World, event: str) -> None:
    match event:
        case "renew":
            world.renew()
        case "lose":
            world.belief = Belief(world.belief.stop_at, world.belief.deadline, "taken")
        case "child ends":
            world.child = False
        case "group ends":
            world.child = world.group = False


def judge(world: World, found: Step) -> None:
    assert (found.action is Action.LEAVE) == (not world.group)
    if not world.group:
        return
    if found.course.phase is not Phase.KILLED:
        assert world.now < world.belief.kill_at, "alive beyond the last instant for KILL"
    if found.action is Action.WAIT:
        assert found.wake > world.now, "a busy loop"
        if found.course.phase is not Phase.KILLED:
            assert found.wake <= world.belief.kill_at, "sleeps through its deadline"
    if found.course.phase is Phase.KILLED:
        assert Action.KILL in world.said
