"""Renewals on Redis: many leases in one script call. Pure.

Ten thousand leases are renewed five times a ttl, and all that changes from one time to the next is
the echo: what was packed for a Batch is kept beside it and sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from incumbent.model import Batch, Gone, Key, Renewal, Renewed, RenewOutcome
from incumbent.stores.notices import notices_for
from incumbent.stores.redis.errors import Mismatch
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.resp import SCRIPTS, Program, Step, milliseconds, pack

__all__ = ["new_echo", "outcomes_of", "packed", "renew_program"]

_BATCH: Final = 500
"""Leases renewed by one script call: a server serves nobody else meanwhile (about 2 ms)."""
_ONE: Final = b"$%d\r\n%b\r\n"
_TWO: Final = b"$%d\r\n%b\r\n$%d\r\n%b\r\n"

_renew = SCRIPTS["renew"]
_renewals = count()

Unusable: TypeAlias = Callable[[Any, Key | None], Exception]
"""The exception for an answer that is none."""


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
    naming: Naming,
    renewals: Sequence[Renewal],
    epoch: str,
    unusable: Unusable,
) -> Program[list[RenewOutcome]]:
    """Renew what this incarnation of the server granted; it knows nothing of the rest."""
    outcomes: list[RenewOutcome] = [_RESTARTED] * len(renewals)
    for calls in _steps(_prepared(naming, renewals, epoch), renewals):
        # Unique in this process, so that no other answer can be taken for this one.
        echoes = [_echo(renewals[call.places[0]]) for call in calls]
        payload = b"".join(map(_request, calls, echoes))
        answers = yield Step(payload, len(calls))
        for call, echo, answer in zip(calls, echoes, answers, strict=True):
            if type(answer) is not list:
                raise unusable(answer, renewals[call.places[0]].key)
            if len(answer) != len(call.places) + 1 or answer[0] != echo:
                raise Mismatch(f"expected the answer to {len(call.places)} renewals")
            if answer.count(1) == len(renewals):
                return [_RENEWED] * len(renewals)
            for at, each in zip(call.places, answer[1:], strict=True):
                outcomes[at] = _outcome(renewals[at], each)
    return outcomes


def _steps(calls: Sequence[_Call], renewals: Sequence[Renewal]) -> Sequence[Sequence[_Call]]:
    """Which calls leave together.

    A Batch of several is one of a process that is late, and each answer waited for makes it later:
    all calls but the first, which brings the script if the server does not know it.
    """
    if isinstance(renewals, Batch) and len(calls) > 1:
        return (calls[:1], calls[1:])
    return [(call,) for call in calls]


def _echo(renewal: Renewal) -> bytes:
    return f"{renewal.claim}:{next(_renewals)}".encode()


def _request(call: _Call, echo: bytes) -> bytes:
    return b"".join((call.head, _ONE % (len(echo), echo), call.tail))


def _prepared(naming: Naming, renewals: Sequence[Renewal], epoch: str) -> Sequence[_Call]:
    if not isinstance(renewals, Batch):
        return _packed(naming, renewals, epoch)
    kept = renewals.prepared
    if not isinstance(kept, _Prepared) or kept.naming is not naming or kept.epoch != epoch:
        kept = _Prepared(naming, epoch, _packed(naming, renewals, epoch))
        renewals.prepared = kept
    return kept.calls


def _packed(naming: Naming, renewals: Sequence[Renewal], epoch: str) -> Sequence[_Call]:
    ours = [at for at, renewal in enumerate(renewals) if renewal.epoch == epoch]
    calls = []
    for start in range(0, len(ours), _BATCH):
        places = ours[start : start + _BATCH]
        batch = [renewals[at] for at in places]
        calls.append(_Call(_small(places), _head(naming, batch), _tail(batch)))
    return calls


def _small(places: Sequence[int]) -> Sequence[int]:
    """The same numbers, nearly always without a gap: then as a range, whatever their number."""
    first, last = places[0], places[-1]
    return range(first, last + 1) if last - first + 1 == len(places) else places


def _head(naming: Naming, batch: Sequence[Renewal]) -> bytes:
    parts = []
    for renewal in batch:
        # Past the cache of names, which a thousand of them would only empty.
        main, companion = naming.keys_of(renewal.key)
        parts.append(_TWO % (len(main), main, len(companion), companion))
    call = _renew.call(2 * len(batch)).partition(b"\r\n")[2]
    arguments = 5 + 3 * len(batch) + 3 * len(_special(batch))
    return b"".join((b"*%d\r\n" % arguments, call, *parts))


def _tail(batch: Sequence[Renewal]) -> bytes:
    ttl = b"%d" % milliseconds(batch[0].ttl)
    parts = [_ONE % (len(ttl), ttl)]
    for renewal in batch:
        held = b"incumbent2 %b %d " % (renewal.claim.encode(), renewal.token)
        parts.append(_ONE % (len(held), held))
    for at in _special(batch):
        renewal = batch[at]
        meta = b"-" if renewal.meta is None else b"=" + renewal.meta
        more = pack(at + 1, milliseconds(renewal.ttl), meta)
        parts.append(more.partition(b"\r\n")[2])
    return b"".join(parts)


def _special(batch: Sequence[Renewal]) -> list[int]:
    """The places of those that want another ttl than the first, or new metadata."""
    ttl = batch[0].ttl
    return [
        at for at, renewal in enumerate(batch) if renewal.ttl != ttl or renewal.meta is not None
    ]


def _outcome(renewal: Renewal, answer: Any) -> RenewOutcome:
    if answer == 0:
        return _GONE
    if answer == 1:
        return _RENEWED
    pause, resign = (raw and raw.partition(b" ")[2] for raw in answer)
    return Renewed(notices_for(renewal.token, pause, resign))


_RENEWED: Final = Renewed()
_GONE: Final = Gone()
_RESTARTED: Final = Gone("store_restarted")


# -- the same in pieces, for renewals of many slots: see spread -----------------------------------


def packed(naming: Naming, batch: Sequence[Renewal]) -> tuple[bytes, bytes]:
    """One call for all of the batch: what comes before its echo, and after it."""
    return _head(naming, batch), _tail(batch)


def new_echo(renewal: Renewal) -> tuple[bytes, bytes]:
    """What no other answer in this process repeats, and the same as it is sent."""
    echo = _echo(renewal)
    return echo, _ONE % (len(echo), echo)


def outcomes_of(batch: Sequence[Renewal], echo: bytes, answer: list[Any]) -> list[RenewOutcome]:
    """What an answer says. Raises Mismatch if it is another call's."""
    if len(answer) != len(batch) + 1 or answer[0] != echo:
        raise Mismatch(f"expected the answer to {len(batch)} renewals")
    return list(map(_outcome, batch, answer[1:]))
