"""Renewals on Redis: many leases in one script call. Pure.

Ten thousand leases are renewed five times a ttl, and all that changes from one time to the next is
the echo: what was packed for a Batch is kept beside it and sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from incumbent.errors import StoreError
from incumbent.model import Batch, Gone, Renewal, Renewed, RenewOutcome
from incumbent.net.pool import Mismatch
from incumbent.stores.notices import notices_for
from incumbent.stores.redis.commands import Commands, held_by
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.resp import SCRIPTS, Program, Step, milliseconds, pack

_BATCH: Final = 500
"""Leases renewed by one script call: a server serves nobody else meanwhile (about 2 ms)."""
_PART: Final = b"$%d\r\n%b\r\n"
_RENEWED: Final = Renewed()
_GONE: Final = Gone()
RESTARTED: Final = Gone("store_restarted")
_echoes = count()


class Call(NamedTuple):
    """One call of the script: which renewals it is for, and all but the echo of its request."""

    places: Sequence[int]
    head: bytes
    tail: bytes


class _Prepared(NamedTuple):
    """For what server's naming and incarnation the calls were packed."""

    naming: Naming
    epoch: str
    calls: Sequence[Call]


def renew_program(
    commands: Commands, renewals: Sequence[Renewal], epoch: str
) -> Program[list[RenewOutcome]]:
    """Renew what this incarnation of the server granted; it knows nothing of the rest."""
    outcomes: list[RenewOutcome] = [RESTARTED] * len(renewals)
    calls = _prepared(commands.naming, renewals, epoch)
    groups = [calls[at : at + 1] for at in range(len(calls))]
    if isinstance(renewals, Batch) and len(calls) > 1:
        # Of a process that is late, and each answer waited for makes it later: all calls but the
        # first leave together. The first brings the script if the server does not know it.
        groups = [calls[:1], calls[1:]]
    for group in groups:
        echoes = [new_echo(renewals[call.places[0]]) for call in group]
        replies = yield Step(b"".join(map(request_of, group, echoes)), len(group))
        for call, echo, reply in zip(group, echoes, replies, strict=True):
            if type(reply) is not list:
                raise commands.unusable(reply, renewals[call.places[0]].key)
            note(call, renewals, echo, reply, outcomes)
    return outcomes


def new_echo(renewal: Renewal) -> bytes:
    """What no other reply in this process repeats."""
    return f"{renewal.claim}:{next(_echoes)}".encode()


def request_of(call: Call, echo: bytes) -> bytes:
    """As it is sent, with its echo."""
    return b"".join((call.head, _PART % (len(echo), echo), call.tail))


def note(
    call: Call,
    renewals: Sequence[Renewal],
    echo: bytes,
    reply: list[Any],
    outcomes: list[RenewOutcome | StoreError] | list[RenewOutcome],
) -> None:
    """Note what a reply says of each renewal. Raises Mismatch if it is another call's."""
    if len(reply) != len(call.places) + 1 or reply[0] != echo:
        raise Mismatch(f"expected the answer to {len(call.places)} renewals")
    for at, each in zip(call.places, reply[1:], strict=True):
        outcomes[at] = _RENEWED if each == 1 else _outcome(renewals[at], each)


def calls_of(naming: Naming, renewals: Sequence[Renewal], ours: Sequence[int]) -> list[Call]:
    """The calls that renew those at the places `ours`."""
    shared = [at for at in ours if renewals[at].shared]
    alone = [at for at in ours if not renewals[at].shared] if shared else ours
    calls = []
    for kind, script in ((alone, "renew"), (shared, "renew:shared")):
        for start in range(0, len(kind), _BATCH):
            places = kind[start : start + _BATCH]
            if places[-1] - places[0] + 1 == len(places):
                # Nearly always: as a range, whatever their number.
                places = range(places[0], places[-1] + 1)
            packed = _packed(naming, [renewals[at] for at in places], script)
            calls.append(Call(places, *packed))
    return calls


def _packed(naming: Naming, batch: Sequence[Renewal], script: str) -> tuple[bytes, bytes]:
    """One call for all of the batch: what comes before its echo, and after it."""
    ttl = batch[0].ttl
    arguments = [b"%d" % milliseconds(ttl)]
    arguments += (_held_by(renewal) for renewal in batch)
    for place, renewal in enumerate(batch, 1):
        if renewal.ttl != ttl or renewal.meta is not None:
            meta = b"-" if renewal.meta is None else b"=" + renewal.meta
            arguments += (b"%d" % place, b"%d" % milliseconds(renewal.ttl), meta)
    # Past the cache of names, which a thousand of them would only empty.
    keys = [key for renewal in batch for key in naming.keys_of(renewal.key, renewal.shared)]
    head = SCRIPTS[script].open_call(keys, 1 + len(arguments))
    return head, pack(*arguments).partition(b"\r\n")[2]


def _held_by(renewal: Renewal) -> bytes:
    if renewal.shared:
        return f"{renewal.claim} {renewal.token}".encode()
    return held_by(renewal.claim, renewal.token).encode()


def _prepared(naming: Naming, renewals: Sequence[Renewal], epoch: str) -> Sequence[Call]:
    kept = renewals.prepared if isinstance(renewals, Batch) else None
    if isinstance(kept, _Prepared) and kept.naming is naming and kept.epoch == epoch:
        return kept.calls
    ours = [at for at, renewal in enumerate(renewals) if renewal.epoch == epoch]
    calls = calls_of(naming, renewals, ours)
    if isinstance(renewals, Batch):
        renewals.prepared = _Prepared(naming, epoch, calls)
    return calls


def _outcome(renewal: Renewal, reply: Any) -> RenewOutcome:
    if reply == 0:
        return _GONE
    pause, resign = (raw and raw.partition(b" ")[2] for raw in reply)
    return Renewed(notices_for(renewal.token, pause, resign))
