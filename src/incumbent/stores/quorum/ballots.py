"""The rules by which votes become a lease. Pure: the caller passes all instants.

1. A claimant proposes a ballot above all ballots it has seen. If it has seen none, the ballot is
   the median time (unix us) of the nodes' clocks, never the time of its own clock.
2. A node votes for a claim only if the lease is free there, and the ballot is above the node's
   floor and at most a minute ahead of the node's clock (see node.lua). The vote raises the floor to
   the ballot in the same step. So a node that lost its data knows that it never voted for a ballot
   above the time of its (new) birth plus one minute.
3. If a majority of nodes store *exactly* the same ballot for the claim, this ballot is its token.
   A node that stores another ballot for the claim does not count.
4. Two majorities share a node, and it voted for both in order, so the later token is larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from incumbent.errors import StoreError


class Vote(NamedTuple):
    """The node stores this ballot for the claim. `left`: seconds of ttl; None after a new vote."""

    ballot: int
    left: float | None = None


class No(NamedTuple):
    """A refusal to vote. `who` identifies the claim (or the other value) that is the cause.

    `kind`: held, paused, closed or reserved by others; low (the ballot is not above the floor),
    high (the ballot is too far ahead of the node's clock), ahead (the node's floor is too far ahead
    of the other clocks), young (the node is too new to vote), members (the node belongs to another
    quorum), unfit (its settings or its role changed: `raw` says how). `left`: seconds until the
    refusal may end; -1 if unknown.
    """

    kind: str
    raw: bytes = b""
    left: float = -1.0
    now: int = 0
    floor: int = 0
    who: bytes = b""


class Silent(NamedTuple):
    """No usable answer. `sent`: the node may have carried out the request nevertheless.

    `coming`: the node is still being connected, and nothing failed so far.
    """

    why: StoreError
    sent: bool
    coming: bool = False


Answer: TypeAlias = "Vote | No | Silent"


UNFIT: Final = "unfit"


@dataclass(frozen=True, slots=True)
class Won:
    """A majority stores exactly this ballot. `left`: seconds of ttl; None for the whole ttl.

    `but_paused`: a node that did not vote says that the name is paused.
    """

    token: int
    left: float | None
    but_paused: bool = False


@dataclass(frozen=True, slots=True)
class Raise:
    """A majority would vote for a ballot larger than `above`."""

    above: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A majority refuses, for the same cause."""

    no: No


@dataclass(frozen=True, slots=True)
class Split:
    """No claim has a majority. `first`: whether, of all claims seen, ours should go on.

    `refused`: whether most nodes refuse, though not for the same cause.
    """

    no: No
    first: bool
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Strangers:
    """This node's marker names other members or another format."""

    node: int
    marker: bytes


@dataclass(frozen=True, slots=True)
class Undecided:
    """Too few answers. `perhaps`: with the lost answers, there may have been a majority.

    `votes_in`: seconds until enough nodes vote; None if time alone does not suffice.
    `clocks_in`: the same, without counting on nodes that are too new.
    """

    perhaps: bool
    votes_in: float | None = None
    clocks_in: float | None = None


Verdict: TypeAlias = "Won | Raise | Lost | Split | Strangers | Undecided"

AHEAD_MOST_US: Final = 60_000_000
"""Most microseconds by which a ballot may be ahead of a voting node's clock: see node.lua."""
_ASTRAY: Final = 2_000_000
"""Most microseconds by which proposals run ahead of the median before they return to it."""
_TOGETHER: Final = 0.1
_BY_CLOCK: Final = frozenset({"high", "ahead"})
_IN_TIME: Final = _BY_CLOCK | {"young"}
_BLOCKS: Final = frozenset({"held", "paused", "closed", "reserved"})


def majority_of(nodes: int) -> int:
    """The number of nodes in a majority of `nodes`."""
    return nodes // 2 + 1


def decide(answers: Sequence[Answer]) -> Verdict:
    """The verdict on the nodes' answers to one take."""
    need = majority_of(len(answers))
    # First, whatever the others say: two quorums that share a node could both have a majority.
    for node, answer in enumerate(answers):
        if isinstance(answer, No) and answer.kind == "members":
            return Strangers(node, answer.raw)
    won = _won(answers, need)
    if won is not None:
        return won
    willing = sum(map(_is_willing, answers))
    if willing >= need:
        return Raise(max(map(ballot_of, answers)))
    blocked = _blocked(answers)
    top = _strongest(blocked)
    if top and len(top) >= need:
        return Lost(_when_it_may_change(top, need))
    if top and willing + len(blocked) >= need:
        refused = len(blocked) >= need
        return Split(_when_it_may_change(top, need), _goes_first(answers, top), refused)
    missing, lost = need - willing, sum(isinstance(it, Silent) and it.sent for it in answers)
    return Undecided(
        len(_votes(answers)) + lost >= need,
        _enough_vote_in(answers, _IN_TIME, missing),
        _enough_vote_in(answers, _BY_CLOCK, missing),
    )


def is_decided(answers: Sequence[Answer | None]) -> bool:
    """Whether the answers so far (None: not yet) suffice for a verdict."""
    present = [answer for answer in answers if answer is not None]
    need = majority_of(len(answers))
    if len(present) < need:
        return False
    if len(present) == len(answers):
        return True
    votes = Counter(vote.ballot for vote in _votes(present))
    # A silent node may be frozen: rather retry with the larger ballot that other nodes want.
    willing = sum(map(_is_willing, present)) if any(map(_is_low, present)) else 0
    return max(willing, len(_strongest(_blocked(present))), *votes.values()) >= need


def _votes(answers: Sequence[Answer]) -> list[Vote]:
    return [answer for answer in answers if isinstance(answer, Vote)]


def _blocked(answers: Sequence[Answer]) -> list[No]:
    return [answer for answer in answers if isinstance(answer, No) and answer.kind in _BLOCKS]


def _is_low(answer: Answer) -> bool:
    return isinstance(answer, No) and answer.kind == "low"


def _is_willing(answer: Answer) -> bool:
    return isinstance(answer, Vote) or _is_low(answer)


def _won(answers: Sequence[Answer], need: int) -> Won | None:
    votes = _votes(answers)
    if len(votes) < need:
        return None
    ballot, count = Counter(vote.ballot for vote in votes).most_common(1)[0]
    if count < need:
        return None
    lefts = [vote.left for vote in votes if vote.ballot == ballot and vote.left is not None]
    paused = any(isinstance(answer, No) and answer.kind == "paused" for answer in answers)
    # The shortest counts: the lease lasts for as long as all of this majority keep it.
    return Won(ballot, min(lefts, default=None), paused)


def ballot_of(answer: Answer) -> int:
    """The highest ballot that the node is known to have seen; 0: none."""
    if isinstance(answer, Vote):
        return answer.ballot
    return answer.floor if isinstance(answer, No) else 0


def _strongest(blocked: Sequence[No]) -> list[No]:
    """The refusals with the most frequent cause; if causes are tied, that of the first node."""
    groups: dict[tuple[bool, bytes], list[No]] = {}
    for no in blocked:
        groups.setdefault((no.kind == "held", no.who), []).append(no)
    return max(groups.values(), key=len, default=[])


def _when_it_may_change(top: Sequence[No], need: int) -> No:
    """The refusal whose end leaves too few others for a majority."""
    ordered = sorted(top, key=lambda no: -no.left)
    return ordered[min(need, len(ordered)) - 1]


def _goes_first(answers: Sequence[Answer], top: Sequence[No]) -> bool:
    votes = len(_votes(answers))
    if votes != len(top):
        return votes > len(top)
    first = next((answer for answer in answers if isinstance(answer, Vote) or answer in top), None)
    return isinstance(first, Vote)


def _enough_vote_in(answers: Sequence[Answer], kinds: frozenset[str], missing: int) -> float | None:
    waits = sorted(no.left for no in answers if isinstance(no, No) and no.kind in kinds)
    if not 0 < missing <= len(waits):
        return None
    # Wait for all servers that were started together: a lease on all of them survives the failure
    # of one.
    together = waits[missing - 1] + _TOGETHER
    return max(left for left in waits if left <= together)


class BallotClock:
    """Proposes ballots by the median of the nodes' clocks, as far as this process knows them.

    Of an even number of clocks it takes the later of the two in the middle: a token that is too
    small would be worse than a node that refuses a ballot as too large.
    """

    def __init__(self, nodes: int) -> None:
        self._offsets: list[float | None] = [None] * nodes
        self._median: float | None = None
        self._last = 0
        self.highest = 0
        """The largest ballot that this object ever proposed."""

    def learn(self, node: int, unix_us: int, at: float) -> None:
        """Learn a node's time from its reply, which came at instant `at`."""
        self._offsets[node] = unix_us / 1e6 - at
        known = sorted(offset for offset in self._offsets if offset is not None)
        self._median = known[len(known) // 2]

    def knows(self) -> bool:
        """Whether the clocks of a majority are known."""
        known = len(self._offsets) - self._offsets.count(None)
        return known >= majority_of(len(self._offsets))

    def propose(self, now: float, above: int = 0) -> int:
        """A ballot above `above`, and above all ballots that were drawn from the clocks before."""
        time = self.unix_us(now)
        # Do not follow for ever a clock far ahead that was learnt before the other clocks.
        self._last = max(self._last + 1, time) if self._last < time + _ASTRAY else time
        ballot = max(self._last, above + 1)
        self.highest = max(self.highest, ballot)
        return ballot

    def highest_admitted(self, now: float) -> int:
        """The largest ballot that is not too far ahead for a majority of the nodes."""
        return self.unix_us(now) + AHEAD_MOST_US

    def unix_us(self, now: float) -> int:
        """The median time (unix us) at the instant `now`; 0 if no clock is known."""
        return 0 if self._median is None else int((self._median + now) * 1e6)
