"""The requests of an operation in SQL, and what the server's replies mean. Pure.

`stores.deciding` applies the rules. Each of its requests becomes a call of one function of
schema.sql here, in a transaction of its own. The server casts the values to the argument types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from incumbent.errors import ConfigError, OutcomeUnknown, StoreError
from incumbent.model import Ask, Granted, Key, Released, Renewal, Renewed
from incumbent.net.pool import Broken, Mismatch, decoding
from incumbent.rules.codec import Unreadable, encoded_entry, encoded_waiter
from incumbent.rules.columns import Columns, columns_of, record_of
from incumbent.rules.line import first
from incumbent.rules.record import (
    EVERYBODY,
    NOTHING,
    Entry,
    Grant,
    LastGrant,
    LeaseRecord,
    Line,
    Waiter,
    micros,
    us_after_write,
)
from incumbent.stores import registers
from incumbent.stores.names import flat, unflat
from incumbent.stores.postgresql.errors import RECORD_FORMAT, PostgresErrorReply, answered_error
from incumbent.stores.recall import Recall

T = TypeVar("T")

_BATCH: Final = 500
"""The most leases renewed by one statement, which locks their rows (for some milliseconds)."""
_AT_ONCE: Final = 200
"""The most records read or written by one statement."""
_OUR_FORMAT: Final = f"{RECORD_FORMAT}."
CLAIM_SEPARATOR: Final = " "
"""In a notification for a single claim in line: stands between the key and that claim."""

Reply: TypeAlias = bytes | None
_Found: TypeAlias = registers.Seen | StoreError


class StatementRequest(NamedTuple):
    """One statement; each parameter is text, or None for NULL. Its reply is one value."""

    sql: bytes
    parameters: tuple[bytes | None, ...] = ()


def _call(function: str, *parameters: bytes | None) -> StatementRequest:
    """The request that calls a function of schema.sql."""
    return StatementRequest(_statement(function, len(parameters)), parameters)


@lru_cache
def _statement(function: str, count: int) -> bytes:
    places = ", ".join(f"${place}" for place in range(1, count + 1))
    return f"SELECT incumbent.{function}({places})".encode()


HELLO: Final = _call("hello")
LISTEN: Final = StatementRequest(b"LISTEN incumbent")

_Program: TypeAlias = Generator[StatementRequest, Reply, T]


def same_request(key: Key, seen: str, wait: float) -> StatementRequest:
    """Asks if a record is still as `seen`. The server notifies changes for `wait` seconds."""
    return _call("changed", flat(key).encode(), _text(seen), _microseconds(wait))


class PostgresExchange:
    """The requests of one operation.

    `last`: the server refuses a request that arrives after this instant. `restart_wait`: see
    Deciding. `wrote`: something was changed. A later error does not undo that.
    """

    def __init__(
        self,
        where: str,
        restart_wait: float | None = None,
        last: float = inf,
        recall: Recall | None = None,
    ) -> None:
        self._where, self._recall = where, recall
        self._restart_wait = None if restart_wait is None else _microseconds(restart_wait)
        self._last = b"%d" % (min(last, 1e12) * 1_000_000)
        self._epoch = ""
        self.wrote = False

    def translate(self, program: Generator[Any, Any, T]) -> _Program[T]:
        """Carry out a program that yields the requests of stores.registers."""
        try:
            request = next(program)
            while True:
                try:
                    reply = yield from _TRANSLATIONS[type(request)](self, *request)
                except (Broken, PostgresErrorReply) as error:
                    raise self._failure(error, request) from error
                request = program.send(reply)
        except StopIteration as done:
            outcome: T = done.value
            return outcome

    def _failure(self, error: Broken | PostgresErrorReply, request: object) -> Exception:
        """The exception for a request that failed. Requests before it may have written."""
        if isinstance(error, Broken):
            # A read changes nothing, whether it was carried out or not.
            reads = isinstance(request, registers.Load | registers.Scan)
            sent = self.wrote or (error.sent and not reads)
            return Broken(str(error), sent=sent, late=error.late)
        if not self.wrote:
            return error
        failure = answered_error(error, self._where)
        return OutcomeUnknown(f"{failure}; a part was done before")

    def _ask(self, *request: Any) -> _Program[Reply]:
        return (yield StatementRequest(*request))

    # -- reading ------------------------------------------------------------------------------

    def _load(self, wanted: Sequence[registers.Wanted]) -> _Program[list[_Found]]:
        found: list[_Found] = []
        for some in _parts_of(wanted):
            keys = [it.key for it in some]
            names = _array(_quoted(flat(key).encode()) for key in keys)
            reply = yield _call("load", names, *_beside(some))
            found += self.loaded(reply, keys)
        return found

    def _scan(self, namespace: str, prefix: str) -> _Program[list[tuple[Key, registers.Seen]]]:
        """One request for each 200 records, until one finds none."""
        begin, after = _text(flat(Key(namespace, prefix))), b""
        found: list[tuple[Key, registers.Seen]] = []
        while True:
            reply = _parsed((yield _call("scan", begin, after, b"%d" % _AT_ONCE)), dict)
            with decoding():
                rows = {row[0]: row for row in reply["rows"]}
            if not rows:
                return found
            for name, row in rows.items():
                key = unflat(name)
                one = self._seen(reply, key, row)
                if isinstance(one, registers.Seen):  # What cannot be read is left out.
                    found.append((key, one))
            after = max(rows).encode()

    def loaded(self, reply: Reply, keys: Sequence[Key]) -> list[_Found]:
        """What the server has of these names."""
        return self._found(_parsed(reply, dict), keys)

    def _found(self, reply: dict[str, Any], keys: Sequence[Key]) -> list[_Found]:
        with decoding():
            rows = {row[0]: row for row in reply["rows"]}
            if not rows.keys() <= {flat(key) for key in keys}:
                raise Mismatch("the answer is about other names")
        return [self._seen(reply, key, rows.get(flat(key))) for key in keys]

    def _seen(self, reply: dict[str, Any], key: Key, row: Any) -> _Found:
        with decoding():
            now, (epoch, age, longest) = int(reply["now"]), reply["epoch"]
            incarnation = registers.Incarnation(str(epoch), max(0.0, age), longest / 1e6)
            floor, highest = int(reply["floor"]), int(reply["highest"] or 0)
        self._epoch = _checked_epoch(incarnation.id)
        if row is None:
            nothing = NOTHING._replace(token=highest, version=highest)
            return registers.Seen(nothing, 0, now, now, incarnation, floor)
        try:
            with decoding():
                record, joined, beside = self._parts(key, row)
            return registers.Seen(record, row[1], now, now, incarnation, floor, beside, joined)
        except StoreError as error:
            return error

    def _parts(
        self, key: Key, row: Sequence[Any]
    ) -> tuple[LeaseRecord, tuple[registers.Joined, ...], dict[registers.Place, Any]]:
        """The parts of a row. Raises StoreUnavailable for what is no record."""
        _, _, written, values, due, overtaken, joined, beside, history = row
        columns = Columns(*values)
        columns = columns._replace(meta=bytes.fromhex(values[8]), rest=values[13].encode())
        try:
            record = record_of(columns, written)
        except Unreadable as error:
            raise registers.unreadable(f"the record of {flat(key)}", self._where, error) from error
        if record.line.waiters:
            record = record._replace(line=record.line._replace(lapses_at=due, overtaken=overtaken))
        kept: dict[registers.Place, Any] = {
            ("past", str(index)): LastGrant(*past) for index, *past in history or ()
        }
        for kind, name, text, at in beside or ():
            where = (kind, name)
            kept[where] = registers.value_in(text.encode(), key, where, self._where, at)
        waiters = (
            registers.joined_in(text.encode(), at, key, self._where)._replace(id=waiter)
            for waiter, text, at in joined or ()
        )
        return record, tuple(waiters), kept

    # -- the quick ones -----------------------------------------------------------------------

    def _take(self, key: Key, claim: str, ask: Ask) -> _Program[Granted | _Found]:
        reply = yield _call(
            "take",
            flat(key).encode(),
            _text(claim),
            _microseconds(ask.ttl),
            _text(ask.holder),
            _bytes(ask.meta),
            _microseconds(ask.keep_record),
            self._restart_wait,
            self._last,
            b"t" if ask.candidacy else b"f",
        )
        words = _decoded(reply).split(" ")
        if words[0] == "granted" and len(words) == 5:
            _, echo, token, ttl, epoch = words
            if echo != claim:
                raise Mismatch("the answer is another claim's")
            self.wrote = True
            return Granted(claim, int(token), int(ttl) / 1e6, _checked_epoch(epoch))
        if words == ["late", claim]:
            raise _too_late()
        return self.loaded(reply, [key])[0]

    def _renew(self, renewals: Sequence[Renewal]) -> _Program[list[Renewed | None]]:
        """One request for each epoch, and each 500 renewals."""
        done: list[Renewed | None] = [None] * len(renewals)
        for indexes in _batches(renewals):
            batch = [renewals[index] for index in indexes]
            echo, _, which = _decoded((yield _renew_request(batch))).partition(" ")
            if echo != batch[0].claim:
                raise Mismatch(f"expected the answer to {len(batch)} renewals")
            with decoding():
                for number in json.loads(which):
                    done[indexes[number - 1]] = Renewed()
            self.wrote = True
        return done

    def _give(self, key: Key, claim: str, token: int) -> _Program[Released | _Found]:
        reply = yield _call("give", flat(key).encode(), _text(claim), b"%d" % token)
        word, _, echo = _decoded(reply).partition(" ")
        if word != "released":
            return self.loaded(reply, [key])[0]
        if echo != claim:
            raise Mismatch("the answer is another claim's")
        self.wrote = True
        return Released()

    def _join(self, key: Key, waiter: Waiter, looks_in: int) -> _Program[_Found]:
        text = encoded_waiter(waiter, looks_in)
        names = _text(self._epoch), flat(key).encode(), _text(waiter.claim)
        reply = yield _call("join_line", *names, text, self._last)
        if reply == b"late":
            raise _too_late()
        return self.loaded(reply, [key])[0]

    # -- swaps --------------------------------------------------------------------------------

    def _swap(self, swaps: Sequence[registers.Swap]) -> _Program[list[_Found | None]]:
        replies: dict[int, _Found | None] = {}
        # All clients lock rows in the same order, so that no two of them wait for each other.
        ordered = sorted(swaps, key=lambda it: flat(it.wanted.key))
        for some in _parts_of(ordered):
            written = json.dumps([_written(swap) for swap in some], separators=(",", ":"))
            durable = b"t" if any(_is_durable(swap) for swap in some) else b"f"
            reply = yield _call("swap", written.encode(), durable, self._last)
            if reply == b"late":
                raise _too_late()
            answers = _parsed(reply, list)
            with decoding():
                for swap, (name, what, *written) in zip(some, answers, strict=True):
                    if name != flat(swap.wanted.key):
                        raise Mismatch("the answer is about another name")
                    replies[id(swap)] = None
                    self.wrote = self.wrote or what is None
                    if what is not None:
                        (found,) = self._found(what, [swap.wanted.key])
                        replies[id(swap)] = registers.unless_behind(swap, found, self._where)
                    elif self._recall is not None:
                        self._recall.note(swap, *written)
        return [replies[id(swap)] for swap in swaps]


_TRANSLATIONS: Final[dict[type, Callable[..., _Program[Any]]]] = {
    StatementRequest: PostgresExchange._ask,
    registers.Load: PostgresExchange._load,
    registers.Scan: PostgresExchange._scan,
    registers.Swaps: PostgresExchange._swap,
    registers.TryTake: PostgresExchange._take,
    registers.TryRenew: PostgresExchange._renew,
    registers.TryGive: PostgresExchange._give,
    registers.Join: PostgresExchange._join,
}
"""The methods that carry out the requests of stores.registers."""


def _checked_epoch(epoch: str) -> str:
    """The id of an epoch. Raises Mismatch if it is one of a schema of another format."""
    if not epoch.startswith(_OUR_FORMAT):
        raise Mismatch("its schema was replaced by one of another format")
    return epoch


def _too_late() -> Broken:
    # The connection's offset to the server's clock may be outdated.
    return Broken("by the server's clock it came too late", sent=False)


# -- the requests ----------------------------------------------------------------------------------


def _parts_of(many: Sequence[T]) -> list[Sequence[T]]:
    return [many[at : at + _AT_ONCE] for at in range(0, len(many), _AT_ONCE)]


def _beside(wanted: Iterable[registers.Wanted]) -> tuple[bytes | None, bytes | None]:
    """The kinds and names of the values beside records: NULL for all."""
    places = [place for it in wanted for place in it.beside]
    if registers.ALL[0] in places:
        return None, None
    kinds, names = (_array(_quoted(_text(place[at])) for place in places) for at in (0, 1))
    return kinds, names


def _batches(renewals: Sequence[Renewal]) -> list[list[int]]:
    """The indexes of the renewals of each request: one epoch, at most _BATCH."""
    alike: dict[str, list[int]] = {}
    for index, renewal in enumerate(renewals):
        if renewal.meta is None and not renewal.shared:
            alike.setdefault(renewal.epoch, []).append(index)
    return [
        indexes[start : start + _BATCH]
        for indexes in alike.values()
        for start in range(0, len(indexes), _BATCH)
    ]


def _renew_request(batch: Sequence[Renewal]) -> StatementRequest:
    return _call(
        "renew",
        _text(batch[0].epoch),
        _array(_quoted(flat(each.key).encode()) for each in batch),
        _array(_quoted(_text(each.claim)) for each in batch),
        _array(b"%d" % each.token for each in batch),
        _array(_microseconds(each.ttl) for each in batch),
    )


def _is_durable(swap: registers.Swap) -> bool:
    """Whether it waits for the disk: a field, a slot, a closing or a pause outlives a crash."""
    old, new = swap.seen.record, swap.record
    closes = new.closing is not None and us_after_write(new.closing.until) is not None
    notices = (old.pause, old.resign) != (new.pause, new.resign)
    return closes or notices or any(entry.kind != "past" for entry in swap.entries)


def _written(swap: registers.Swap) -> dict[str, Any]:
    """The parameter of a swap: see swap() in schema.sql."""
    name, seen, wake = flat(swap.wanted.key), swap.seen, swap.wake
    kinds, names = zip(*swap.wanted.beside, strict=True) if swap.wanted.beside else ((), ())
    if wake:
        wake = name if wake == EVERYBODY else f"{name}{CLAIM_SEPARATOR}{wake}"
    return {
        "key": name,
        "version": seen.version,
        "epoch": seen.incarnation.id,
        "not_before": swap.not_before,
        "written": _columns(swap),
        # None, not []: the server skips the statement for a part that is null.
        "entries": [_value(entry) for entry in swap.entries if entry.kind != "past"] or None,
        "past": [
            (entry.name, *entry.value._replace(holder=_checked(entry.value.holder)))
            for entry in swap.entries
            if isinstance(entry.value, LastGrant)
        ]
        or None,
        "joined": [(joined.waiter.claim, joined.id) for joined in seen.joined] or None,
        "alone": seen.recalled,
        "wake": wake or None,
        "kinds": kinds,
        "names": names,
    }


def _columns(swap: registers.Swap) -> dict[str, Any]:
    record = swap.record
    columns = columns_of(record)
    if record.grants and not columns.claim:

        def left(grant: Grant) -> int:
            us = us_after_write(grant.expires)
            return grant.expires - swap.seen.now if us is None else us

        # For begin_epoch() and sweep(), which look at the columns alone.
        longest = max(grant.ttl for grant in record.grants)
        columns = columns._replace(ttl=longest, expires=max(record.grants, key=left).expires)
    return {
        **columns._asdict(),
        "claim": _checked(columns.claim),
        "holder": _checked(columns.holder),
        "meta": _bytes(columns.meta).decode(),
        "rest": columns.rest.decode(),
        "noticed": record.pause is not None or record.resign is not None,
        "due": record.line.lapses_at,
        "overtaken": record.line.overtaken,
        **_next(record),
    }


def _next(record: LeaseRecord) -> dict[str, Any]:
    """The first waiter, if the record is plain apart from its line."""
    waiter = first(record.line)
    if waiter is None or not record._replace(line=Line()).plain:
        return {"next_claim": "", "next_heartbeat": 0, "next_fair": False}
    claim, _, heartbeat, fair = waiter
    return {"next_claim": _checked(claim), "next_heartbeat": heartbeat, "next_fair": fair}


def _value(entry: Entry) -> tuple[str, str, str | None, int | None]:
    """A value beside a record, and the microseconds for which it is kept."""
    value, kind, name = entry.value, entry.kind, _checked(entry.name)
    if value is None:
        return kind, name, None, None
    until = us_after_write(value.expires) if isinstance(value, Grant) else None
    return kind, name, encoded_entry(value).decode(), until


# -- values ---------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _microseconds(seconds: float) -> bytes:
    # Rounded up, so that the store never forgets earlier than was asked.
    return b"%d" % micros(seconds)


def _checked(value: str) -> str:
    if "\0" in value:
        # libpq would cut the text there, and two names could become one.
        raise ConfigError("PostgreSQL keeps no text with a NUL in it", name="store")
    return value


def _text(value: str) -> bytes:
    return _checked(value).encode()


def _bytes(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()


def _quoted(value: bytes) -> bytes:
    return b'"%b"' % value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _array(values: Iterable[bytes]) -> bytes:
    return b"{%b}" % b",".join(values)


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
