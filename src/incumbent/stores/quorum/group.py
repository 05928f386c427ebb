"""The quorum as one thing: what all its operations share, and what is said without a majority."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import eq
from typing import Any, Final, NamedTuple

from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.stores.quorum import ballots
from incumbent.stores.quorum.ballots import Answer, BallotClock, No, Silent, Vote
from incumbent.stores.quorum.dialect import MARKER, RECORD_FORMAT, QuorumDialect, node_failure
from incumbent.stores.quorum.panel import NOT_ASKED, Heard
from incumbent.stores.redis.errors import Mismatch

__all__ = [
    "Quorum",
    "agreed_by_most",
    "answered_by_most",
    "no_majority",
    "said_by_most",
    "silent_of",
    "strangers",
]


_FORMAT: Final = re.compile(rb"incumbent(\d+) ")


class Quorum(NamedTuple):
    """What all operations of one engine share. `where`: its URL for people."""

    dialect: QuorumDialect
    clock: BallotClock
    names: tuple[str, ...]
    where: str

    @property
    def need(self) -> int:
        """How many nodes are a majority."""
        return ballots.majority_of(len(self.names))

    @property
    def epoch(self) -> str:
        """A lease of this quorum belongs to its list of members, and to no incarnation of one."""
        return self.dialect.members.decode()


def said_by_most(heard: Sequence[Heard | None], is_it: Callable[[Any], bool]) -> bool:
    """Whether a majority has said such a word."""
    words = [it[0] for it in heard if it is not None and not isinstance(it, Silent)]
    return sum(map(is_it, words)) >= ballots.majority_of(len(heard))


def answered_by_most(heard: Sequence[Heard | None]) -> bool:
    """Whether a majority has answered, and no errors."""
    return said_by_most(heard, lambda word: not isinstance(word, Exception))


def agreed_by_most(heard: Sequence[Heard | None]) -> bool:
    """Whether a majority has answered 1, or 0."""
    return any(said_by_most(heard, partial(eq, word)) for word in (1, 0))


def silent_of(heard: Heard, where: str) -> Silent:
    """What is to be said of a node that gave no usable answer."""
    if isinstance(heard, Silent):
        return heard
    try:
        return Silent(*node_failure(heard[0], where))
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
    said = "; ".join(filter(None, (_reason(quorum, node, it) for node, it in enumerate(answers))))
    mute = [it for it in answers if isinstance(it, Silent)]
    final = sum(it.why.permanent for it in mute) > len(quorum.names) - quorum.need
    after = [it.why.retry_after for it in mute if it.why.retry_after is not None]
    after += [it.left for it in answers if isinstance(it, No) and it.kind == "young"]
    kind = OutcomeUnknown if perhaps else StoreUnavailable
    doubt = "; perhaps it was applied" if perhaps else ""
    wanted = f"{quorum.need} of {len(quorum.names)} needed"
    return kind(
        f"no majority of {quorum.where} ({wanted}){doubt}: {said}",
        permanent=final,
        retry_after=retry_after if retry_after is not None else max(after, default=None),
    )


def _reason(quorum: Quorum, node: int, answer: Any) -> str:
    if answer is NOT_ASKED:
        return f"{quorum.names[node]}: was not asked"
    if isinstance(answer, Silent):
        return str(answer.why)
    if isinstance(answer, Vote):
        return f"{quorum.names[node]}: would grant it"
    if isinstance(answer, No):
        left = f" for another {say_seconds(answer.left)}" if answer.left >= 0 else ""
        return f"{quorum.names[node]}: {_KINDS[answer.kind]}{left}"
    return ""


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
