"""Places in the line of waiters: the words for the server, and the messages from it. Pure.

Each process has an inbox, a channel of its own. A message in it names a waiter by its id, the first
16 letters of its claim. `turn <id> 0`: the lease is free, and this waiter is the first. `look <id>
<ms>`: look (ask the server again) after so long, unless a message comes before. `held <id> <ms>`:
another holds the lease for so long, and the first in line will look then. All of these are hints:
only the answer to a take grants a lease.
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


class LinePlace(NamedTuple):
    """The place of a waiter in line, as `Refused.seen` describes it.

    `looks_on`: the waiter also wants all messages about the name; `at`: when the server stored the
    place (microseconds of its clock); `epoch`: the incarnation of that server.
    """

    id: str
    mark: str
    at: int
    epoch: str
    looks_on: bool


class WaiterCall(NamedTuple):
    """A message to a waiter in line: look in `seconds`.

    `rest`: another holds the lease for `seconds`, and another waiter will look.
    """

    id: str
    seconds: float
    rest: bool = False


def new_inbox() -> str:
    """A unique name for an inbox."""
    return os.urandom(6).hex()


def inbox_channel(inbox: str) -> str:
    """The channel of an inbox, as the scripts name it."""
    return f"incumbent:to:{inbox}"


def line_words(inbox: str, ask: Ask, holder: str) -> str:
    """The words of a place in line that follow the claim; `holder` has no blanks."""
    queue = ask.queue
    if queue is None:
        return "-"
    way = "f" if queue.fair else "b"
    return f"{inbox} {way} {milliseconds(queue.heartbeat)} {holder}"


def in_line(
    refusal: Refused, claim: str, ask: Ask, now_us: bytes, place: int, epoch: str
) -> Queued:
    """The refusal of a waiter in line."""
    queued = Queued(
        refusal.reason, refusal.holders, refusal.retry_after, refusal.seen, max(0, place)
    )
    if not refusal.seen.startswith("lease ") or refusal.reason == "closed":
        # A pause or a closing ends for all waiters at once, without a message to one of them.
        return queued
    what = _BOTH if ask.candidacy > 0 else _LINE
    mark = refusal.seen.removeprefix("lease ")
    return replace(queued, seen=f"{what} {mark} {claim[:_ID]} {now_us.decode()} {epoch}")


def read_place(seen: str) -> LinePlace | None:
    """The place that `seen` describes; None if it describes anything else."""
    what, *words = seen.split(" ")
    if what not in (_LINE, _BOTH) or len(words) != 4 or not words[2].isdigit():
        return None
    return LinePlace(words[1], words[0], int(words[2]), words[3], what == _BOTH)


def read_call(payload: bytes) -> WaiterCall | None:
    """The message in an inbox; None if it cannot be read."""
    what, *words = payload.split(b" ")
    if what not in _WORDS or len(words) != 2 or not words[1].isdigit():
        return None
    return WaiterCall(words[0].decode("utf-8", "replace"), int(words[1]) / 1000, what == _HELD)


def id_of(claim: str) -> str:
    """The id of a waiter in line."""
    return claim[:_ID]
