"""A take: the request to take.lua, the meaning of its reply, and whether a grant counts.

A grant counts only if the server is still the one that this connection was made to: one that lost
its data, or a replica that was promoted, may not know of a lease. So a take checks the server in
the same round trip, unless that was done just now (`CHECK_EVERY`). A grant of another incarnation
is given back. The caller asks again on a new connection, which grants nothing until no lease of
the earlier incarnation can be believed any more: see `too_early`.

    take  --> refused ------------------------------------------------> Refused, Queued
          --> granted --> checked just now ---------------------------> Granted
                      --> the record is new: is the marker the same? -> Granted
                      --> checked too long ago: take again, and check
    take  --> granted, and the server is the same --------------------> Granted
    and   --> granted, and it is another --> give back ---------------> Outdated: connect anew
    check --> too late: nothing was done -----------------------------> TooLate
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import hiredis

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Key, TakeOutcome
from incumbent.net.pool import Mismatch
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.findings import restart_words, wait_after_restart
from incumbent.stores.redis.give import give_back
from incumbent.stores.redis.incarnation import (
    CHECK_EVERY,
    Handshake,
    RedisPlan,
    ServerContext,
    ServerFacts,
    check_format,
    handshake,
)
from incumbent.stores.redis.records import RedisNames, in_line, quoted, refused
from incumbent.stores.redis.resp import (
    PACKED_KEYS,
    SCRIPTS,
    Part,
    RequestBatch,
    RespProgram,
    milliseconds,
    pack_arguments,
)
from incumbent.stores.redis.site import MARKER_KEY, Outdated, Packer, RedisSite, TooLate

_UNASKED: Final = Ask(TTL_DEFAULT, "")

_now = clock.now


@dataclass(slots=True, eq=False)
class TakePlan(RedisPlan[TakeOutcome]):
    """A take, with the claim and the Ask, which the hub of the waiters needs."""

    claim: str = ""
    ask: Ask = _UNASKED


def take_plan(key: Key, claim: str, ask: Ask) -> TakePlan:
    """The plan of a take. Only its caller may repeat it in doubt: it counts the tries."""

    def start(server: ServerContext, until: float) -> RespProgram[TakeOutcome]:
        return take_program(server, key, claim, ask, until)

    return TakePlan("take", start, (key,), (), False, ask.ttl, claim, ask)


# -- the request, and its reply --------------------------------------------------------------------


class _PackedTake(NamedTuple):
    """A packed take of one key, without the claim and the time."""

    ask: Ask
    id_and_floor: bytes
    keys: bytes
    arguments: bytes


def take_request(
    packer: Packer,
    key: Key,
    claim: str,
    ask: Ask,
    id_and_floor: bytes,
    server_deadline: float,
    marker_key: str = "",
) -> bytes:
    """The request of a take.

    `id_and_floor`: see ServerFacts; `server_deadline`: the deadline of the answer, by the server's
    clock in seconds; `marker_key`: the marker's key, to check the server in the same step.
    """
    # Kept by identity, with the Ask itself so that its identity is not reused: an Ask is made once
    # for each lock, and hashing its fields would cost more than packing them.
    packed: _PackedTake | None = packer.takes.get((key, id(ask)))
    if packed is None or packed.id_and_floor is not id_and_floor or marker_key:
        packed = _prepare(packer, key, ask, id_and_floor, marker_key)
    secret = claim.encode()
    return b"%b$%d\r\nincumbent1 %b \r\n%b$16\r\n%016d\r\n" % (
        packed.keys,
        12 + len(secret),
        secret,
        packed.arguments,
        server_deadline * 1e6,
    )


def _prepare(
    packer: Packer, key: Key, ask: Ask, id_and_floor: bytes, marker_key: str
) -> _PackedTake:
    """The keys and arguments in the order of take.lua."""
    names, slot, queue, holder = packer.naming.of(key), ask.slot, ask.queue, quoted(ask.holder)
    keep = milliseconds(max(ask.ttl, ask.keep_record))
    arguments: list[Part] = [
        f" {milliseconds(ask.ttl)} {holder} ".encode() + ask.meta,
        milliseconds(ask.ttl),
        b"%d %b" % (keep, id_and_floor),
        f" {quoted(slot.name) if slot else '-'} {holder}",
    ]
    special = slot is not None or ask.candidacy > 0 or ask.permits is not None
    if queue is not None:
        way = "f" if queue.fair else "b"
        arguments.append(f"{packer.inbox} {way} {milliseconds(queue.heartbeat)} {holder}")
    elif special:
        arguments.append("-")
    if special:
        arguments.append(milliseconds(slot.keep) if slot else "-")
    if ask.candidacy > 0 or ask.permits is not None:
        arguments += (milliseconds(ask.candidacy) if ask.candidacy else "-", names.channel)
    if ask.permits is not None:
        arguments.append(b"%d" % ask.permits)
    keys = _keys_of(names, ask)
    script = SCRIPTS["take"]
    if marker_key:
        keys.append(marker_key)
        script = SCRIPTS["take:checking"]
    before = script.open_call(keys, len(arguments) + 2)
    packed = _PackedTake(ask, id_and_floor, before, pack_arguments(*arguments))
    if not marker_key:
        if len(packer.takes) >= PACKED_KEYS:
            packer.takes.clear()
        packer.takes[key, id(ask)] = packed
    return packed


def _keys_of(names: RedisNames, ask: Ask) -> list[str]:
    keys = [names.lease, names.record]
    if ask.queue is not None:
        keys.append(names.line)
    if ask.slot is not None:
        keys.append(names.slot(ask.slot.name))
    if ask.permits is not None:
        keys.append(names.sharers)
    if ask.candidacy > 0:
        keys.append(names.candidates)
    return keys


def read_take(
    packer: Packer, reply: Any, key: Key, claim: str, ask: Ask, epoch: str
) -> TakeOutcome:
    """The outcome of a take.

    Raises Mismatch if the reply is another claim's, TooLate if the take came too late.
    """
    if type(reply) is bytes:
        start, _, token = reply.rpartition(b" ")
        if start != b"incumbent1 " + claim.encode():
            raise Mismatch("the answer is another claim's")
        return Granted(claim, int(token), ask.ttl, epoch)
    if type(reply) is int:
        raise TooLate("the take came too late by the server's clock")
    if type(reply) is not list:
        raise packer.unusable(reply, key)
    if 1 <= len(reply) <= 2:
        first = read_take(packer, reply[0], key, claim, ask, epoch)
        if len(reply) == 2 and isinstance(first, Granted):
            return first._replace(ttl=reply[1] / 1000)
        return first
    if len(reply) not in (4, 5) or not isinstance(reply[1], bytes):
        raise packer.unusable(reply, key)
    kind, raw, left, now, *place = reply
    check_format(raw, packer.where, packer.naming.of(key).lease)
    refusal = refused(kind, raw, left, now, ask.slot.name if ask.slot else "")
    return in_line(refusal, claim, ask, now, place[0], epoch) if place else refusal


# -- taking, and checking the server ---------------------------------------------------------------


def take_program(
    server: ServerContext, key: Key, claim: str, ask: Ask, until: float
) -> RespProgram[TakeOutcome]:
    """A take, with a check of the server unless the last one was just now."""
    packer, facts, now = server.packer, server.facts, _now()
    if now - facts.check_sent > CHECK_EVERY or ask.ttl > facts.old_enough_for:
        return (yield from _take_checking(server, key, claim, ask, until))
    request = take_request(packer, key, claim, ask, facts.id_and_floor, until + facts.clock_ahead)
    (reply,) = yield RequestBatch(request, 1)
    return (yield from finish_take(server, key, claim, ask, until, now, reply))


def finish_take(
    server: ServerContext, key: Key, claim: str, ask: Ask, until: float, sent: float, reply: Any
) -> RespProgram[TakeOutcome]:
    """Finish a take that was sent at `sent` without a check, and got `reply`."""
    packer, facts = server.packer, server.facts
    outcome = read_take(packer, reply, key, claim, ask, facts.epoch)
    if type(outcome) is not Granted:
        return outcome
    # On asyncio another task may have checked meanwhile: its reply came before this one.
    believed = sent - facts.unchanged_at <= CHECK_EVERY
    if believed and type(reply) is list and len(reply) == 1:
        # The record is not known to be of this incarnation: the data may have been lost since.
        (marker,) = yield RequestBatch(facts.marker_request, 1)
        believed = facts.is_marked(marker)
    if believed:
        return outcome
    try:
        return (yield from _take_checking(server, key, claim, ask, until))
    # The second take was not carried out, but the first one was.
    except (StoreUnavailable, TooLate):
        yield from give_back(packer, key, outcome, ask)
        raise


def _take_checking(
    server: ServerContext, key: Key, claim: str, ask: Ask, until: float
) -> RespProgram[TakeOutcome]:
    """A take, and in the same round trip a check of the server.

    Raises Outdated if the server has changed, after giving back any grant.
    """
    site, packer, facts = server
    # Before the grant: a client that connects after a restart must know how long to wait.
    if ask.ttl > max(TTL_DEFAULT, facts.longest):
        yield from _note_longest(site, facts, ask.ttl)
    # Noted before the answer is there: meanwhile other tasks on this connection need not check too.
    facts.check_sent = sent = _now()
    server_deadline = until + facts.clock_ahead
    reply, checked = yield from _take_and_check(packer, facts, key, claim, ask, server_deadline)
    outcome = read_take(packer, reply, key, claim, ask, facts.epoch)
    try:
        facts.compare(checked, sent, _now(), allow_eviction=site.allow_eviction)
    except Outdated:
        # Takes of other tasks that are on their way on this connection are not believed either.
        facts.unchanged_at = 0.0
        if isinstance(outcome, Granted):
            yield from give_back(packer, key, outcome, ask)
        raise
    facts.old_enough_for = max(facts.old_enough_for, ask.ttl)
    return outcome


def _take_and_check(
    packer: Packer, facts: ServerFacts, key: Key, claim: str, ask: Ask, server_deadline: float
) -> RespProgram[tuple[Any, Sequence[Any]]]:
    """The reply to the take, and the replies to the check."""
    if facts.marker_key == MARKER_KEY:
        request = take_request(
            packer, key, claim, ask, facts.id_and_floor, server_deadline, MARKER_KEY
        )
        (reply,) = yield RequestBatch(request, 1)
        if not (type(reply) is hiredis.ReplyError and str(reply).startswith("CROSSSLOT")):
            return (reply[0], reply[1:]) if type(reply) is list else (reply, ())
    # In a cluster the marker has another slot than the lease, and no script may use both.
    request = take_request(packer, key, claim, ask, facts.id_and_floor, server_deadline)
    reply, *checked = yield RequestBatch(request + facts.check_request, 5)
    return reply, checked


# -- whether the server may grant at all -----------------------------------------------------------


def begin_handshake(
    site: RedisSite, promotion: int | None, longest: float = 0.0
) -> RespProgram[Handshake]:
    """The program `incarnation.handshake`, with `longest` in seconds."""
    fresh, most = os.urandom(4).hex(), milliseconds(longest) if longest else 0
    return handshake(site, wall=clock.wall(), fresh=fresh, promotion=promotion, longest=most)


def _note_longest(site: RedisSite, facts: ServerFacts, ttl: float) -> RespProgram[None]:
    """Note the largest ttl so far in the marker, for clients that connect after a restart.

    Raises StoreError if it cannot be written: those clients would not know how long to wait.
    """
    found = yield from begin_handshake(site, facts.marker.promotion, ttl)
    if found.problem is not None:
        raise found.problem
    # Another incarnation by now, whose marker says nothing of what this connection knows.
    if found.marker.id != facts.marker.id:
        raise Outdated("its data are others")
    facts.marker = found.marker


def too_early(site: RedisSite, facts: ServerFacts, ttl: float, now: float) -> StoreError | None:
    """Why the server may not grant yet: a holder from before its restart may believe in its lease.

    Also if it has no marker, which would say since when it has its data. None if it may grant.
    """
    if facts.problem is not None:
        return facts.problem
    wait = wait_after_restart(site.restart_wait, ttl, facts.longest)
    age, left = now - facts.born, facts.born + wait - now
    if wait <= 0 or left <= 0:
        return None
    what = "was promoted" if facts.marker.promoted else "started, is new, or lost its data"
    why = restart_words(site.where, what, age, left, apart=facts.age_gap)
    return StoreUnavailable(why, retry_after=left)
