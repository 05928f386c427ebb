"""Renewals: the requests to renew.lua, and the meaning of its replies. Pure.

Ten thousand leases may be renewed five times a ttl, and only the echo changes from one time to the
next: the other bytes packed for a Batch are kept with it and sent again.

In a cluster one script call has the keys of one slot. Most leases have a slot of their own, so that
ten thousand of them take thousands of calls; those to one node share one round trip.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import hiredis

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Batch, Gone, Renewal, Renewed, RenewOutcome
from incumbent.net.pool import Mismatch
from incumbent.rules.notices import notices_for
from incumbent.stores.redis.incarnation import TOKEN_JUMP, ServerFacts
from incumbent.stores.redis.options import Address, say_address
from incumbent.stores.redis.records import Naming, slot_of, value_start
from incumbent.stores.redis.resp import (
    ASKING,
    SCRIPTS,
    RequestBatch,
    RespProgram,
    milliseconds,
    pack_arguments,
)
from incumbent.stores.redis.site import Packer, answered_error

_BATCH: Final = 500
"""Leases renewed by one script call: the server serves no other client meanwhile (about 2 ms)."""
_PART: Final = b"$%d\r\n%b\r\n"
_RENEWED: Final = Renewed()
_GONE: Final = Gone()
_RESTARTED: Final = Gone("store_restarted")
_echoes = count()


class _ScriptCall(NamedTuple):
    """One script call: the indexes of its renewals, and its request without the echo."""

    indexes: Sequence[int]
    before: bytes
    after: bytes

    def request(self, echo: bytes) -> bytes:
        """Its bytes, with the text that its reply repeats."""
        return b"".join((self.before, _PART % (len(echo), echo), self.after))


def _new_echo(renewal: Renewal) -> bytes:
    """A text that is unique in this process."""
    return f"{renewal.claim}:{next(_echoes)}".encode()


# -- packing and reading ---------------------------------------------------------------------------


def _calls_of(
    naming: Naming, renewals: Sequence[Renewal], indexes: Sequence[int]
) -> list[_ScriptCall]:
    """The calls for the renewals at these indexes."""
    shared = [at for at in indexes if renewals[at].shared]
    alone = [at for at in indexes if not renewals[at].shared] if shared else indexes
    calls = []
    for kind, script in ((alone, "renew"), (shared, "renew:shared")):
        for start in range(0, len(kind), _BATCH):
            part = kind[start : start + _BATCH]
            if part[-1] - part[0] + 1 == len(part):
                # Nearly always true; a range is small, whatever their number.
                part = range(part[0], part[-1] + 1)
            calls.append(_pack_call(naming, renewals, part, script))
    return calls


def _pack_call(
    naming: Naming, renewals: Sequence[Renewal], indexes: Sequence[int], script: str
) -> _ScriptCall:
    batch = [renewals[at] for at in indexes]
    ttl = batch[0].ttl
    arguments = [b"%d" % milliseconds(ttl)]
    for each in batch:
        held = f"{each.claim} {each.token}" if each.shared else value_start(each.claim, each.token)
        arguments.append(held.encode())
    for index, each in enumerate(batch, 1):
        if each.ttl != ttl or each.meta is not None:
            meta = b"-" if each.meta is None else b"=" + each.meta
            arguments += (b"%d" % index, b"%d" % milliseconds(each.ttl), meta)
    # Without the cache of names, which a thousand renewals would only empty.
    keys = [key for each in batch for key in naming.keys_of(each.key, each.shared)]
    before = SCRIPTS[script].open_call(keys, 1 + len(arguments))
    return _ScriptCall(indexes, before, pack_arguments(*arguments))


def _read_call(
    call: _ScriptCall,
    renewals: Sequence[Renewal],
    echo: bytes,
    reply: list[Any],
    outcomes: list[RenewOutcome | StoreError] | list[RenewOutcome],
) -> None:
    """Note the outcome of each renewal. Raises Mismatch if the reply is another call's."""
    # One answer of ones and zeros looks like another: only the echo says whose it is.
    if len(reply) != len(call.indexes) + 1 or reply[0] != echo:
        raise Mismatch(f"expected the answer to {len(call.indexes)} renewals")
    for at, each in zip(call.indexes, reply[1:], strict=True):
        if each == 1:
            outcomes[at] = _RENEWED
        elif each == 0:
            outcomes[at] = _GONE
        else:
            pause, resign = (raw and raw.partition(b" ")[2] for raw in each)
            outcomes[at] = Renewed(notices_for(renewals[at].token, pause, resign))


# -- at one server ---------------------------------------------------------------------------------


class _PreparedCalls(NamedTuple):
    """Packed calls, with the naming and the server's incarnation that they are for."""

    naming: Naming
    epoch: str
    calls: Sequence[_ScriptCall]


def renew_program(
    packer: Packer, renewals: Sequence[Renewal], epoch: str
) -> RespProgram[list[RenewOutcome]]:
    """Renew the leases that this incarnation of the server granted; the others are gone."""
    outcomes: list[RenewOutcome] = [_RESTARTED] * len(renewals)
    calls = _prepared(packer.naming, renewals, epoch)
    if not calls:
        return outcomes
    # All are sent together: waiting for each answer would delay a process that is already late.
    echoes = [_new_echo(renewals[call.indexes[0]]) for call in calls]
    payload = b"".join(map(_ScriptCall.request, calls, echoes))
    replies = yield RequestBatch(payload, len(calls))
    for call, echo, reply in zip(calls, echoes, replies, strict=True):
        if type(reply) is not list:
            raise packer.unusable(reply, renewals[call.indexes[0]].key)
        _read_call(call, renewals, echo, reply, outcomes)
    return outcomes


def _prepared(naming: Naming, renewals: Sequence[Renewal], epoch: str) -> Sequence[_ScriptCall]:
    kept = renewals.prepared if isinstance(renewals, Batch) else None
    if isinstance(kept, _PreparedCalls) and kept.naming is naming and kept.epoch == epoch:
        return kept.calls
    # Those of another incarnation are lost, whatever is stored: others may have had the name since.
    granted_here = [at for at, renewal in enumerate(renewals) if renewal.epoch == epoch]
    calls = _calls_of(naming, renewals, granted_here)
    if isinstance(renewals, Batch):
        renewals.prepared = _PreparedCalls(naming, epoch, calls)
    return calls


# -- at one node of a cluster ----------------------------------------------------------------------


_CLOCKS: Final = 10.0 + 2 * TOKEN_JUMP
"""Seconds by which a token may be ahead of the clock of another node."""


class NodePart:
    """Renewals at one node: their indexes among all. `by_asking`: their slots are moving there."""

    __slots__ = ("address", "by_asking", "indexes", "ready")

    def __init__(self, address: Address | None, *, by_asking: bool) -> None:
        self.address = address
        self.by_asking = by_asking
        self.indexes = array("l")
        self.ready: _ReadyCalls | None = None


class _ReadyCalls(NamedTuple):
    """The calls for one incarnation; `lost`: the indexes of leases that it did not grant."""

    epoch: str
    calls: Sequence[_ScriptCall]
    lost: Sequence[int]


def slot_of_lease(naming: Naming, renewal: Renewal) -> int:
    """The slot of a lease, not by the cache of names, which a thousand leases would only empty."""
    return slot_of(naming.keys_of(renewal.key)[0].decode())


def renew_part(
    packer: Packer,
    renewals: Sequence[Renewal],
    part: NodePart,
    facts: ServerFacts,
    outcomes: list[RenewOutcome | StoreError],
) -> RespProgram[None]:
    """Renew the leases of one part; note the outcome of each at its index.

    A call that fails does not affect the others.
    """
    ready = part.ready
    if ready is None or ready.epoch != facts.epoch:
        ready = part.ready = _prepare_part(packer.naming, renewals, part, facts)
    for at in ready.lost:
        outcomes[at] = _RESTARTED
    if not ready.calls:
        return
    echo = _new_echo(renewals[ready.calls[0].indexes[0]])
    # With ASKING each call is two requests; the answer to the first says nothing.
    before, each = (ASKING, 2) if part.by_asking else (b"", 1)
    payload = b"".join([before + call.request(echo) for call in ready.calls])
    answers = (yield RequestBatch(payload, len(ready.calls) * each))[each - 1 :: each]
    for call, answer in zip(ready.calls, answers, strict=True):
        if type(answer) is list:
            _read_call(call, renewals, echo, answer, outcomes)
        elif isinstance(answer, hiredis.ReplyError):
            main = packer.naming.of(renewals[call.indexes[0]].key).lease
            for at in call.indexes:
                outcomes[at] = answered_error(str(answer), packer.where, main)
        else:
            raise Mismatch(f"an answer of type {type(answer).__name__} was not expected")


def _prepare_part(
    naming: Naming, renewals: Sequence[Renewal], part: NodePart, facts: ServerFacts
) -> _ReadyCalls:
    node = say_address(part.address) if part.address else ""
    since = clock.wall() - (clock.now() - facts.born)
    slots: dict[int, list[int]] = {}
    lost = array("l")
    for at in part.indexes:
        if _is_known(renewals[at], node, facts.epoch, since):
            slots.setdefault(slot_of_lease(naming, renewals[at]), []).append(at)
        else:
            lost.append(at)
    calls = [call for indexes in slots.values() for call in _calls_of(naming, renewals, indexes)]
    return _ReadyCalls(facts.epoch, calls, lost)


def _is_known(renewal: Renewal, node: str, epoch: str, since: float) -> bool:
    """Whether a lease may be renewed at this incarnation of the node."""
    # A lease that another node granted came here with its whole slot. Not if this node became a
    # master after the grant: it was a replica of the other then, and may lack the newest leases.
    granted_by, _, granted_in = renewal.epoch.rpartition(" ")
    if granted_by == node:
        return granted_in == epoch
    return ":" not in epoch or since + _CLOCKS < renewal.token / 1e6
