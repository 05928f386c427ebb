"""The plan of each operation, for the server that a connection leads to. Pure.

A take also checks that the server's incarnation has not changed: it looks at marker and role.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import (
    PLAIN,
    Absent,
    Ask,
    ByClaim,
    ByVersion,
    Capabilities,
    GiveOutcome,
    Granted,
    Guard,
    Holding,
    Key,
    Parting,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.net.pool import Broken
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.base import Gave, Give, Take, Took
from incumbent.stores.findings import wait_after_restart
from incumbent.stores.plan import Plan
from incumbent.stores.redis.commands import Commands, held_by, renew_program
from incumbent.stores.redis.errors import Outdated, TooLate, restart_error
from incumbent.stores.redis.incarnation import (
    LOOK_EVERY,
    Handshake,
    ServerFacts,
    check_format,
    handshake,
)
from incumbent.stores.redis.records import (
    FIELDS,
    history_of,
    is_shared,
    mark_of,
    pairs,
    record_of,
    sharing_of,
    slots_named,
)
from incumbent.stores.redis.resp import (
    SCRIPTS,
    Program,
    RequestBatch,
    as_eval,
    is_forgotten,
    milliseconds,
    pack,
)
from incumbent.stores.redis.server import MARKER_KEY, RedisSite

T = TypeVar("T")

_SCANNED: Final = 500
_READ_AT_ONCE: Final = 100

_now = clock.now

CAPABILITIES: Final = Capabilities(
    waits="pubsub",
    ttl_clock="wall",
    queue=True,
    candidates=True,
    reservations=True,
    refuses_late=True,
    shared=True,
)
"""The capabilities of a Redis of any layout."""


class Server(NamedTuple):
    """The server that a connection leads to: its site, its commands, and the known facts."""

    site: RedisSite
    commands: Commands
    known: ServerFacts


_UNASKED: Final = Ask(TTL_DEFAULT, "")


@dataclass(slots=True, eq=False)
class TakePlan(Plan[Server, TakeOutcome]):
    """A take, with the claim and the Ask, which the hub of the waiters needs."""

    claim: str = ""
    ask: Ask = _UNASKED


@dataclass(slots=True, eq=False)
class JoinedPlan(Plan[Server, "list[T | StoreError]"]):
    """Several plans of one kind whose requests are sent together; returns each outcome."""

    parts: Sequence[Plan[Server, T]] = ()


class RedisDialect:
    """The plans of Redis; see stores.plan.DialectOfMany."""

    def take(self, key: Key, claim: str, ask: Ask) -> TakePlan:
        """A take, with a check that the server's incarnation has not changed."""

        def start(server: Server, until: float) -> Program[TakeOutcome]:
            return take_program(server, key, claim, ask, until)

        # Only the caller may repeat a take in doubt: it remembers that there were two.
        return TakePlan("take", start, (key,), (), False, ask.ttl, claim, ask)

    def take_all(self, takes: Sequence[Take]) -> Plan[Server, Took]:
        """Several takes whose requests are sent together."""
        return joined([self.take(*take) for take in takes])

    def give_all(self, gives: Sequence[Give]) -> Plan[Server, Gave]:
        """Several releases whose requests are sent together."""
        return joined([self.give(*give) for give in gives])

    def renew(self, renewals: Sequence[Renewal]) -> Plan[Server, list[RenewOutcome]]:
        """A renewal of the leases that this incarnation of the server granted."""
        return Plan(
            "renew",
            lambda server, _: renew_program(server.commands, renewals, server.known.epoch),
            renewals=renewals,
        )

    def give(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> Plan[Server, GiveOutcome]:
        """A release, or a closing."""

        def start(server: Server, _: float) -> Program[GiveOutcome]:
            commands = server.commands
            request = commands.give(key, claim, token, parting)
            (reply,) = yield RequestBatch(request, 1)
            return commands.given(reply, key)

        return Plan("give", start, (key,))

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> Plan[Server, PutOutcome]:
        """A write, repeatable if a second, equal one would give the same outcome as the first."""

        def start(server: Server, _: float) -> Program[PutOutcome]:
            names = server.commands.naming.of(key)
            written = b"-" if value is None else b"=" + value
            fields = (FIELDS["put"] + field.encode(), *_guard(guard), written, names.channel)
            request = SCRIPTS["put"].call(2, names.main, names.companion, *fields)
            (reply,) = yield RequestBatch(request, 1)
            if type(reply) is not int:
                raise server.commands.unusable(reply, key)
            return Stale() if reply < 0 else Stored(reply)

        repeatable = guard is None or isinstance(guard, ByClaim)
        return Plan("put", start, (key,), repeatable=repeatable)

    def read(self, key: Key) -> Plan[Server, Record]:
        """A read of the record of a key."""
        return Plan("read", lambda server, _: _read_record(server.commands, key), (key,))

    def scan(self, namespace: str, prefix: str) -> Plan[Server, tuple[Record, ...]]:
        """A read of the records in the namespace whose names begin with the prefix."""
        return Plan("scan", lambda server, _: _scan_records(server.commands, namespace, prefix))

    def unchanged(self, key: Key, seen: str) -> Plan[Server, bool]:
        """A check whether the state that `Refused.seen` describes is unchanged."""
        return Plan("look", lambda server, _: _is_unchanged(server.commands, key, seen), (key,))

    def time(self) -> Plan[Server, int]:
        """A read of the server's clock in microseconds."""
        return Plan("look", lambda server, _: _server_time(server.commands))


DIALECT: Final = RedisDialect()


def _guard(guard: Guard) -> tuple[str, str]:
    match guard:
        case None:
            return ("none", "")
        case Absent():
            return ("absent", "")
        case ByVersion(version):
            return ("version", str(version))
        case ByClaim(claim, token):
            return ("claim", held_by(claim, token))


def joined(parts: Sequence[Plan[Server, T]]) -> JoinedPlan[T]:
    """One plan for all of them."""

    def start(server: Server, until: float) -> Program[list[T | StoreError]]:
        return together([part.start(server, until) for part in parts])

    keys, ttl = [part.keys[0] for part in parts], max(part.ttl for part in parts)
    return JoinedPlan(parts[0].kind, start, keys, repeatable=False, ttl=ttl, parts=parts)


def together(programs: Sequence[Program[T]]) -> Program[list[T | StoreError]]:
    """Run several programs, with their steps sent together; return their outcomes.

    An error of the connection, which is no StoreError, is raised: then no outcome is known.
    """
    outcomes: list[Any] = [None] * len(programs)
    replies: dict[int, Any] = dict.fromkeys(range(len(programs)))
    asked = False
    while True:
        steps: dict[int, RequestBatch] = {}
        for at, reply in replies.items():
            try:
                steps[at] = programs[at].send(reply)
            except StopIteration as end:
                outcomes[at] = end.value
            except StoreError as error:
                outcomes[at] = error
            except Broken as error:
                error.sent = error.sent or asked
                raise
        if not steps:
            return outcomes
        asked = True
        replies = yield from _ask_together(steps)


def _ask_together(steps: dict[int, RequestBatch]) -> Program[dict[int, Any]]:
    """The replies to each step. Steps of unknown scripts are sent again, but no done release."""
    replies = yield from _send_together(steps)
    unknown = {
        at: RequestBatch(as_eval(step.payload), step.answers)
        for at, step in steps.items()
        if any(map(is_forgotten, replies[at]))
    }
    return {**replies, **((yield from _send_together(unknown)) if unknown else {})}


def _send_together(steps: dict[int, RequestBatch]) -> Program[dict[int, Any]]:
    payload = b"".join(step.payload for step in steps.values())
    count = sum(step.answers for step in steps.values())
    answers = iter((yield RequestBatch(payload, count, repeats=False)))
    return {at: [*islice(answers, step.answers)] for at, step in steps.items()}


def take_program(
    server: Server, key: Key, claim: str, ask: Ask, until: float
) -> Program[TakeOutcome]:
    """A take, with a look at the server unless the last look was just now."""
    commands, known, now = server.commands, server.known, _now()
    if now - known.asked > LOOK_EVERY or ask.ttl > known.serves:
        return (yield from _take_looking(server, key, claim, ask, until))
    (reply,) = yield RequestBatch(
        commands.take(key, claim, ask, known.sign, until + known.ahead), 1
    )
    return (yield from settle_take(server, key, claim, ask, until, now, reply))


def settle_take(
    server: Server, key: Key, claim: str, ask: Ask, until: float, sent: float, reply: Any
) -> Program[TakeOutcome]:
    """Finish a take that was sent at `sent` without a look, and got `reply`."""
    commands, known = server.commands, server.known
    outcome = commands.taken(reply, key, claim, ask, known.epoch)
    if type(outcome) is not Granted:
        return outcome
    # On asyncio another task may have looked meanwhile: its reply came before this one.
    believed = sent - known.looked <= LOOK_EVERY
    if believed and type(reply) is list and len(reply) == 1:
        (mark,) = yield RequestBatch(known.reread, 1)
        believed = known.is_marked(mark)
    if believed:
        return outcome
    try:
        return (yield from _take_looking(server, key, claim, ask, until))
    except (StoreUnavailable, TooLate):
        yield from give_back(commands, key, outcome, ask)
        raise


def _take_looking(
    server: Server, key: Key, claim: str, ask: Ask, until: float
) -> Program[TakeOutcome]:
    """A take, and in the same round trip a look at the server.

    Raises Outdated if the server has changed, after giving back any grant.
    """
    site, commands, known = server
    if ask.ttl > max(TTL_DEFAULT, known.longest):
        yield from _tell_longest(site, known, ask.ttl)
    known.asked = sent = _now()
    reply, look = yield from _take_and_look(commands, known, key, claim, ask, until + known.ahead)
    outcome = commands.taken(reply, key, claim, ask, known.epoch)
    try:
        known.compare(look, sent, _now(), allow_eviction=site.allow_eviction)
    except Outdated:
        known.looked = 0.0
        if isinstance(outcome, Granted):
            yield from give_back(commands, key, outcome, ask)
        raise
    known.serves = max(known.serves, ask.ttl)
    return outcome


def _take_and_look(
    commands: Commands, known: ServerFacts, key: Key, claim: str, ask: Ask, till: float
) -> Program[tuple[Any, Sequence[Any]]]:
    """The reply to the take, and the replies to the look."""
    if known.marked_at == MARKER_KEY:
        request = commands.take(key, claim, ask, known.sign, till, MARKER_KEY)
        (reply,) = yield RequestBatch(request, 1)
        if not (type(reply) is hiredis.ReplyError and str(reply).startswith("CROSSSLOT")):
            return (reply[0], reply[1:]) if type(reply) is list else (reply, ())
    # In a cluster the marker has another slot than the lease, and no script may use both.
    request = commands.take(key, claim, ask, known.sign, till)
    reply, *look = yield RequestBatch(request + known.look, 5)
    return reply, look


def give_back(commands: Commands, key: Key, grant: Granted, ask: Ask) -> Program[None]:
    """Give back a grant that is not believed. Raises OutcomeUnknown if it may still be stored."""
    (reply,) = yield RequestBatch(commands.undo(key, grant, ask), 1)
    if reply != 1:
        what = "it was not found" if reply == 0 else f"the answer was {str(reply)!r}"
        raise OutcomeUnknown(
            f"{commands.where}: a grant was not believed and could not be given back: {what}"
        )


def meeting(site: RedisSite, term: int | None, longest: float = 0.0) -> Program[Handshake]:
    """The program `incarnation.meet`, with `longest` in seconds."""
    fresh, most = os.urandom(4).hex(), milliseconds(longest) if longest else 0
    return handshake(site, wall=clock.wall(), fresh=fresh, term=term, longest=most)


def _tell_longest(site: RedisSite, known: ServerFacts, ttl: float) -> Program[None]:
    """Note the largest ttl so far in the marker, for clients that connect after a restart.

    Raises StoreError if it cannot be written: those clients would not know how long to wait.
    """
    met = yield from meeting(site, known.mark.term, ttl)
    if met.problem is not None:
        raise met.problem
    if met.mark.id != known.mark.id:
        raise Outdated("its data are others")
    known.mark = met.mark


def too_early(site: RedisSite, known: ServerFacts, ttl: float, now: float) -> StoreError | None:
    """The exception if a holder from before the server's restart may still believe in its lease.

    Also if there is no marker to tell. Else None.
    """
    if known.problem is not None:
        return known.problem
    wait = wait_after_restart(site.restart_wait, ttl, known.longest)
    left = known.born + wait - now
    if wait <= 0 or left <= 0:
        return None
    promoted, age = known.mark.promoted, now - known.born
    return restart_error(site.where, promoted=promoted, age=age, left=left, apart=known.apart)


# -- reading ---------------------------------------------------------------------------------------


def _read_record(commands: Commands, key: Key) -> Program[Record]:
    """The record of a key."""
    (record,) = yield from _read_all(commands, [key])
    if isinstance(record, Record):
        return record
    raise commands.unusable(record, key)


def _scan_records(commands: Commands, namespace: str, prefix: str) -> Program[tuple[Record, ...]]:
    """The records in the namespace whose names begin with the prefix."""
    naming, keys = commands.naming, set[Key]()
    for pattern in naming.patterns(namespace, prefix):
        cursor = b""
        while cursor != b"0":
            request = pack("SCAN", cursor or "0", "MATCH", pattern, "COUNT", _SCANNED)
            (reply,) = yield RequestBatch(request, 1)
            if type(reply) is not list:
                raise commands.unusable(reply)
            cursor, names = reply
            found = (naming.key_of(name.decode("utf-8", "replace"), namespace) for name in names)
            keys |= {
                key
                for key in found
                if key and key.namespace == namespace and key.name.startswith(prefix)
            }
    records: list[Any] = []
    ordered = sorted(keys)
    for start in range(0, len(ordered), _READ_AT_ONCE):
        records += yield from _read_all(commands, ordered[start : start + _READ_AT_ONCE])
    # A shared key pattern may also match other clients' keys of other types: those are no leases.
    return tuple(record for record in records if isinstance(record, Record))


def _read_all(commands: Commands, keys: Sequence[Key]) -> Program[list[Any]]:
    """A Record for each key, or the error that the server replied."""
    places = [commands.naming.of(key) for key in keys]
    request = pack("TIME") + b"".join(
        pack("GET", names.main)
        + pack("PTTL", names.main)
        + pack("HGETALL", names.companion)
        + pack("ZRANGE", names.candidates, "0", "-1", "WITHSCORES")
        for names in places
    )
    time, *replies = yield RequestBatch(request, 1 + 4 * len(keys))
    if type(time) is not list:
        raise commands.unusable(time)
    now = int(time[0]) + int(time[1]) / 1e6
    records: list[Any] = []
    for at, names in enumerate(places):
        raw, left, hash_, candidates = replies[4 * at : 4 * at + 4]
        errors = [reply for reply in (raw, hash_) if isinstance(reply, Exception)]
        if errors:
            records.append(errors[0])
            continue
        check_format(raw or b"", commands.where, names.main)
        fields, slots = pairs(hash_), dict[str, float]()
        history = history_of(fields)
        if named := slots_named(history):
            asked = b"".join(pack("PTTL", names.slot(slot)) for slot in named)
            lefts = yield RequestBatch(asked, len(named))
            slots = {slot: ms / 1000 for slot, ms in zip(named, lefts, strict=True) if ms > 0}
        sharing: list[Holding] = []
        if is_shared(raw):
            (ends,) = yield RequestBatch(pack("ZRANGE", names.sharers, "0", "-1", "WITHSCORES"), 1)
            sharing = sharing_of(raw, fields, ends, now)
        about = (raw, left, fields, history, slots, candidates, now, sharing)
        records.append(record_of(names.key, *about))
    return records


def _is_unchanged(commands: Commands, key: Key, seen: str) -> Program[bool]:
    """Whether the state that `Refused.seen` describes is unchanged."""
    what, _, mark = seen.rpartition(" ")
    names = commands.naming.of(key)
    request = pack("GET", names.main)
    if what == "pause":
        request = pack("HGET", names.companion, FIELDS["put"] + b"pause")
    elif what.startswith("slot:"):
        request = pack("GET", names.slot(what.removeprefix("slot:")))
    replies = yield RequestBatch(request + pack("HGET", names.companion, FIELDS["version"]), 2)
    for reply in replies:
        if reply is not None and not isinstance(reply, bytes):
            raise commands.unusable(reply, key)
    raw, version = replies
    is_same = mark_of(raw) == (mark or "-")
    if what and not what.startswith("fields:"):
        return is_same
    return is_same and int(version or 0) == int(what.removeprefix("fields:") or 0)


def _server_time(commands: Commands) -> Program[int]:
    """The server's clock in microseconds."""
    (reply,) = yield RequestBatch(pack("TIME"), 1)
    if type(reply) is not list:
        raise commands.unusable(reply)
    return int(reply[0]) * 1_000_000 + int(reply[1])
