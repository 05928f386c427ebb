"""What each operation of the contract says to the server, and what the answers mean. Pure.

Every request is one call of one function, with values that the server casts to its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple, TypeVar

from incumbent.errors import ConfigError
from incumbent.model import (
    Absent,
    Ask,
    ByClaim,
    ByVersion,
    GiveOutcome,
    Gone,
    Granted,
    Guard,
    Key,
    PutOutcome,
    Record,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.stores.names import flat
from incumbent.stores.notices import notices_for
from incumbent.stores.postgresql.errors import Broken, Mismatch, restart_error
from incumbent.stores.postgresql.records import record_of, refused

__all__ = ["CHANNEL", "HELLO", "LISTEN", "Dialect", "Request", "batches", "is_repeatable"]

T = TypeVar("T")

CHANNEL: Final = "incumbent"
_BATCH: Final = 500
"""Leases renewed by one statement, whose rows are locked meanwhile (some milliseconds)."""
_READ_AT_ONCE: Final = 200

_TAKE: Final = b"SELECT incumbent.take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_RENEW: Final = b"SELECT incumbent.renew($1, $2, $3, $4, $5, $6)"
_GIVE: Final = b"SELECT incumbent.give($1, $2, $3, $4, $5, $6)"
_PUT: Final = b"SELECT incumbent.put($1, $2, $3, $4, $5, $6)"
_READ: Final = b"SELECT incumbent.read($1)"
_SCAN: Final = b"SELECT incumbent.scan($1, $2, $3)"
_CHANGED: Final = b"SELECT incumbent.changed($1, $2, $3)"


class Request(NamedTuple):
    """One statement; each parameter is text, or None for NULL. It answers one value.

    `timed`: the connection adds the instant, by the server's clock, after which nobody wants it.
    """

    sql: bytes
    parameters: tuple[bytes | None, ...] = ()
    timed: bool = False


HELLO: Final = Request(b"SELECT incumbent.hello()")
LISTEN: Final = Request(b"LISTEN incumbent")


class Dialect:
    """Packs and reads for one database, of which `where` tells people."""

    def __init__(self, where: str, restart_wait: float | None) -> None:
        self.where = where
        self._wait = None if restart_wait is None else _us(restart_wait)

    def take(self, key: Key, claim: str, ask: Ask) -> Request:
        """The request of a take."""
        slot = ask.slot
        return Request(
            _TAKE,
            (
                flat(key).encode(),
                _text(claim),
                _us(ask.ttl),
                _text(ask.holder),
                _bytes(ask.meta),
                _us(ask.keep_record),
                self._wait,
                _text(slot.name) if slot else None,
                _us(slot.keep) if slot else None,
                _us(ask.candidacy),
            ),
            timed=True,
        )

    def taken(self, answer: bytes | None, claim: str) -> TakeOutcome:
        """The outcome of a take.

        Raises Mismatch if the answer is another claim's, and Broken if the take came too late: what
        the connection knows of the server's clock may be old.
        """
        words = _said(answer).split(" ")
        if words[0] == "granted" and len(words) == 5:
            _, echo, token, ttl, epoch = words
            if echo != claim:
                raise Mismatch("the answer is another claim's")
            return Granted(claim, int(token), int(ttl) / 1e6, epoch)
        if words == ["late", claim]:
            raise Broken("by the server's clock it came too late", sent=False)
        if words[0] == "wait" and len(words) == 3:
            raise restart_error(self.where, int(words[2]) / 1e6, int(words[1]) / 1e6)
        return _loaded(answer, refused)

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        closed_for: float,
        reserve_for: str | None,
        slot: str | None,
    ) -> Request:
        """The request of a give."""
        return Request(
            _GIVE,
            (
                flat(key).encode(),
                _text(claim),
                None if token is None else b"%d" % token,
                _us(closed_for),
                _text(reserve_for) if reserve_for else None,
                None if slot is None else _text(slot),
            ),
        )

    def given(self, answer: bytes | None, claim: str) -> GiveOutcome:
        """The outcome of a give. Raises Mismatch if the answer is another claim's."""
        how, _, echo = _said(answer).partition(" ")
        if echo != claim or how not in ("released", "gone"):
            raise Mismatch("the answer is another claim's")
        return Released() if how == "released" else Gone()

    def renew(self, batch: Sequence[Renewal]) -> Request:
        """The request of some renewals, all of one epoch."""
        return Request(
            _RENEW,
            (
                _text(batch[0].epoch),
                _array(_quoted(flat(it.key).encode()) for it in batch),
                _array(_quoted(_text(it.claim)) for it in batch),
                _array(b"%d" % it.token for it in batch),
                _array(_us(it.ttl) for it in batch),
                _array(b"NULL" if it.meta is None else _quoted(_bytes(it.meta)) for it in batch),
            ),
        )

    def renewed(self, answer: bytes | None, batch: Sequence[Renewal]) -> list[RenewOutcome]:
        """The outcomes of these renewals. Raises Mismatch if the answer is to others."""
        echo, _, rest = _said(answer).partition(" ")
        if echo != batch[0].claim:
            raise Mismatch(f"expected the answer to {len(batch)} renewals")
        done = json.loads(rest)
        if done is None:
            return [Gone("store_restarted")] * len(batch)
        outcomes: list[RenewOutcome] = [Gone()] * len(batch)
        for which, pause, resign in done:
            token = batch[which - 1].token
            outcomes[which - 1] = Renewed(notices_for(token, _unhex(pause), _unhex(resign)))
        return outcomes

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard) -> Request:
        """Write or remove a field."""
        kind, number, claim = _guard(guard)
        written = None if value is None else _bytes(value)
        return Request(_PUT, (flat(key).encode(), _text(field), written, kind, number, claim))

    def stored(self, answer: bytes | None) -> PutOutcome:
        """The outcome of a put."""
        version = int(_said(answer))
        return Stale() if version < 0 else Stored(version)

    def read(self, key: Key) -> Request:
        """All that is known of a key."""
        return Request(_READ, (flat(key).encode(),))

    def record(self, answer: bytes | None, key: Key) -> Record:
        """What was read."""
        return Record(key) if answer is None else _loaded(answer, record_of)

    def scan(self, namespace: str, prefix: str, after: str) -> Request:
        """The next records whose name begins with the prefix."""
        start = flat(Key(namespace, prefix))
        return Request(_SCAN, (_text(start), _text(after), b"%d" % _READ_AT_ONCE))

    def records(self, answer: bytes | None) -> list[Record]:
        """What was read; the scan goes on unless nothing was."""
        return _loaded(answer, lambda found: [record_of(each) for each in found])

    def changed(self, key: Key, seen: str, wait: float) -> Request:
        """Whether a record is other than it was; with `wait`, changes within it are told."""
        return Request(_CHANGED, (flat(key).encode(), _text(seen), _us(wait)))

    def is_same(self, answer: bytes | None) -> bool:
        """Whether it is not."""
        return answer == b"same"


def is_repeatable(guard: Guard) -> bool:
    """Whether a second, equal write would give the same answer as the first."""
    return guard is None or isinstance(guard, ByClaim)


def batches(renewals: Sequence[Renewal]) -> list[list[int]]:
    """The places of what goes into one request each: one epoch, and not too many."""
    by_epoch: dict[str, list[int]] = {}
    for place, renewal in enumerate(renewals):
        by_epoch.setdefault(renewal.epoch, []).append(place)
    return [
        places[start : start + _BATCH]
        for places in by_epoch.values()
        for start in range(0, len(places), _BATCH)
    ]


@lru_cache(maxsize=256)
def _us(seconds: float) -> bytes:
    # Up, so that the store never forgets earlier than was asked.
    return b"%d" % ceil(seconds * 1_000_000)


def _text(value: str) -> bytes:
    if "\0" in value:
        # libpq would cut it there, and two names could become one.
        raise ConfigError("PostgreSQL keeps no text with a NUL in it", name="store")
    return value.encode()


def _bytes(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()


def _unhex(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def _quoted(value: bytes) -> bytes:
    return b'"%b"' % value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _array(values: Any) -> bytes:
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


def _said(answer: bytes | None) -> str:
    if answer is None:
        raise Mismatch("an empty answer was not expected")
    return answer.decode()


def _loaded(answer: bytes | None, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(_said(answer)))
    except (KeyError, TypeError, ValueError) as error:
        raise Mismatch(f"an answer of another shape was expected: {error}") from error
