"""The decisions of supervisor and guard about a command. Pure: all instants are arguments.

    RUNNING --- CMD ended, descendants of it are left ----------> ENDING --+
       |                                                                   |
       +-- the proof ends, a loss, at_most_for, a signal to us -> STOPPING +--> KILLED
       |                                                                         |
       +-------- the guard is dead ----------------------------------------------+

The supervisor:

1. Whatever happens, KILL is sent before the lease's deadline, and TERM one grace before KILL if
   there is time. KILL is sent at once if the guard is dead, or if the store has no record of the
   lease any more: then the proof is void, and another may hold the lease.
2. The lease is given back only when the tree is empty; if a process survives KILL, it is not.
3. KILL is repeated while any process lives: a process may fork and escape the first KILL.

The guard:

1. Armed by the first proof of a term, it kills at the deadline of the latest proof it received.
2. No message moves the deadline to later than one ttl after its receipt, or to earlier than a
   former proof did; messages of another term are ignored.
3. An armed guard whose supervisor is gone kills at once, then exits. An unarmed guard only exits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import inf, isnan

from incumbent.lease import Proof

# -- the supervisor --------------------------------------------------------------------------------

KILL_LEAD = 0.02
"""Seconds before the deadline at which KILL is sent: a process needs time to end."""

_DISPROVED = "taken"
"""The only reason that voids a proof early. After a restart the store grants nothing as long as the
proof lasts, and an operator's request leaves the record in place."""
_KILL_EVERY = 0.05
"""Seconds between one KILL and the next."""
_GIVE_UP_AFTER = 5.0
"""Seconds after KILL. A process that still lives sleeps in the kernel or is another user's."""


def kill_at(proof: Proof) -> float:
    """The last instant at which KILL may be sent."""
    if proof.lost_reason == _DISPROVED:
        return -inf
    return max(proof.stop_at, proof.deadline - KILL_LEAD)


class Phase(Enum):
    """The phase of a command's end."""

    RUNNING = "CMD runs"
    ENDING = "CMD ended; its descendants were asked to end"
    STOPPING = "CMD was asked to end"
    KILLED = "everything was killed"


class Action(Enum):
    """The supervisor's next action."""

    WAIT = "wait until the step's instant, or until something happens"
    TERM = "send TERM, then CONT, to the tree"
    KILL = "send KILL to the tree"
    LEAVE = "nothing of the command is left"
    GIVE_UP = "something outlives KILL: the lease is not given back, it runs out"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a command's end. `cause`: why it was stopped; empty if it ended by itself.

    `kill_at`: the instant of KILL, due or past; `again_at`: the instant of the next KILL.
    `leaving`: the signal that asked the supervisor to end too, whatever the cause; empty for none.
    """

    phase: Phase = Phase.RUNNING
    cause: str = ""
    kill_at: float = inf
    again_at: float = inf
    leaving: str = ""


@dataclass(frozen=True, slots=True)
class RunStep:
    """The new progress, the action to take now, and the instant (for WAIT) to decide again."""

    progress: Progress
    action: Action
    wake: float = inf


def asked_to_stop(progress: Progress, cause: str) -> Progress:
    """The progress with an orderly stop from the next step on, unless a stop has begun already."""
    return progress if progress.cause else replace(progress, cause=cause)


def asked_to_leave(progress: Progress, signal: str) -> Progress:
    """The progress after a signal to end: an orderly stop (if none has begun), and no new term."""
    return replace(asked_to_stop(progress, f"signal:{signal}"), leaving=progress.leaving or signal)


def decide(
    progress: Progress,
    now: float,
    proof: Proof,
    grace: float,
    *,
    child: bool,
    tree: bool,
    guarded: bool = True,
) -> RunStep:
    """The next step; `child`: CMD lives, `tree`: CMD or a descendant does, `guarded`: the guard."""
    # A command that ended by itself before it had to stop ended in time.
    verdict = proof.verdict(now) if tree else proof.lost_reason
    progress = asked_to_stop(progress, verdict or ("" if guarded else "guard"))
    if not tree:
        return RunStep(progress, Action.LEAVE)
    if progress.phase is Phase.KILLED:
        return _after_kill(progress, now)
    if not guarded:
        return _kill(progress, now, first=True)
    if progress.phase is Phase.RUNNING:
        return _running(progress, now, proof, grace, child=child)
    # A renewal may move the proof's end, but the grace that TERM began stays as it is.
    limit = min(progress.kill_at, kill_at(proof))
    if now >= limit:
        return _kill(progress, now, first=True)
    return RunStep(progress, Action.WAIT, limit)


def _running(progress: Progress, now: float, proof: Proof, grace: float, *, child: bool) -> RunStep:
    if child and not progress.cause:
        return RunStep(progress, Action.WAIT, proof.stop_at)
    phase = Phase.STOPPING if progress.cause else Phase.ENDING
    progress = replace(progress, phase=phase, kill_at=now + grace)
    if now >= min(progress.kill_at, kill_at(proof)):
        return _kill(progress, now, first=True)
    return RunStep(progress, Action.TERM)


def _kill(progress: Progress, now: float, *, first: bool) -> RunStep:
    # The first KILL counts: each repetition would put off giving up.
    since = now if first else progress.kill_at
    killed = replace(progress, phase=Phase.KILLED, kill_at=since, again_at=now + _KILL_EVERY)
    return RunStep(killed, Action.KILL)


def _after_kill(progress: Progress, now: float) -> RunStep:
    limit = progress.kill_at + _GIVE_UP_AFTER
    if now >= limit:
        return RunStep(progress, Action.GIVE_UP, limit)
    if now >= progress.again_at:
        return _kill(progress, now, first=False)
    return RunStep(progress, Action.WAIT, min(limit, progress.again_at))


# -- the guard -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WatchedTerm:
    """The watched term, 0 for none; `kill_at`: an instant, inf until the first proof."""

    term: int = 0
    ttl: float = 0.0
    kill_at: float = inf

    @property
    def armed(self) -> bool:
        """Whether processes may run that have to be killed."""
        return self.kill_at < inf


class GuardVerdict(Enum):
    """The guard's next action: whether it `kills`, and whether it `leaves`."""

    WAIT = (False, False)
    KILL = (True, False)
    LEAVE = (False, True)
    KILL_AND_LEAVE = (True, True)

    def __init__(self, kills: bool, leaves: bool) -> None:
        self.kills = kills
        self.leaves = leaves


def begun(term: int, ttl: float) -> WatchedTerm:
    """The watch of a new term: nothing runs before its first proof."""
    return WatchedTerm(term, ttl)


def proved(watch: WatchedTerm, term: int, kill_at: float, now: float) -> WatchedTerm:
    """The watch after a proof of `term` until `kill_at`, which is cut to one ttl from now."""
    if term == 0 or term != watch.term or isnan(kill_at):
        return watch
    # From the receipt by our own clock: a wrong or late message cannot keep the tree alive for
    # longer.
    bounded = min(kill_at, now + watch.ttl)
    return replace(watch, kill_at=max(bounded, watch.kill_at) if watch.armed else bounded)


def ended(watch: WatchedTerm, term: int) -> WatchedTerm:
    """The watch once no process of the term's command is left."""
    return WatchedTerm() if term == watch.term else watch


def covers(watch: WatchedTerm, term: int, now: float) -> bool:
    """Whether a command of `term` may begin now."""
    return term == watch.term and watch.armed and now < watch.kill_at


def judge(watch: WatchedTerm, now: float, *, supervised: bool) -> GuardVerdict:
    """The guard's next action, after it read all messages; `supervised`: the supervisor exists."""
    if not supervised:
        return GuardVerdict.KILL_AND_LEAVE if watch.armed else GuardVerdict.LEAVE
    return GuardVerdict.KILL if watch.armed and now >= watch.kill_at else GuardVerdict.WAIT
