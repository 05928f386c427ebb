"""The nodes of a quorum: what operations share, how one asks all nodes, and the errors without a
majority.

An operation is a coroutine over a `Panel`: it asks all nodes, in rounds. `sync` and `aio` each have
a panel over real connections, the simulator has one over simulated nodes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import eq
from typing import Any, Final, TypeAlias

from incumbent.clock import now as _now
from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.pool import Broken, Mismatch, exchange_error
from incumbent.stores.quorum import ballots
from incumbent.stores.quorum.ballots import Answer, BallotClock, No, Silent, Vote
from incumbent.stores.quorum.dialect import (
    LOADS,
    MARKER,
    RECORD_FORMAT,
    QuorumDialect,
    node_failure,
)
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.resp import Step, as_eval, is_forgotten, pack
from incumbent.stores.redis.server import Facts, greeting
from incumbent.stores.redis.site import Site

Reply: TypeAlias = "list[Any] | Silent"
"""A node's replies to the requests of a step, or why there are none."""
Enough: TypeAlias = "Callable[[Sequence[Reply | None]], bool]"
"""Whether the replies that are there (None: not yet) suffice."""

NOT_ASKED: Final = Silent(StoreUnavailable("it was not asked"), sent=False)
_GLANCE: Final = 0.01
"""Seconds for which the other nodes are waited for once the replies suffice."""
_OWED_MAX: Final = 4096
_REMEMBERED: Final = 4096
_RETRY_MOST: Final = 0.5
"""Seconds between tries to connect to a node that others can do without."""
_FORMAT: Final = re.compile(rb"incumbent(\d+) ")


@dataclass(slots=True, eq=False)
class Quorum:
    """What all operations of one engine share. `where`: its URL for people."""

    dialect: QuorumDialect
    clock: BallotClock
    names: tuple[str, ...]
    where: str
    taken_back: dict[tuple[Key, str], int] = field(default_factory=dict)
    """Of claims that may be asked again: the largest ballot that was asked to be taken back.

    That request may still be on its way, so what is stored at such a ballot is no vote.
    """
    given_up: dict[tuple[Key, str], int] = field(default_factory=dict)
    """Claims that were given up in doubt, which may not be asked again."""

    @property
    def need(self) -> int:
        """How many nodes are a majority."""
        return ballots.majority_of(len(self.names))

    @property
    def epoch(self) -> str:
        """A lease of this quorum belongs to its list of members, and to no incarnation of one."""
        return self.dialect.members.decode()

    def is_doubtful(self, key: Key, claim: str) -> bool:
        """Whether votes of the claim that count for nothing may be there, or on their way."""
        return (key, claim) in self.taken_back or (key, claim) in self.given_up

    @staticmethod
    def remember(kept: dict[tuple[Key, str], int], key: Key, claim: str, ballot: int) -> None:
        """Keep the largest ballot of a claim, among the last few thousand claims."""
        kept[key, claim] = max(ballot, kept.get((key, claim), 0))
        while len(kept) > _REMEMBERED:
            kept.pop(next(iter(kept)), None)


class Panel(ABC):
    """One operation's way to all nodes, in their order."""

    quorum: Quorum

    @property
    @abstractmethod
    def born(self) -> Sequence[float | None]:
        """Of each node, since when its server certainly runs; None: there is no connection."""

    @property
    @abstractmethod
    def blank(self) -> bool:
        """Whether all nodes are connected, and none had a marker when that was done."""

    @abstractmethod
    async def open(self, until: float) -> None:
        """Connect as far as it goes. Never raises: a node that cannot be reached is Silent."""

    @abstractmethod
    async def ask(
        self, steps: Sequence[Step | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """Write each node's step (None: nothing for it) to all, then read their replies.

        Ends when `enough` is true, when no reply is missing, or at `until`. A node that has not
        replied by then is Silent; a late reply is never taken for another one.
        """

    @abstractmethod
    async def rest(self, seconds: float) -> None:
        """Wait."""

    @abstractmethod
    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        """This node did not confirm that a vote was taken back: repeat it when it replies again."""

    async def ask_all(
        self, request: bytes, until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """Ask every node the same: see `ask`."""
        return await self.ask([Step(request, 1)] * len(self.quorum.names), until, enough)


@dataclass(slots=True)
class Node:
    """One member, for all operations of a process."""

    index: int
    site: Site
    failures: int = 0
    retry_at: float = 0.0
    why: StoreError | None = None
    met: bool = False
    owed: dict[tuple[Key, str], int] = field(default_factory=dict)
    """Votes to take back when it can be reached again."""

    def failed(self, error: StoreError) -> None:
        """A connection could not be made: the next try is not before a while."""
        self.why = error
        self.failures += 1
        self.retry_at = _now() + min(_RETRY_MOST, 0.01 * 2.0 ** min(self.failures, 10))

    def silent(self) -> Silent:
        """Why there is no connection."""
        error = self.why or StoreUnavailable(f"{self.site.where} has not answered yet")
        return Silent(error, sent=False)

    def owes(self, key: Key, claim: str, ballot: int) -> None:
        """See Panel.owe."""
        if len(self.owed) >= _OWED_MAX:
            self.owed.clear()
        self.owed[key, claim] = max(ballot, self.owed.get((key, claim), 0))

    def take_owed(self) -> list[tuple[Key, str, int]]:
        """What it has to be told, as the caller's own task from now on."""
        owed, self.owed = self.owed, {}
        return [(key, claim, ballot) for (key, claim), ballot in owed.items()]

    def welcomed(self, quorum: Quorum, reply: Welcome, at: float) -> None:
        """A connection was made, and this came on it at instant `at`."""
        self.failures, self.retry_at, self.why, self.met = 0, 0.0, None, True
        self.site.proved = True
        quorum.clock.learn(self.index, reply.unix_us, at)
        quorum.dialect.learn_marker(reply.marker)


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a node says when a connection is made: its facts, its time (unix us), and its marker."""

    facts: Facts
    unix_us: int
    marker: bytes | None


def welcome(site: Site) -> Generator[Step, list[Any], Welcome]:
    """Look at a node and leave the scripts there. Raises StoreUnavailable for an unfit one."""
    facts = yield from greeting(site.where, allow_eviction=site.allow_eviction, proved=site.proved)
    step = Step(b"".join((*LOADS, pack("TIME"), pack("GET", MARKER))), len(LOADS) + 2)
    *_, time, marker = yield step
    for reply in (time, marker):
        if isinstance(reply, Exception):
            raise answered_error(str(reply), site.where, proved=site.proved)
    return Welcome(facts, int(time[0]) * 1_000_000 + int(time[1]), marker)


class ConnectedPanel(Panel):
    """Asking all nodes over real connections: written once for both sides.

    A step is written to all nodes first. Then the replies are read as they come.
    """

    connections: Sequence[Any | None]

    def __init__(self, quorum: Quorum, nodes: Sequence[Node]) -> None:
        self.quorum, self.nodes = quorum, nodes

    @abstractmethod
    def _write(self, node: int, step: Step, until: float) -> Silent | None:
        """Write a step to a node that is connected; why not, if that failed."""

    @abstractmethod
    async def _read_some(
        self,
        replies: list[Reply | None],
        missing: Sequence[int],
        steps: Sequence[Step | None],
        by: float,
        until: float,
    ) -> bool:
        """Wait for replies that are missing, and put them in; False if none came by `by`."""

    @abstractmethod
    def _is_slow(self, node: int) -> bool:
        """Whether nobody waited for its last reply, which has not come yet."""

    @abstractmethod
    def _leave(self, node: int, step: Step | None) -> None:
        """Nobody waits for this reply any more."""

    @property
    def born(self) -> list[float | None]:
        return [None if each is None else each.born for each in self.connections]

    async def ask(
        self, steps: Sequence[Step | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        return await self._read_all(self._write_all(steps, until), steps, until, enough)

    def _write_all(self, steps: Sequence[Step | None], until: float) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for node, step in enumerate(steps):
            if self.connections[node] is None:
                replies.append(self.nodes[node].silent())
            else:
                replies.append(NOT_ASKED if step is None else self._write(node, step, until))
        return replies

    async def _read_all(
        self,
        replies: list[Reply | None],
        steps: Sequence[Step | None],
        until: float,
        enough: Enough | None,
        late: int = -1,
    ) -> list[Reply]:
        """`late`: a node that has had its glance already."""
        by = until
        while None in replies:
            missing = [node for node, reply in enumerate(replies) if reply is None]
            if enough is not None and len(missing) < len(replies) and enough(replies):
                if all(node == late or self._is_slow(node) for node in missing):
                    break
                by = min(until, _now() + _GLANCE) if by == until else by
            if not await self._read_some(replies, missing, steps, by, until):
                break
        return [
            self._late(node, steps[node]) if reply is None else reply
            for node, reply in enumerate(replies)
        ]

    def _late(self, node: int, step: Step | None) -> Silent:
        self._leave(node, step)
        return self._failed(node, Broken("no answer in time", sent=True))

    def _failed(self, node: int, error: Exception) -> Silent:
        """The connection brought no reply."""
        sent = not isinstance(error, Broken) or error.sent
        return Silent(exchange_error(error, self.nodes[node].site.where), sent=sent)

    def _replied(self, node: int, step: Step, reply: list[Any], until: float) -> Reply | None:
        """The reply; or None after the step was sent again with the script that was forgotten."""
        if step.answers != 1 or not is_forgotten(reply[0]):
            return reply
        return self._write(node, Step(as_eval(step.payload), 1), until)


# -- what the replies come to ------------------------------------------------------------------


def replied_by_most(replies: Sequence[Reply | None], holds: Callable[[Any], bool]) -> bool:
    """Whether the replies of a majority are such."""
    first = [reply[0] for reply in replies if reply is not None and not isinstance(reply, Silent)]
    return sum(map(holds, first)) >= ballots.majority_of(len(replies))


def answered_by_most(replies: Sequence[Reply | None]) -> bool:
    """Whether a majority has replied, and no errors."""
    return replied_by_most(replies, lambda reply: not isinstance(reply, Exception))


def agreed_by_most(replies: Sequence[Reply | None]) -> bool:
    """Whether a majority has replied 1, or 0."""
    return any(replied_by_most(replies, partial(eq, word)) for word in (1, 0))


def silent_of(reply: Reply, where: str) -> Silent:
    """Why a node gave no usable reply."""
    if isinstance(reply, Silent):
        return reply
    try:
        return Silent(*node_failure(reply[0], where))
    except Mismatch as error:
        return Silent(OutcomeUnknown(f"{where}: {error}"), sent=True)


def strangers(quorum: Quorum, node: int, marker: object) -> StoreUnavailable:
    """The exception for a node whose marker is of other members, or of another format."""
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
    answers: Sequence[Answer],
    *,
    perhaps: bool,
    retry_after: float | None = None,
) -> StoreError:
    """The exception for an operation that too few nodes answered; names each that did not."""
    reasons = "; ".join(_reason(quorum, node, answer) for node, answer in enumerate(answers))
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
