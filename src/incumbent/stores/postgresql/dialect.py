"""The plan of each operation, and the meaning of its replies. Pure.

Every request is one call of one function; the server casts the values to its argument types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from incumbent.errors import ConfigError
from incumbent.model import (
    Absent,
    Ask,
    ByClaim,
    ByVersion,
    Candidate,
    Field,
    GiveOutcome,
    Gone,
    Granted,
    Guard,
    Holding,
    Key,
    Past,
    PutOutcome,
    Record,
    Refused,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.net.pool import Broken, Mismatch, decoding
from incumbent.stores.base import Gave, Give, Take, Took
from incumbent.stores.names import flat, unflat
from incumbent.stores.notices import notices_for
from incumbent.stores.plan import Kind, Plan
from incumbent.stores.postgresql.errors import RECORD_FORMAT, restart_error
from incumbent.stores.turns import Turns

T = TypeVar("T")

_BATCH: Final = 500
"""The most leases renewed by one statement, which locks their rows (for some milliseconds)."""
_READ_AT_ONCE: Final = 200
_OUR_FORMAT: Final = f"{RECORD_FORMAT}."

Reply: TypeAlias = bytes | None


class Request(NamedTuple):
    """One statement; each parameter is text, or None for NULL. Its reply is one value."""

    sql: bytes
    parameters: tuple[bytes | None, ...] = ()


def _call(function: str, *parameters: bytes | None) -> Request:
    """The request that calls a function of schema.sql."""
    return Request(_statement(function, len(parameters)), parameters)


@lru_cache
def _statement(function: str, count: int) -> bytes:
    places = ", ".join(f"${place}" for place in range(1, count + 1))
    return f"SELECT incumbent.{function}({places})".encode()


OURS: Final = " next"
"""A suffix of a key in a notification: the release that comes next is left to one process."""
HELLO: Final = _call("hello")
LISTEN: Final = Request(b"LISTEN incumbent")

_Program: TypeAlias = Generator[Request, Reply, T]


class Dialect:
    """See stores.plan.DialectOfMany. Its facts are the seconds that the server's clock is ahead.

    `where`: the store's URL for messages. `restart_wait`: seconds; None lets the server decide.
    `turns`: the turns of all waiters of the store.
    """

    def __init__(self, where: str, restart_wait: float | None) -> None:
        self._where = where
        self.turns = Turns()
        self._wait = None if restart_wait is None else _microseconds(restart_wait)

    def take(self, key: Key, claim: str, ask: Ask) -> Plan[float, TakeOutcome]:
        """Plan a take; its last parameter is the instant after which the server refuses it."""
        parameters = self._take_parameters(key, claim, ask)
        function = "take" if ask.permits is None else "share"

        def start(ahead: float, until: float) -> _Program[TakeOutcome]:
            reply = yield _call(function, *parameters, _last(until + ahead))
            return self._take_outcome(reply, claim)

        # Not repeatable: the caller repeats a take in doubt, and remembers that there were two.
        return Plan("take", start, (key,), repeatable=False, ttl=ask.ttl)

    def take_all(self, takes: Sequence[Take]) -> Plan[float, Took]:
        """Plan takes of exclusive leases, in one transaction."""
        asked = [[it and it.decode() for it in self._take_parameters(*take)] for take in takes]
        parameter = json.dumps(asked).encode()

        def start(ahead: float, until: float) -> _Program[Took]:
            reply = yield _call("take_all", parameter, _last(until + ahead))
            answers: list[str] = _parsed(reply, list)
            return [
                self._take_outcome(answer.encode(), take.claim)
                for answer, take in zip(answers, takes, strict=False)
            ]

        keys, ttl = [take.key for take in takes], max(take.ask.ttl for take in takes)
        return Plan("take", start, keys, repeatable=False, ttl=ttl)

    def _take_parameters(self, key: Key, claim: str, ask: Ask) -> tuple[bytes | None, ...]:
        slot = ask.slot
        return (
            flat(key).encode(),
            _text(claim),
            _microseconds(ask.ttl),
            _text(ask.holder),
            _bytes(ask.meta),
            _microseconds(ask.keep_record),
            self._wait,
            *(
                (_text(slot.name) if slot else None, _microseconds(slot.keep) if slot else None)
                if ask.permits is None
                else (b"%d" % ask.permits,)
            ),
            _microseconds(ask.candidacy),
        )

    def _take_outcome(self, reply: Reply, claim: str) -> TakeOutcome:
        words = _decoded(reply).split(" ")
        if words[0] == "granted" and len(words) == 5:
            _, echo, token, ttl, epoch = words
            if echo != claim:
                raise Mismatch("the answer is another claim's")
            if not epoch.startswith(_OUR_FORMAT):
                raise Mismatch("its schema was replaced by one of another format")
            return Granted(claim, int(token), int(ttl) / 1e6, epoch)
        if words == ["late", claim]:
            # The connection's offset to the server's clock may be outdated.
            raise Broken("by the server's clock it came too late", sent=False)
        if words[0] == "wait" and len(words) == 3:
            raise restart_error(self._where, int(words[2]) / 1e6, int(words[1]) / 1e6)
        return _parsed(reply, _refusal)

    def renew(self, renewals: Sequence[Renewal]) -> Plan[float, list[RenewOutcome]]:
        """Plan renewals: one request for each epoch and kind of lease, and each 500 renewals."""

        def start(_ahead: float, _until: float) -> _Program[list[RenewOutcome]]:
            outcomes: dict[int, RenewOutcome] = {}
            for places in _batches(renewals):
                batch = [renewals[place] for place in places]
                reply = yield _renew_request(batch)
                outcomes.update(zip(places, _renewed(reply, batch), strict=True))
            return [outcomes[place] for place in range(len(renewals))]

        return Plan("renew", start, renewals=renewals)

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
        shared: bool = False,
    ) -> Plan[float, GiveOutcome]:
        claimed = (flat(key).encode(), _text(claim), None if token is None else b"%d" % token)
        reserved = _text(reserve_for) if reserve_for else None
        undone = None if slot is None else _text(slot)
        if shared:
            request = _call("share_give", *claimed)
        else:
            request = _call("give", *claimed, _microseconds(closed_for), reserved, undone)
        if token and not (shared or closed_for or slot) and self.turns.is_ours(key):
            sql, parameters = request
            ours = b"%b FROM pg_catalog.pg_notify('incumbent', $7)" % sql
            request = Request(ours, (*parameters, (flat(key) + OURS).encode()))
        return _plan("give", key, request, lambda reply: _give_outcome(_decoded(reply), claim))

    def give_all(self, gives: Sequence[Give]) -> Plan[float, Gave]:
        """Plan gives, in one transaction."""
        keys, claims, tokens = zip(*gives, strict=True)
        request = _call(
            "give_all",
            _array(_quoted(flat(key).encode()) for key in keys),
            _array(_quoted(_text(claim)) for claim in claims),
            _array(b"%d" % token for token in tokens),
        )

        def start(_ahead: float, _until: float) -> _Program[Gave]:
            answers = _parsed((yield request), list)
            return [_give_outcome(*each) for each in zip(answers, claims, strict=True)]

        return Plan("give", start, keys, repeatable=False)

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> Plan[float, PutOutcome]:
        written = None if value is None else _bytes(value)
        request = _call("put", flat(key).encode(), _text(field), written, *_guard(guard))

        def stored(reply: Reply) -> PutOutcome:
            version = int(_decoded(reply))
            return Stale() if version < 0 else Stored(version)

        repeatable = guard is None or isinstance(guard, ByClaim)
        return _plan("put", key, request, stored, repeatable=repeatable)

    def read(self, key: Key) -> Plan[float, Record]:

        def record(reply: Reply) -> Record:
            return Record(key) if reply is None else _parsed(reply, _record)

        return _plan("read", key, _call("read", flat(key).encode()), record)

    def scan(self, namespace: str, prefix: str) -> Plan[float, tuple[Record, ...]]:
        """Plan a scan: one request for each 200 records, until one finds none."""
        start_with = _text(flat(Key(namespace, prefix)))

        def start(_ahead: float, _until: float) -> _Program[tuple[Record, ...]]:
            found: list[Record] = []
            while True:
                after = _text(flat(found[-1].key)) if found else b""
                reply = yield _call("scan", start_with, after, b"%d" % _READ_AT_ONCE)
                more = _parsed(reply, lambda records: [_record(each) for each in records])
                if not more:
                    return tuple(found)
                found += more

        return Plan("scan", start)

    def unchanged(self, key: Key, seen: str, wait: float) -> Plan[float, bool]:
        """Plan to ask if a record is unchanged; changes in the next `wait` seconds are notified."""
        request = _call("changed", flat(key).encode(), _text(seen), _microseconds(wait))
        return _plan("look", key, request, lambda reply: reply == b"same")


def _plan(
    kind: Kind, key: Key, request: Request, read: Callable[[Reply], T], *, repeatable: bool = True
) -> Plan[float, T]:
    """A plan of one request."""

    def start(_ahead: float, _until: float) -> _Program[T]:
        return read((yield request))

    return Plan(kind, start, (key,), repeatable=repeatable)


def _give_outcome(answer: str, claim: str) -> GiveOutcome:
    outcome, _, echo = answer.partition(" ")
    if echo != claim or outcome not in ("released", "gone"):
        raise Mismatch("the answer is another claim's")
    return Released() if outcome == "released" else Gone()


# -- renewals -------------------------------------------------------------------------------------


def _batches(renewals: Sequence[Renewal]) -> list[list[int]]:
    """The indexes of the renewals of each request: one epoch and kind, at most _BATCH."""
    alike: dict[tuple[str, bool], list[int]] = {}
    for place, renewal in enumerate(renewals):
        alike.setdefault((renewal.epoch, renewal.shared), []).append(place)
    return [
        places[start : start + _BATCH]
        for places in alike.values()
        for start in range(0, len(places), _BATCH)
    ]


def _renew_request(batch: Sequence[Renewal]) -> Request:
    return _call(
        "share_renew" if batch[0].shared else "renew",
        _text(batch[0].epoch),
        _array(_quoted(flat(each.key).encode()) for each in batch),
        _array(_quoted(_text(each.claim)) for each in batch),
        _array(b"%d" % each.token for each in batch),
        _array(_microseconds(each.ttl) for each in batch),
        _array(b"NULL" if each.meta is None else _quoted(_bytes(each.meta)) for each in batch),
    )


def _renewed(reply: Reply, batch: Sequence[Renewal]) -> list[RenewOutcome]:
    echo, _, rest = _decoded(reply).partition(" ")
    if echo != batch[0].claim:
        raise Mismatch(f"expected the answer to {len(batch)} renewals")
    done = json.loads(rest)
    if done is None:
        return [Gone("store_restarted")] * len(batch)
    outcomes: list[RenewOutcome] = [Gone()] * len(batch)
    for place, *fields in done:
        pause, resign = (None if each is None else bytes.fromhex(each) for each in fields)
        token = batch[place - 1].token
        outcomes[place - 1] = Renewed(notices_for(token, pause, resign))
    return outcomes


# -- records --------------------------------------------------------------------------------------


def _refusal(fields: dict[str, Any]) -> Refused:
    reason, seen = fields["reason"], fields["seen"]
    if reason in ("paused", "given_up"):
        return Refused("paused" if reason == "paused" else "closed", seen=seen)
    sharers = tuple(_holding(each) for each in fields.get("sharers") or ())
    if reason in ("no_room", "permits"):
        first = min((one.remaining or 0.0 for one in sharers), default=0.0)
        if reason == "permits":
            return Refused("permits", sharers, first, seen, permits=fields["permits"])
        return Refused("held", sharers, first, seen)
    holding = _holding(fields["holding"])
    left = holding.remaining
    if reason == "held":
        return Refused("held", sharers or (holding,), left, seen)
    if reason == "reserved":
        return Refused("reserved", (Holding(fields["reserved_for"], remaining=left),), left, seen)
    if reason == "closed":
        holding = Holding(holding.holder, holding.token, left)
    elif reason != "used":
        raise ValueError(f"the reason {reason} is not known")
    return Refused(reason, (holding,), left, seen)


def _holding(fields: dict[str, Any]) -> Holding:
    return Holding(
        fields["holder"],
        fields["token"],
        float(fields["left"]),
        fields["ttl"] / 1e6,
        max(0.0, float(fields["for"])),
        bytes.fromhex(fields["meta"]),
        fields["claim"],
        permits=fields.get("permits"),
    )


def _record(fields: dict[str, Any]) -> Record:
    holding = fields["holding"]
    left, held = float(holding["left"]), holding["claim"] != ""
    closed = left > 0 and not held
    held_by = fields.get("sharers") or [holding]
    return Record(
        unflat(fields["key"]),
        tuple(_holding(each) for each in held_by) if held and left > 0 else (),
        left if closed else 0.0,
        {
            name: Field(bytes.fromhex(value), version)
            for name, value, version in fields["fields"] or []
        },
        {name: float(kept) for name, kept in fields["slots"] or []},
        tuple(Past(*past) for past in fields["history"] or []),
        tuple(Candidate(holder, float(age)) for holder, age in fields["candidates"] or []),
        fields["seen"],
        fields["reserved_for"] if closed else "",
    )


# -- values ---------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _microseconds(seconds: float) -> bytes:
    # Rounded up, so that the store never forgets earlier than was asked.
    return b"%d" % ceil(seconds * 1_000_000)


def _last(instant: float) -> bytes:
    """The parameter for the last instant at which the server carries out a take."""
    return b"%d" % (instant * 1_000_000)


def _text(value: str) -> bytes:
    if "\0" in value:
        # libpq would cut the text there, and two names could become one.
        raise ConfigError("PostgreSQL keeps no text with a NUL in it", name="store")
    return value.encode()


def _bytes(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()


def _quoted(value: bytes) -> bytes:
    return b'"%b"' % value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _array(values: Iterable[bytes]) -> bytes:
    return b"{%b}" % b",".join(values)


def _guard(guard: Guard) -> tuple[bytes, bytes | None, bytes | None]:
    match guard:
        case None:
            return (b"none", None, None)
        case Absent():
            return (b"absent", None, None)
        case ByVersion(version):
            return (b"version", b"%d" % version, None)
        case ByClaim(claim, token):
            return (b"claim", b"%d" % token, _text(claim))


def read_object(reply: Reply) -> dict[str, Any]:
    """The JSON object of a reply. Raises Mismatch."""
    with decoding():
        return dict(json.loads(reply or b"{}"))


def _decoded(reply: Reply) -> str:
    if reply is None:
        raise Mismatch("an empty answer was not expected")
    return reply.decode()


def _parsed(reply: Reply, read: Callable[[Any], T]) -> T:
    with decoding():
        return read(json.loads(_decoded(reply)))
