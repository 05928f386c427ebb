"""Renewals at the nodes of a cluster: one script call a slot, all of a node in one round trip.

Most leases have a slot of their own, so that ten thousand of them take thousands of calls. All that
changes from one time to the next is the echo: the rest is kept beside the Batch. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Protocol

import hiredis

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Gone, Renewal, Renewed, RenewOutcome
from incumbent.stores.redis.cluster import ASKING, slot_of
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import is_forgotten
from incumbent.stores.redis.errors import Mismatch, answered_error
from incumbent.stores.redis.hosts import Address, say_address
from incumbent.stores.redis.incarnation import TOKEN_JUMP
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.renewals import new_echo, outcomes_of, packed
from incumbent.stores.redis.resp import Program, Step, as_eval

__all__ = ["Part", "renew_part", "slot_of_key"]

_CLOCKS: Final = 10.0 + 2 * TOKEN_JUMP
"""Seconds by which a token may be ahead of the clock of another node."""
_AT_ONCE: Final = 500
"""Leases renewed by one script call."""


class Incarnation(Protocol):
    """A connection knows which incarnation of the node it leads to, and since when that is one."""

    epoch: str
    born: float


class Part:
    """Renewals that go to one node: their places among all. `by_asking`: their slots go there."""

    __slots__ = ("address", "by_asking", "places", "ready")

    def __init__(self, address: Address | None, *, by_asking: bool) -> None:
        self.address = address
        self.by_asking = by_asking
        self.places = array("l")
        self.ready: _Ready | None = None


class _Ready(NamedTuple):
    """What is sent to one incarnation, with an echo between all `pieces`.

    `order`: the places of a part as they are sent; of these, `ends[i]` to `ends[i + 1]` by one
    call. `lost`: the places of those that this incarnation did not grant.
    """

    epoch: str
    pieces: list[bytes]
    order: array[int]
    ends: array[int]
    lost: array[int]


def slot_of_key(naming: Naming, renewal: Renewal) -> int:
    """The slot of a lease, past the cache of names, which a thousand of them would only empty."""
    return slot_of(naming.keys_of(renewal.key)[0].decode())


def renew_part(
    commands: Commands, renewals: Sequence[Renewal], part: Part, wire: Incarnation
) -> Program[Sequence[tuple[int, RenewOutcome | StoreError]] | None]:
    """Renew the renewals of one part; a call that fails costs the others nothing.

    Returns what became of each place, or None if all of them were renewed and had no notices.
    """
    ready = part.ready
    if ready is None or ready.epoch != wire.epoch:
        ready = part.ready = _prepare(commands, renewals, part, wire)
    lost = [(at, _RESTARTED) for at in ready.lost]
    if not ready.order:
        return lost
    echo, packed_echo = new_echo(renewals[ready.order[0]])
    answers = yield from _asked(commands, renewals, part, ready, packed_echo)
    if not lost and _are_renewed(ready, echo, answers):
        return None
    outcomes: list[tuple[int, RenewOutcome | StoreError]] = [*lost]
    for places, answer in zip(_calls(ready), answers, strict=True):
        outcomes += zip(places, _read(commands, renewals, places, echo, answer), strict=True)
    return outcomes


_RENEWED: Final = Renewed()
_RESTARTED: Final = Gone("store_restarted")


def _asked(
    commands: Commands, renewals: Sequence[Renewal], part: Part, ready: _Ready, packed_echo: bytes
) -> Program[list[Any]]:
    """The answer to each call, once those have been repeated whose script was forgotten."""
    # One that goes by asking has two requests; the first one's answer says nothing.
    each = 2 if part.by_asking else 1
    count = len(ready.ends) - 1
    answers = (yield Step(packed_echo.join(ready.pieces), count * each))[each - 1 :: each]
    again = [at for at, answer in enumerate(answers) if is_forgotten(answer)]
    if again:
        calls = _calls(ready)
        requests = [
            _before(part)
            + as_eval(packed_echo.join(packed(commands.naming, _some(renewals, calls[at]))))
            for at in again
        ]
        repeated = yield Step(b"".join(requests), len(again) * each)
        for at, answer in zip(again, repeated[each - 1 :: each], strict=True):
            answers[at] = answer
    return answers


def _are_renewed(ready: _Ready, echo: bytes, answers: list[Any]) -> bool:
    return answers == [[echo, *[1] * (end - start)] for start, end in pairwise(ready.ends)]


def _read(
    commands: Commands, renewals: Sequence[Renewal], places: Sequence[int], echo: bytes, answer: Any
) -> Sequence[RenewOutcome | StoreError]:
    batch = _some(renewals, places)
    if type(answer) is list:
        return outcomes_of(batch, echo, answer)
    if not isinstance(answer, hiredis.ReplyError):
        raise Mismatch(f"an answer of type {type(answer).__name__} was not expected")
    at = commands.naming.of(batch[0].key).main
    return [answered_error(str(answer), commands.where, at)] * len(batch)


def _some(renewals: Sequence[Renewal], places: Sequence[int]) -> list[Renewal]:
    return [renewals[at] for at in places]


def _calls(ready: _Ready) -> list[Sequence[int]]:
    return [ready.order[start:end] for start, end in pairwise(ready.ends)]


# -- preparing ------------------------------------------------------------------------------------


def _prepare(
    commands: Commands, renewals: Sequence[Renewal], part: Part, wire: Incarnation
) -> _Ready:
    node = say_address(part.address) if part.address else ""
    since = clock.wall() - (clock.now() - wire.born)
    slots: dict[int, list[int]] = {}
    lost = array("l")
    for at in part.places:
        if _is_known(renewals[at], node, wire.epoch, since):
            slots.setdefault(slot_of_key(commands.naming, renewals[at]), []).append(at)
        else:
            lost.append(at)
    calls = [
        places[start : start + _AT_ONCE]
        for places in slots.values()
        for start in range(0, len(places), _AT_ONCE)
    ]
    pieces = _pieces(commands, renewals, part, calls)
    order = array("l", [at for places in calls for at in places])
    ends = array("l", accumulate(map(len, calls), initial=0))
    return _Ready(wire.epoch, pieces, order, ends, lost)


def _pieces(
    commands: Commands, renewals: Sequence[Renewal], part: Part, calls: list[list[int]]
) -> list[bytes]:
    """All requests, cut where the echoes come."""
    before = _before(part)
    pieces, last = [], b""
    for places in calls:
        head, tail = packed(commands.naming, _some(renewals, places))
        pieces.append(b"".join((last, before, head)))
        last = tail
    return [*pieces, last]


def _before(part: Part) -> bytes:
    return ASKING if part.by_asking else b""


def _is_known(renewal: Renewal, node: str, epoch: str, since: float) -> bool:
    """Whether a lease may be renewed at this incarnation of the node.

    A lease that another node granted came with its slot, record and all. Not so if this node was
    made a master after the grant: then it was a replica of the other, and may lack the newest.
    """
    granted_by, _, granted_in = renewal.epoch.rpartition(" ")
    if granted_by == node:
        return granted_in == epoch
    return ":" not in epoch or since + _CLOCKS < renewal.token / 1e6
