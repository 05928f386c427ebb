"""What the guard does, and when. Pure: messages, instants and the supervisor's state are arguments.

1. Armed by the first proof of a term, it kills at the deadline of the latest proof it received.
2. No message moves the deadline to later than one ttl from its receipt, or to earlier than an
   earlier proof did; messages of another term are ignored.
3. An armed guard whose supervisor is gone kills at once, then ends. An unarmed guard only ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import inf, isnan


@dataclass(frozen=True, slots=True)
class Watch:
    """The term that is watched, 0 for none; `kill_at`: an instant, inf until a proof came."""

    term: int = 0
    ttl: float = 0.0
    kill_at: float = inf

    @property
    def armed(self) -> bool:
        """Whether something may run that has to be killed."""
        return self.kill_at < inf


class Verdict(Enum):
    """What to do at once; `kills`, `leaves`."""

    WAIT = (False, False)
    KILL = (True, False)
    LEAVE = (False, True)
    KILL_AND_LEAVE = (True, True)

    def __init__(self, kills: bool, leaves: bool) -> None:
        self.kills = kills
        self.leaves = leaves


def begun(term: int, ttl: float) -> Watch:
    """A new term: nothing runs before its first proof."""
    return Watch(term, ttl)


def proved(watch: Watch, term: int, kill_at: float, now: float) -> Watch:
    """The term was proved until `kill_at`; what would reach further than a ttl is cut."""
    if term == 0 or term != watch.term or isnan(kill_at):
        return watch
    bounded = min(kill_at, now + watch.ttl)
    return replace(watch, kill_at=max(bounded, watch.kill_at) if watch.armed else bounded)


def ended(watch: Watch, term: int) -> Watch:
    """Nothing of the term's command is left."""
    return Watch() if term == watch.term else watch


def covers(watch: Watch, term: int, now: float) -> bool:
    """Whether a command of `term` may begin now."""
    return term == watch.term and watch.armed and now < watch.kill_at


def judge(watch: Watch, now: float, *, supervised: bool) -> Verdict:
    """What follows, with every message drained; `supervised`: the supervisor exists."""
    if not supervised:
        return Verdict.KILL_AND_LEAVE if watch.armed else Verdict.LEAVE
    return Verdict.KILL if watch.armed and now >= watch.kill_at else Verdict.WAIT
