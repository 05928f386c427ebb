"""The nodes of a quorum, the state that operations share, the panel that asks all nodes, and the
errors without a majority.

An operation is a coroutine that asks all nodes of a `Panel`, in rounds. Each side has a panel over
network connections (`connecting`); the simulator has a panel over simulated nodes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import eq
from typing import Any, Final, TypeAlias

from incumbent.clock import now as _now
from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.pool import Mismatch
from incumbent.stores.members import Members
from incumbent.stores.quorum import ballots
from incumbent.stores.quorum.ballots import UNFIT, Answer, BallotClock, No, Silent, Vote
from incumbent.stores.quorum.dialect import MARKER, RECORD_FORMAT, QuorumDialect, node_failure
from incumbent.stores.redis.resp import RequestBatch
from incumbent.stores.redis.site import RedisSite

Reply: TypeAlias = "list[Any] | Silent"
"""A node's replies to the requests of a step, or the reason why there are none."""
Enough: TypeAlias = "Callable[[Sequence[Reply | None]], bool]"
"""Whether the replies so far (None: not yet) suffice."""

NOT_ASKED: Final = Silent(StoreUnavailable("it was not asked"), sent=False)
_OWED_MAX: Final = 4096
_REMEMBERED: Final = 4096
_RETRY_MOST: Final = 0.5
"""Most seconds between tries to connect to a node while the others are a majority."""
_FORMAT: Final = re.compile(rb"incumbent(\d+) ")


@dataclass(slots=True, eq=False)
class Quorum:
    """The state that all operations of one engine share. `where`: its URL for messages."""

    dialect: QuorumDialect
    clock: BallotClock
    names: tuple[str, ...]
    where: str
    members: Members = field(init=False)
    """Which nodes answer, for people: no decision rests on it."""
    taken_back: dict[tuple[Key, str], int] = field(default_factory=dict)
    """For claims that may be tried again: the largest ballot that nodes were asked to take back.

    That request may still be on its way, so a value stored with such a ballot is no vote.
    """
    given_up: dict[tuple[Key, str], int] = field(default_factory=dict)
    """Claims that were given up with an unknown outcome, and must not be tried again."""

    def __post_init__(self) -> None:
        self.members = Members(self.where, self.names, self.need, asks_all=True)

    @property
    def need(self) -> int:
        """The number of nodes in a majority."""
        return ballots.majority_of(len(self.names))

    @property
    def epoch(self) -> str:
        """The epoch of all leases: the list of members, not the incarnation of any member."""
        return self.dialect.members.decode()

    def is_in_doubt(self, key: Key, claim: str) -> bool:
        """Whether votes of the claim that do not count may be stored, or on their way."""
        return (key, claim) in self.taken_back or (key, claim) in self.given_up

    @staticmethod
    def remember(kept: dict[tuple[Key, str], int], key: Key, claim: str, ballot: int) -> None:
        """Keep the largest ballot of a claim, among the last few thousand claims."""
        kept[key, claim] = max(ballot, kept.get((key, claim), 0))
        if len(kept) > _REMEMBERED:
            # By a copy of the keys, which is one step: other threads add to it meanwhile.
            for oldest in [*kept][: _REMEMBERED // 4]:
                kept.pop(oldest, None)


class Panel(ABC):
    """The access of one operation to all nodes, in their order."""

    quorum: Quorum

    @property
    @abstractmethod
    def born(self) -> Sequence[float | None]:
        """For each node, the instant since which its server surely runs; None: not connected."""

    @property
    @abstractmethod
    def blank(self) -> bool:
        """Whether all nodes are connected, and none had a marker when it was connected."""

    @abstractmethod
    async def open(self, until: float) -> None:
        """Connect as many nodes as possible. An unreachable node is Silent, and raises nothing."""

    @abstractmethod
    async def ask(
        self, steps: Sequence[RequestBatch | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """Write each node's step (None: nothing) to it, then read the replies of all nodes.

        Ends when `enough` is true, when no reply is missing, or at `until`. A node that has not
        replied by then is Silent; a late reply is never mistaken for the reply to a later step.
        """

    @abstractmethod
    async def rest(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        """Note that a node did not confirm a revocation: repeat it when the node replies again."""

    def vote_step(self, node: int, request: bytes) -> RequestBatch:
        """The step that asks a node for its vote."""
        return RequestBatch(request, 1)

    async def ask_all(
        self, request: bytes, until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """Send every node the same request: see `ask`."""
        return await self.ask([RequestBatch(request, 1)] * len(self.quorum.names), until, enough)


@dataclass(slots=True)
class QuorumNode:
    """One member of the quorum, shared by all operations of a process."""

    index: int
    site: RedisSite
    failures: int = 0
    retry_at: float = 0.0
    why: StoreError | None = None
    defect: Exception | None = None
    """An error of our own code in place of `why`: raised where it costs the majority."""
    met: bool = False
    blank: bool = False
    """Whether the node had no marker when the last connection was made."""
    owed: dict[tuple[Key, str], int] = field(default_factory=dict)
    """Votes to take back when the node can be reached again."""

    def failed(self, error: Exception) -> None:
        """Note that a connection failed, and delay the next try."""
        self.why = error if isinstance(error, StoreError) else StoreUnavailable(repr(error))
        self.defect = None if self.why is error else error
        self.failures += 1
        self.retry_at = _now() + min(_RETRY_MOST, 0.01 * 2.0 ** min(self.failures, 10))

    def silent(self) -> Silent:
        """The answer of a node without a connection."""
        error = self.why or StoreUnavailable(f"{self.site.where} has not answered yet")
        return Silent(error, sent=False, coming=self.why is None)

    def owes(self, key: Key, claim: str, ballot: int) -> None:
        """See Panel.owe."""
        if len(self.owed) >= _OWED_MAX:
            # A node that is away for so long: these votes end with their ttl.
            self.owed.clear()
        self.owed[key, claim] = max(ballot, self.owed.get((key, claim), 0))

    def take_owed(self) -> list[tuple[Key, str, int]]:
        """The votes to take back at this node; from now on the caller is responsible for them."""
        owed, self.owed = self.owed, {}
        return [(key, claim, ballot) for (key, claim), ballot in owed.items()]

    def welcomed(self, quorum: Quorum, unix_us: int, marker: bytes | None) -> None:
        """Note a new connection, and the time and marker that the node has just reported."""
        self.failures, self.retry_at, self.why, self.defect, self.met = 0, 0.0, None, None, True
        self.site.served, self.blank = True, marker is None
        quorum.clock.learn(self.index, unix_us, _now())
        quorum.dialect.learn_marker(marker)


# -- evaluating replies ------------------------------------------------------------------------


def replied_by_most(replies: Sequence[Reply | None], holds: Callable[[Any], bool]) -> bool:
    """Whether `holds` is true of the replies of a majority."""
    first = [reply[0] for reply in replies if reply is not None and not isinstance(reply, Silent)]
    return sum(map(holds, first)) >= ballots.majority_of(len(replies))


def answered_by_most(replies: Sequence[Reply | None]) -> bool:
    """Whether a majority has replied without an error."""
    return replied_by_most(replies, lambda reply: not isinstance(reply, Exception))


def agreed_by_most(replies: Sequence[Reply | None]) -> bool:
    """Whether a majority has replied 1, or a majority has replied 0."""
    return any(replied_by_most(replies, partial(eq, word)) for word in (1, 0))


def silent_of(reply: Reply, where: str) -> Silent:
    """The answer for a node that gave no usable reply."""
    if isinstance(reply, Silent):
        return reply
    try:
        return Silent(*node_failure(reply[0], where))
    except Mismatch as error:
        return Silent(OutcomeUnknown(f"{where}: {error}"), sent=True)


def strangers(quorum: Quorum, node: int, marker: object) -> StoreUnavailable:
    """The exception for a node whose marker names other members or another format."""
    found = _FORMAT.match(marker) if isinstance(marker, bytes) else None
    if found is None or int(found[1]) != RECORD_FORMAT:
        which = "an unknown format" if found is None else f"format {found[1].decode()}"
        return StoreUnavailable(
            f"{quorum.names[node]} keeps records of {which}, and this version of incumbent speaks"
            f" format {RECORD_FORMAT}: stop all instances of the other version first, wait for the"
            f" longest ttl and delete {MARKER} on all servers; or use other servers, or another"
            " database of these",
            permanent=True,
        )
    return StoreUnavailable(
        f"{quorum.names[node]} belongs to a quorum with other members than {quorum.where}: two"
        " lists that share a server could both grant; use one list everywhere (see members= and"
        " changing the members in the documentation)",
        permanent=True,
    )


def no_majority(
    quorum: Quorum,
    answers: Sequence[Answer | None],
    *,
    perhaps: bool,
    retry_after: float | None = None,
) -> StoreError:
    """The exception for an operation without a majority: lists all answers but None (usable)."""
    reasons = "; ".join(
        _reason(quorum, node, answer) for node, answer in enumerate(answers) if answer is not None
    )
    errors = [answer.why for answer in answers if isinstance(answer, Silent)]
    after = [error.retry_after for error in errors if error.retry_after is not None]
    after += [no.left for no in answers if isinstance(no, No) and no.kind == "young"]
    kind = OutcomeUnknown if perhaps else StoreUnavailable
    doubt = "; perhaps it was applied" if perhaps else ""
    wanted = f"{quorum.need} of {len(quorum.names)} needed"
    return kind(
        f"no majority of {quorum.where} ({wanted}){doubt}: {reasons}",
        permanent=sum(error.permanent for error in errors) > len(quorum.names) - quorum.need,
        retry_after=retry_after if retry_after is not None else max(after, default=None),
    )


def _reason(quorum: Quorum, node: int, answer: Answer) -> str:
    if answer is NOT_ASKED:
        return f"{quorum.names[node]}: was not asked"
    if isinstance(answer, Silent):
        return str(answer.why)
    if isinstance(answer, Vote):
        return f"{quorum.names[node]}: would grant it"
    if answer.kind == UNFIT:
        return answer.raw.decode()
    left = f" for another {say_seconds(answer.left)}" if answer.left >= 0 else ""
    return f"{quorum.names[node]}: {_KINDS[answer.kind]}{left}"


_KINDS: Final = {
    "held": "held by another",
    "paused": "paused",
    "closed": "closed",
    "reserved": "reserved",
    "low": "has voted for a larger ballot",
    "high": "its clock is behind the other servers' clocks",
    "ahead": "its clock is ahead of the other servers' clocks, or it lost its data",
    "young": "it started a short while ago, or is new, and does not vote (wait, or if nobody can"
    " hold a lease from before, name restart_wait=0 in the URL)",
    "promised": "would accept it",
    "forgot": "lost its data, and does not know what was kept beside the lease",
    "members": "belongs to another quorum",
}
