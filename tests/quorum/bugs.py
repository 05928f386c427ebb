"""Rules of the quorum to leave out, one at a time: each must show in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

from incumbent.model import Renewed
from incumbent.stores.quorum import (
    ballots,
    changes,
    dialect,
    nodes,
    renew,
    take,
)
from incumbent.stores.quorum.ballots import Answer, BallotClock, Verdict, Vote, Won
from incumbent.stores.quorum.nodes import Quorum
from tests.quorum.world import Process

_MODULES: tuple[ModuleType, ...] = (
    ballots,
    changes,
    dialect,
    nodes,
    renew,
    take,
)

OF_NODES = (
    "no born quarantine",
    "the floor is not stored",
    "floors are not looked at",
    "no limit of ballots",
    "the member list is ignored",
    "planting lowers the floor",
    "plants whatever happened since",
    "old floor",
    "promises are not kept",
    "accepts without a promise",
    "accepts any state",
    "forgetting is not told",
)


@dataclass(frozen=True)
class Bugs:
    """What is left out."""

    of_node: frozenset[str] = frozenset()
    of_claimant: frozenset[str] = frozenset()

    @classmethod
    def named(cls, *names: str) -> Bugs:
        """Each of a known name; "" is none."""
        wanted = {name for name in names if name}
        unknown = wanted - {*OF_NODES, *PATCHES, "no uptime quarantine"}
        if unknown:
            raise ValueError(f"unknown bugs: {sorted(unknown)}")
        return cls(frozenset(wanted & {*OF_NODES}), frozenset(wanted - {*OF_NODES}))


@contextmanager
def planted(bugs: Bugs) -> Iterator[None]:
    """The store's own modules ask the simulated clock and dice, and lack what `bugs` says."""
    _orders.clear()
    with ExitStack() as stack:
        for module in _MODULES:
            if hasattr(module, "_now"):
                stack.enter_context(patch.object(module, "_now", _simulated_now))
            if hasattr(module, "random"):
                stack.enter_context(patch.object(module, "random", _simulated_random))
        for name in bugs.of_claimant & set(PATCHES):
            where, attribute, instead = PATCHES[name]
            stack.enter_context(patch.object(where, attribute, instead))
        yield


def _simulated_now() -> float:
    return Process.running.now()


def _simulated_random() -> float:
    return Process.running.heap.dice.random()


# -- bugs of the claimant: each a small patch of the real rules


_decide, _propose = ballots.decide, BallotClock.propose


def _same_claim_is_mine(answers: Sequence[Answer]) -> Verdict:
    votes = [it.ballot for it in answers if isinstance(it, Vote)]
    if len(votes) >= ballots.majority_of(len(answers)):
        return Won(max(votes), None)
    return _decide(answers)


def _a_minority_is_enough(nodes: int) -> int:
    return nodes // 2


def _own_clock(self: BallotClock, now: float, above: int = 0) -> int:
    ballot = _propose(self, now, above)
    # A minute and a half ahead or behind, each process by its own.
    wrong_by = 90_000_000 if _order_of(self) % 2 == 0 else -90_000_000
    return max(ballot + wrong_by, above + 1)


def _order_of(clock: BallotClock) -> int:
    return _orders.setdefault(id(clock), len(_orders))


_orders: dict[int, int] = {}


def _plants_anyhow(self: Any, answers: Sequence[Any]) -> Any:
    """What is free is as good as confirmed, since it will be planted."""
    there = sum(answer == 1 or type(answer) in (list, bytes) for answer in answers)
    if there >= self.quorum.need:
        return Renewed()
    return _outcome(self, answers)


_outcome: Callable[..., Any] = renew._QuorumRound._outcome

PATCHES: dict[str, tuple[Any, str, Any]] = {
    "the same claim is mine": (take, "decide", _same_claim_is_mine),
    "a minority is enough": (ballots, "majority_of", _a_minority_is_enough),
    "ballots of its own clock": (BallotClock, "propose", _own_clock),
    "what is being taken back counts": (Quorum, "remember", lambda *_: None),
    "a clock astray is followed": (ballots, "_ASTRAY", 10**18),
    "plants without a majority": (renew._QuorumRound, "_outcome", _plants_anyhow),
}
