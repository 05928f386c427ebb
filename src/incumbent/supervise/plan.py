"""What to do with a command, and when to look again. Pure: all instants are handed in.

    RUNNING --- CMD ended, members of its group are left -------> ENDING --+
       |                                                                   |
       +------- the proof ends, the lease was lost, at_most_for -> STOPPING +--> KILLED

1. Whatever happened, KILL falls before the lease's deadline, and TERM a grace before it where the
   time suffices.
2. Only an empty process group lets the lease go; KILL that does not help gives up instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import inf

__all__ = ["KILL_LEAD", "Action", "Belief", "Course", "Phase", "Step", "decide"]

KILL_LEAD = 0.02
"""Seconds before the deadline at which KILL is sent: a process needs some to be gone."""

_GIVE_UP_AFTER = 5.0
"""Seconds after KILL; who still lives then sleeps in the kernel or belongs to another user."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What the lease says at one instant; `lost` is the reason, empty while it is held."""

    stop_at: float
    deadline: float
    lost: str = ""
    bounded: bool = False
    """Whether at_most_for, not the proof, is what ends it at `stop_at`."""

    @property
    def kill_at(self) -> float:
        """The last instant at which KILL may be sent."""
        return max(self.stop_at, self.deadline - KILL_LEAD)

    def verdict(self, now: float) -> str:
        """Why the command has to stop now, or an empty string."""
        if self.lost or now < self.stop_at:
            return self.lost
        return "at_most_for" if self.bounded else "expired"


class Phase(Enum):
    """How far the end of a command has come."""

    RUNNING = "CMD runs"
    ENDING = "CMD ended; the rest of its group was asked to end"
    STOPPING = "CMD was asked to end"
    KILLED = "everything was killed"


class Action(Enum):
    """What to do at once."""

    WAIT = "wait until the step's instant, or until something happens"
    TERM = "send TERM, then CONT, to the group"
    KILL = "send KILL to the group"
    LEAVE = "nothing of the command is left"
    GIVE_UP = "something outlives KILL: the lease is not given back, it runs out"


@dataclass(frozen=True, slots=True)
class Course:
    """Where a command is on its way out. `cause`: why it was stopped; empty if it ended itself."""

    phase: Phase = Phase.RUNNING
    cause: str = ""
    kill_at: float = inf


@dataclass(frozen=True, slots=True)
class Step:
    """The course from here, what to do now, and the instant (WAIT) to decide again."""

    course: Course
    action: Action
    wake: float = inf


def decide(
    course: Course, now: float, belief: Belief, grace: float, *, child: bool, group: bool
) -> Step:
    """The next step; `child`: CMD itself lives, `group`: it or another of its group does."""
    # What ended by itself before it had to stop was in time.
    verdict = belief.verdict(now) if group else belief.lost
    if verdict and not course.cause:
        course = replace(course, cause=verdict)
    if not group:
        return Step(course, Action.LEAVE)
    if course.phase is Phase.KILLED:
        return _after_kill(course, now)
    if course.phase is Phase.RUNNING:
        return _running(course, now, belief, grace, child=child)
    return _leaving(course, now, belief)


def _running(course: Course, now: float, belief: Belief, grace: float, *, child: bool) -> Step:
    if child and not course.cause:
        return Step(course, Action.WAIT, belief.stop_at)
    phase = Phase.STOPPING if course.cause else Phase.ENDING
    course = replace(course, phase=phase, kill_at=now + grace)
    if now >= min(course.kill_at, belief.kill_at):
        return _kill(course, now)
    return Step(course, Action.TERM)


def _leaving(course: Course, now: float, belief: Belief) -> Step:
    limit = min(course.kill_at, belief.kill_at)
    return _kill(course, now) if now >= limit else Step(course, Action.WAIT, limit)


def _kill(course: Course, now: float) -> Step:
    return Step(replace(course, phase=Phase.KILLED, kill_at=now), Action.KILL)


def _after_kill(course: Course, now: float) -> Step:
    limit = course.kill_at + _GIVE_UP_AFTER
    return Step(course, Action.GIVE_UP if now >= limit else Action.WAIT, limit)
