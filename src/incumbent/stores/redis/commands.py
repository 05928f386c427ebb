"""The requests of take, give and renew as bytes, and the meaning of their replies. Pure.

Ten thousand leases may be renewed five times a ttl, and only the echo changes from one time to the
next: the bytes packed for a Batch are kept with it and sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import hiredis

from incumbent.errors import StoreError
from incumbent.model import (
    PLAIN,
    Ask,
    Batch,
    GiveOutcome,
    Gone,
    Granted,
    Key,
    Parting,
    Refused,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.net.pool import Mismatch
from incumbent.stores.notices import notices_for
from incumbent.stores.redis.errors import TooLate, answered_error
from incumbent.stores.redis.incarnation import check_format
from incumbent.stores.redis.line import in_line, line_words, new_inbox
from incumbent.stores.redis.records import Naming, RedisNames, quoted, refused
from incumbent.stores.redis.resp import SCRIPTS, Part, Program, RequestBatch, milliseconds, pack

_CACHED: Final = 1024
_SHARED: Final = pack("", "", "shared").partition(b"\r\n")[2]
"""The last arguments of the give of a shared lease."""
_RELEASED: Final = Released()
_GONE: Final = Gone()


class Commands:
    """Packs requests and reads replies for one server, which `where` names in messages.

    The bytes packed for a key are kept and sent again: only the claim and the time change.
    """

    def __init__(self, naming: Naming, where: str) -> None:
        self.naming = naming
        self.where = where
        self._takes: dict[tuple[Key, int], _PackedTake] = {}
        self._gives: dict[tuple[Key, bool], tuple[bytes, bytes]] = {}
        self.inbox = new_inbox()

    def move(self) -> None:
        """Use another inbox: a fork's child must not receive its parent's messages."""
        self.inbox = new_inbox()
        self._takes.clear()

    def take(
        self, key: Key, claim: str, ask: Ask, sign: bytes, till: float, marker: str = ""
    ) -> bytes:
        """The request of a take.

        `sign`: the server's incarnation, see ServerFacts; `till`: the deadline of the answer, in
        seconds of the server's clock; `marker`: the marker's key, to check the server in the same
        step.
        """
        # Kept by identity, with the Ask itself so that its identity is not reused: an Ask is made
        # once for each lock, and hashing its fields would cost more than packing them.
        kept = self._takes.get((key, id(ask)))
        if kept is None or kept.sign is not sign or marker:
            kept = self._prepare_take(key, ask, sign, marker)
        secret = claim.encode()
        return b"%b$%d\r\nincumbent1 %b \r\n%b$16\r\n%016d\r\n" % (
            kept.keys,
            12 + len(secret),
            secret,
            kept.arguments,
            till * 1e6,
        )

    def _prepare_take(self, key: Key, ask: Ask, sign: bytes, marker: str) -> _PackedTake:
        names, slot, holder = self.naming.of(key), ask.slot, quoted(ask.holder)
        keys = [names.main, names.companion]
        keep = milliseconds(max(ask.ttl, ask.keep_record))
        arguments: list[Part] = [
            f" {milliseconds(ask.ttl)} {holder} ".encode() + ask.meta,
            milliseconds(ask.ttl),
            b"%d %b" % (keep, sign),
            f" {quoted(slot.name) if slot else '-'} {holder}",
        ]
        special = slot is not None or ask.candidacy > 0 or ask.permits is not None
        if special or ask.queue is not None:
            arguments.append(line_words(self.inbox, ask, holder))
        if special:
            arguments.append(milliseconds(slot.keep) if slot else "-")
        keys += _keys_beside(names, ask)
        if ask.candidacy > 0 or ask.permits is not None:
            arguments += (milliseconds(ask.candidacy) if ask.candidacy else "-", names.channel)
        if ask.permits is not None:
            arguments.append(b"%d" % ask.permits)
        script = SCRIPTS["take"]
        if marker:
            keys.append(marker)
            script = SCRIPTS["take:looking"]
        rest = pack(*arguments).partition(b"\r\n")[2]
        prepared = _PackedTake(ask, sign, script.open_call(keys, len(arguments) + 2), rest)
        if not marker:
            if len(self._takes) >= _CACHED:
                self._takes.clear()
            self._takes[key, id(ask)] = prepared
        return prepared

    def taken(self, reply: Any, key: Key, claim: str, ask: Ask, epoch: str) -> TakeOutcome:
        """The outcome of a take.

        Raises Mismatch if the reply is another claim's, TooLate if the take came too late.
        """
        if type(reply) is bytes:
            head, _, token = reply.rpartition(b" ")
            if head != b"incumbent1 " + claim.encode():
                raise Mismatch("the answer is another claim's")
            return Granted(claim, int(token), ask.ttl, epoch)
        if type(reply) is int:
            raise TooLate("the take came too late by the server's clock")
        if type(reply) is not list:
            raise self.unusable(reply, key)
        if 1 <= len(reply) <= 2:
            first = self.taken(reply[0], key, claim, ask, epoch)
            if len(reply) == 2 and isinstance(first, Granted):
                return first._replace(ttl=reply[1] / 1000)
            return first
        return self._refused(reply, key, claim, ask, epoch)

    def _refused(self, reply: list[Any], key: Key, claim: str, ask: Ask, epoch: str) -> Refused:
        if len(reply) not in (4, 5) or not isinstance(reply[1], bytes):
            raise self.unusable(reply, key)
        kind, raw, left, now, *place = reply
        check_format(raw, self.where, self.naming.of(key).main)
        refusal = refused(kind, raw, left, now, ask.slot.name if ask.slot else "")
        return in_line(refusal, claim, ask, now, place[0], epoch) if place else refusal

    def give(self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN) -> bytes:
        """The request of a give. A shared lease is neither closed nor reserved."""
        closed_for, reserve_for, slot, shared = parting
        if shared:
            slot, closed_for, reserve_for = None, 0.0, None
        if not token or slot is not None or closed_for > 0:
            closed = milliseconds(closed_for) if closed_for > 0 else 0
            more = (quoted(reserve_for),) if reserve_for else ()
            return self._give(key, claim, token, slot, closed, *more, shared=shared)
        kept = self._gives.get((key, shared)) or self._prepare_give(key, shared)
        secret = claim.encode()
        held = b"incumbent1 %b %d " % (secret, token)
        request = b"%b$%d\r\n%b\r\n%b" % (kept[0], len(held), held, kept[1])
        if not shared:
            return request
        return b"%b$%d\r\nincumbent1 %b \r\n%b" % (request, 12 + len(secret), secret, _SHARED)

    def _prepare_give(self, key: Key, shared: bool) -> tuple[bytes, bytes]:
        """The bytes before the arguments with the claim, and those after the first of these."""
        names = self.naming.of(key)
        keys = [names.main, names.companion, names.line]
        after: tuple[Part, ...] = (names.channel,)
        if shared:
            keys.append(names.sharers)
            after = (names.channel, 0)
        if len(self._gives) >= _CACHED:
            self._gives.clear()
        head = SCRIPTS["give"].open_call(keys, 7 if shared else 2)
        kept = head, pack(*after).partition(b"\r\n")[2]
        self._gives[key, shared] = kept
        return kept

    def undo(self, key: Key, grant: Granted, ask: Ask) -> bytes:
        """The request that gives back a grant which is not believed; its claim may take again.

        The record that the grant left is not trusted by later takes: see give.lua.
        """
        slot, shared = ask.slot.name if ask.slot else None, ask.permits is not None
        return self._give(key, grant.claim, grant.token, slot, 0, "", "undo", shared=shared)

    def _give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        slot: str | None,
        closed: int,
        *more: Part,
        shared: bool = False,
    ) -> bytes:
        names = self.naming.of(key)
        keys = [names.main, names.companion, names.line]
        if slot is not None:
            keys.append(names.slot(slot))
        elif shared:
            keys.append(names.sharers)
            more = (*(more or ("", "")), "shared")
        held, any_token = held_by(claim, token), held_by(claim, None)
        return SCRIPTS["give"].call(len(keys), *keys, held, names.channel, closed, any_token, *more)

    def given(self, reply: Any, key: Key) -> GiveOutcome:
        """The outcome of a give."""
        if type(reply) is not int:
            raise self.unusable(reply, key)
        return _RELEASED if reply else _GONE

    def unusable(self, reply: Any, key: Key | None = None) -> Exception:
        """The exception for a reply that does not fit the request."""
        if isinstance(reply, hiredis.ReplyError):
            at = self.naming.of(key).main if key else ""
            return answered_error(str(reply), self.where, at)
        return Mismatch(f"an answer of type {type(reply).__name__} was not expected")


def _keys_beside(names: RedisNames, ask: Ask) -> list[str]:
    """The keys for what `ask` wants besides the lease, in the order of take.lua."""
    keys = [names.line] if ask.queue is not None else []
    if ask.slot is not None:
        keys.append(names.slot(ask.slot.name))
    if ask.permits is not None:
        keys.append(names.sharers)
    if ask.candidacy > 0:
        keys.append(names.candidates)
    return keys


class _PackedTake(NamedTuple):
    """A packed take of one key, without the claim and the time."""

    ask: Ask
    sign: bytes
    keys: bytes
    arguments: bytes


def held_by(claim: str, token: int | None) -> str:
    """The beginning of a lease's value; with None as `token`, of a value with any token."""
    return f"incumbent1 {claim} " if token is None else f"incumbent1 {claim} {token} "


# -- renewals --------------------------------------------------------------------------------------

_BATCH: Final = 500
"""Leases renewed by one script call: the server serves no other client meanwhile (about 2 ms)."""
_PART: Final = b"$%d\r\n%b\r\n"
_RENEWED: Final = Renewed()
RESTARTED: Final = Gone("store_restarted")
_echoes = count()


class ScriptCall(NamedTuple):
    """One script call: the places of its renewals, and its request without the echo."""

    places: Sequence[int]
    head: bytes
    tail: bytes


class _PreparedCalls(NamedTuple):
    """Packed calls, with the naming and the server's incarnation that they are for."""

    naming: Naming
    epoch: str
    calls: Sequence[ScriptCall]


def renew_program(
    commands: Commands, renewals: Sequence[Renewal], epoch: str
) -> Program[list[RenewOutcome]]:
    """Renew the leases that this incarnation of the server granted; the others are gone."""
    outcomes: list[RenewOutcome] = [RESTARTED] * len(renewals)
    calls = _prepared(commands.naming, renewals, epoch)
    if not calls:
        return outcomes
    # All are sent together: waiting for each answer would delay a process that is already late.
    echoes = [new_echo(renewals[call.places[0]]) for call in calls]
    replies = yield RequestBatch(b"".join(map(request_of, calls, echoes)), len(calls))
    for call, echo, reply in zip(calls, echoes, replies, strict=True):
        if type(reply) is not list:
            raise commands.unusable(reply, renewals[call.places[0]].key)
        note(call, renewals, echo, reply, outcomes)
    return outcomes


def new_echo(renewal: Renewal) -> bytes:
    """A text that is unique in this process, for the reply to repeat."""
    return f"{renewal.claim}:{next(_echoes)}".encode()


def request_of(call: ScriptCall, echo: bytes) -> bytes:
    """The bytes of a call, with its echo."""
    return b"".join((call.head, _PART % (len(echo), echo), call.tail))


def note(
    call: ScriptCall,
    renewals: Sequence[Renewal],
    echo: bytes,
    reply: list[Any],
    outcomes: list[RenewOutcome | StoreError] | list[RenewOutcome],
) -> None:
    """Note the outcome of each renewal. Raises Mismatch if the reply is another call's."""
    if len(reply) != len(call.places) + 1 or reply[0] != echo:
        raise Mismatch(f"expected the answer to {len(call.places)} renewals")
    for at, each in zip(call.places, reply[1:], strict=True):
        outcomes[at] = _RENEWED if each == 1 else _outcome(renewals[at], each)


def calls_of(naming: Naming, renewals: Sequence[Renewal], ours: Sequence[int]) -> list[ScriptCall]:
    """The calls for the renewals at the places `ours`."""
    shared = [at for at in ours if renewals[at].shared]
    alone = [at for at in ours if not renewals[at].shared] if shared else ours
    calls = []
    for kind, script in ((alone, "renew"), (shared, "renew:shared")):
        for start in range(0, len(kind), _BATCH):
            places = kind[start : start + _BATCH]
            if places[-1] - places[0] + 1 == len(places):
                # Nearly always true; a range is small, whatever their number.
                places = range(places[0], places[-1] + 1)
            packed = _packed(naming, [renewals[at] for at in places], script)
            calls.append(ScriptCall(places, *packed))
    return calls


def _packed(naming: Naming, batch: Sequence[Renewal], script: str) -> tuple[bytes, bytes]:
    """One call for the whole batch: the bytes before its echo, and those after it."""
    ttl = batch[0].ttl
    arguments = [b"%d" % milliseconds(ttl)]
    arguments += (_held_by(renewal) for renewal in batch)
    for place, renewal in enumerate(batch, 1):
        if renewal.ttl != ttl or renewal.meta is not None:
            meta = b"-" if renewal.meta is None else b"=" + renewal.meta
            arguments += (b"%d" % place, b"%d" % milliseconds(renewal.ttl), meta)
    # Without the cache of names, which a thousand renewals would only empty.
    keys = [key for renewal in batch for key in naming.keys_of(renewal.key, renewal.shared)]
    head = SCRIPTS[script].open_call(keys, 1 + len(arguments))
    return head, pack(*arguments).partition(b"\r\n")[2]


def _held_by(renewal: Renewal) -> bytes:
    if renewal.shared:
        return f"{renewal.claim} {renewal.token}".encode()
    return held_by(renewal.claim, renewal.token).encode()


def _prepared(naming: Naming, renewals: Sequence[Renewal], epoch: str) -> Sequence[ScriptCall]:
    kept = renewals.prepared if isinstance(renewals, Batch) else None
    if isinstance(kept, _PreparedCalls) and kept.naming is naming and kept.epoch == epoch:
        return kept.calls
    ours = [at for at, renewal in enumerate(renewals) if renewal.epoch == epoch]
    calls = calls_of(naming, renewals, ours)
    if isinstance(renewals, Batch):
        renewals.prepared = _PreparedCalls(naming, epoch, calls)
    return calls


def _outcome(renewal: Renewal, reply: Any) -> RenewOutcome:
    if reply == 0:
        return _GONE
    pause, resign = (raw and raw.partition(b" ")[2] for raw in reply)
    return Renewed(notices_for(renewal.token, pause, resign))
