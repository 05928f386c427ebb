"""Renewals at the nodes of a cluster: one script call a slot, all of a node in one round trip.

Most leases have a slot of their own, so that ten thousand of them take thousands of calls. All that
changes from one time to the next is the echo: the rest is kept beside the Batch. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import hiredis

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Renewal, RenewOutcome
from incumbent.net.pool import Mismatch
from incumbent.stores.redis.cluster import ASKING, slot_of
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import is_forgotten
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.incarnation import TOKEN_JUMP
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.options import Address, say_address
from incumbent.stores.redis.renewals import (
    RESTARTED,
    Call,
    calls_of,
    new_echo,
    note,
    request_of,
)
from incumbent.stores.redis.resp import Program, Step, as_eval

_CLOCKS: Final = 10.0 + 2 * TOKEN_JUMP
"""Seconds by which a token may be ahead of the clock of another node."""


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
    """What is sent to one incarnation; `lost`: the places of what this one did not grant."""

    epoch: str
    calls: Sequence[Call]
    lost: Sequence[int]


def slot_of_key(naming: Naming, renewal: Renewal) -> int:
    """The slot of a lease, past the cache of names, which a thousand of them would only empty."""
    return slot_of(naming.keys_of(renewal.key)[0].decode())


def renew_part(
    commands: Commands,
    renewals: Sequence[Renewal],
    part: Part,
    wire: Incarnation,
    outcomes: list[RenewOutcome | StoreError],
) -> Program[None]:
    """Renew the renewals of one part; note what becomes of each, at its place.

    A call that fails costs the others nothing.
    """
    ready = part.ready
    if ready is None or ready.epoch != wire.epoch:
        ready = part.ready = _prepare(commands.naming, renewals, part, wire)
    for at in ready.lost:
        outcomes[at] = RESTARTED
    if not ready.calls:
        return
    echo = new_echo(renewals[ready.calls[0].places[0]])
    answers = yield from _ask(ready.calls, echo, by_asking=part.by_asking)
    for call, answer in zip(ready.calls, answers, strict=True):
        if type(answer) is list:
            note(call, renewals, echo, answer, outcomes)
        elif isinstance(answer, hiredis.ReplyError):
            main = commands.naming.of(renewals[call.places[0]].key).main
            for at in call.places:
                outcomes[at] = answered_error(str(answer), commands.where, main)
        else:
            raise Mismatch(f"an answer of type {type(answer).__name__} was not expected")


def _ask(calls: Sequence[Call], echo: bytes, *, by_asking: bool) -> Program[list[Any]]:
    """The answer to each call, once those have been repeated whose script was forgotten."""
    # One that goes by asking has two requests; the first one's answer says nothing.
    before, each = (ASKING, 2) if by_asking else (b"", 1)
    requests = [request_of(call, echo) for call in calls]
    payload = b"".join([before + request for request in requests])
    answers = (yield Step(payload, len(calls) * each))[each - 1 :: each]
    again = [at for at, answer in enumerate(answers) if is_forgotten(answer)]
    if again:
        payload = b"".join([before + as_eval(requests[at]) for at in again])
        repeated = yield Step(payload, len(again) * each)
        for at, answer in zip(again, repeated[each - 1 :: each], strict=True):
            answers[at] = answer
    return answers


def _prepare(naming: Naming, renewals: Sequence[Renewal], part: Part, wire: Incarnation) -> _Ready:
    node = say_address(part.address) if part.address else ""
    since = clock.wall() - (clock.now() - wire.born)
    slots: dict[int, list[int]] = {}
    lost = array("l")
    for at in part.places:
        if _is_known(renewals[at], node, wire.epoch, since):
            slots.setdefault(slot_of_key(naming, renewals[at]), []).append(at)
        else:
            lost.append(at)
    calls = [call for places in slots.values() for call in calls_of(naming, renewals, places)]
    return _Ready(wire.epoch, calls, lost)


def _is_known(renewal: Renewal, node: str, epoch: str, since: float) -> bool:
    """Whether a lease may be renewed at this incarnation of the node.

    A lease that another node granted came with its slot, record and all. Not so if this node was
    made a master after the grant: then it was a replica of the other, and may lack the newest.
    """
    granted_by, _, granted_in = renewal.epoch.rpartition(" ")
    if granted_by == node:
        return granted_in == epoch
    return ":" not in epoch or since + _CLOCKS < renewal.token / 1e6
