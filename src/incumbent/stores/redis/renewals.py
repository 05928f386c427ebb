"""Renewals on Redis: many leases in one script call. Pure.

Ten thousand leases are renewed five times a ttl, and all that changes from one time to the next is
the echo: what was packed for a Batch is kept beside it and sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from incumbent.model import Batch, Gone, Renewal, Renewed, RenewOutcome
from incumbent.stores.notices import notices_for
from incumbent.stores.redis.commands import Commands, held_by
from incumbent.stores.redis.errors import Mismatch
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.resp import SCRIPTS, Program, Step, milliseconds, pack

__all__ = ["new_echo", "outcomes_of", "packed", "renew_program"]

_BATCH: Final = 500
"""Leases renewed by one script call: a server serves nobody else meanwhile (about 2 ms)."""
_PART: Final = b"$%d\r\n%b\r\n"
_RENEWED: Final = Renewed()
_GONE: Final = Gone()
_RESTARTED: Final = Gone("store_restarted")
_echoes = count()


class _Call(NamedTuple):
    """One call of the script: which renewals it is for, and all but the echo of its request."""

    places: Sequence[int]
    head: bytes
    tail: bytes


class _Prepared(NamedTuple):
    """For what server's naming and incarnation the calls were packed."""

    naming: Naming
    epoch: str
    calls: Sequence[_Call]


def renew_program(
    commands: Commands, renewals: Sequence[Renewal], epoch: str
) -> Program[list[RenewOutcome]]:
    """Renew what this incarnation of the server granted; it knows nothing of the rest."""
    outcomes: list[RenewOutcome] = [_RESTARTED] * len(renewals)
    calls = _prepared(commands.naming, renewals, epoch)
    groups = [calls[at : at + 1] for at in range(len(calls))]
    if isinstance(renewals, Batch) and len(calls) > 1:
        # Of a process that is late, and each answer waited for makes it later: all calls but the
        # first leave together. The first brings the script if the server does not know it.
        groups = [calls[:1], calls[1:]]
    for group in groups:
        echoes = [new_echo(renewals[call.places[0]]) for call in group]
        requests = (
            b"".join((call.head, sent, call.tail))
            for call, (_, sent) in zip(group, echoes, strict=True)
        )
        replies = yield Step(b"".join(requests), len(group))
        for call, (echo, _), reply in zip(group, echoes, replies, strict=True):
            if type(reply) is not list:
                raise commands.unusable(reply, renewals[call.places[0]].key)
            _check_echo(reply, echo, len(call.places))
            if reply.count(1) == len(renewals):
                return [_RENEWED] * len(renewals)
            for at, each in zip(call.places, reply[1:], strict=True):
                outcomes[at] = _outcome(renewals[at], each)
    return outcomes


def new_echo(renewal: Renewal) -> tuple[bytes, bytes]:
    """What no other reply in this process repeats, and the same as it is sent."""
    echo = f"{renewal.claim}:{next(_echoes)}".encode()
    return echo, _PART % (len(echo), echo)


def packed(naming: Naming, batch: Sequence[Renewal]) -> tuple[bytes, bytes]:
    """One call for all of the batch: what comes before its echo, and after it."""
    ttl = batch[0].ttl
    arguments = [b"%d" % milliseconds(ttl)]
    arguments += (held_by(renewal.claim, renewal.token).encode() for renewal in batch)
    for place, renewal in enumerate(batch, 1):
        if renewal.ttl != ttl or renewal.meta is not None:
            meta = b"-" if renewal.meta is None else b"=" + renewal.meta
            arguments += (b"%d" % place, b"%d" % milliseconds(renewal.ttl), meta)
    # Past the cache of names, which a thousand of them would only empty.
    keys = [key for renewal in batch for key in naming.keys_of(renewal.key)]
    head = SCRIPTS["renew"].open_call(keys, 1 + len(arguments))
    return head, pack(*arguments).partition(b"\r\n")[2]


def outcomes_of(batch: Sequence[Renewal], echo: bytes, reply: list[Any]) -> list[RenewOutcome]:
    """What a reply says. Raises Mismatch if it is another call's."""
    _check_echo(reply, echo, len(batch))
    return list(map(_outcome, batch, reply[1:]))


def _prepared(naming: Naming, renewals: Sequence[Renewal], epoch: str) -> Sequence[_Call]:
    kept = renewals.prepared if isinstance(renewals, Batch) else None
    if isinstance(kept, _Prepared) and kept.naming is naming and kept.epoch == epoch:
        return kept.calls
    ours = [at for at, renewal in enumerate(renewals) if renewal.epoch == epoch]
    calls = []
    for start in range(0, len(ours), _BATCH):
        places: Sequence[int] = ours[start : start + _BATCH]
        if places[-1] - places[0] + 1 == len(places):
            # Nearly always: as a range, whatever their number.
            places = range(places[0], places[-1] + 1)
        calls.append(_Call(places, *packed(naming, [renewals[at] for at in places])))
    if isinstance(renewals, Batch):
        renewals.prepared = _Prepared(naming, epoch, calls)
    return calls


def _check_echo(reply: list[Any], echo: bytes, asked: int) -> None:
    if len(reply) != asked + 1 or reply[0] != echo:
        raise Mismatch(f"expected the answer to {asked} renewals")


def _outcome(renewal: Renewal, reply: Any) -> RenewOutcome:
    if reply == 0:
        return _GONE
    if reply == 1:
        return _RENEWED
    pause, resign = (raw and raw.partition(b" ")[2] for raw in reply)
    return Renewed(notices_for(renewal.token, pause, resign))
