"""Places in the line of those who wait: what is said to the server, and what it says. Pure.

Each process has an inbox, a channel of its own. In it the server names the claim that it speaks to
by its first 16 letters, its id. `turn <id> 0`: the lease is free, and it is the first. `look <id>
<ms>`: look by then, if nothing is heard before. `held <id> <ms>`: another holds the lease for so
long, and the first in line is there to look then. All of these are hints: a lease is only ever the
answer to a take.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final, NamedTuple

from incumbent.model import Ask, Queued, Refused
from incumbent.stores.redis.resp import milliseconds

_ID: Final = 16
_LINE, _BOTH = "line", "both"
_HELD: Final = b"held"
_WORDS: Final = (b"turn", b"look", _HELD)


class Place(NamedTuple):
    """What `Refused.seen` says of one in line.

    `looks_on`: it also wants to hear of all that happens to the name; `at`: when the server wrote
    the place down (microseconds of its clock); `epoch`: the incarnation of that server.
    """

    id: str
    mark: str
    at: int
    epoch: str
    looks_on: bool


class Call(NamedTuple):
    """A word to one in line: look in `seconds`.

    `rest`: another one holds the lease for `seconds`, and another one looks.
    """

    id: str
    seconds: float
    rest: bool = False


def new_inbox() -> str:
    """The name of an inbox that nobody else has."""
    return os.urandom(6).hex()


def inbox_channel(inbox: str) -> str:
    """Its channel, as the scripts name it."""
    return f"incumbent:to:{inbox}"


def line_words(inbox: str, ask: Ask, holder: str) -> str:
    """How a place in line is written down, but for the claim; `holder` without blanks."""
    queue = ask.queue
    if queue is None:
        return "-"
    way = "f" if queue.fair else "b"
    return f"{inbox} {way} {milliseconds(queue.heartbeat)} {holder}"


def in_line(
    refusal: Refused, claim: str, ask: Ask, now_us: bytes, place: int, epoch: str
) -> Queued:
    """A refusal of one that stands in line."""
    queued = Queued(
        refusal.reason, refusal.holders, refusal.retry_after, refusal.seen, max(0, place)
    )
    if not refusal.seen.startswith("lease ") or refusal.reason == "closed":
        # A pause and a closing end for all at once, and not by a word to one.
        return queued
    what = _BOTH if ask.candidacy > 0 else _LINE
    mark = refusal.seen.removeprefix("lease ")
    return replace(queued, seen=f"{what} {mark} {claim[:_ID]} {now_us.decode()} {epoch}")


def read_place(seen: str) -> Place | None:
    """The place that `seen` speaks of; None if it speaks of anything else."""
    what, *words = seen.split(" ")
    if what not in (_LINE, _BOTH) or len(words) != 4 or not words[2].isdigit():
        return None
    return Place(words[1], words[0], int(words[2]), words[3], what == _BOTH)


def read_call(payload: bytes) -> Call | None:
    """What came into an inbox; None if it makes no sense."""
    what, *words = payload.split(b" ")
    if what not in _WORDS or len(words) != 2 or not words[1].isdigit():
        return None
    return Call(words[0].decode("utf-8", "replace"), int(words[1]) / 1000, what == _HELD)


def id_of(claim: str) -> str:
    """What one in line is called by."""
    return claim[:_ID]
