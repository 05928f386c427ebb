"""The requests of each operation, as bytes, and what their replies mean. Pure.

Take and give are packed from prepared pieces, because on the hot path every microsecond is a
percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import hiredis

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
    Refused,
    Released,
    Renewal,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.stores.redis.errors import Mismatch, TooLate, answered_error
from incumbent.stores.redis.incarnation import check_format
from incumbent.stores.redis.line import in_line, line_words, new_inbox
from incumbent.stores.redis.names import Names, Naming, quoted
from incumbent.stores.redis.records import mark_of, pairs, record_of, refused, slots_named
from incumbent.stores.redis.renewals import renew_program
from incumbent.stores.redis.resp import SCRIPTS, Part, Program, Script, Step, milliseconds, pack

__all__ = ["Commands", "is_repeatable"]

_SCANNED: Final = 500
_READ_AT_ONCE: Final = 100
_CACHED: Final = 256

_take, _give, _put = SCRIPTS["take"], SCRIPTS["give"], SCRIPTS["put"]
_take_looking = SCRIPTS["take_looking"]


class Commands:
    """Packs and reads for one server, of which `where` tells people."""

    def __init__(self, naming: Naming, where: str) -> None:
        self.naming = naming
        self.where = where
        self._heads: dict[Key, _Heads] = {}
        self._tails: dict[int, tuple[Ask, bytes, bytes]] = {}
        self.inbox = new_inbox()

    def move(self) -> None:
        """Have another inbox: a fork's child must not be told what its parent waits for."""
        self.inbox = new_inbox()
        self._tails.clear()

    # -- take and give: the hot path ----------------------------------------------------------

    def take(self, key: Key, claim: str, ask: Ask, sign: bytes, till: float) -> bytes:
        """The request of a take.

        `sign`: of what incarnation the server is, see Acquaintance; `till`: until when the answer
        is wanted, in seconds of the server's clock.
        """
        kept = self._tails.get(id(ask))
        if kept is None and (ask.slot is not None or ask.candidacy > 0):
            return self._take_more(_take, key, claim, ask, sign, till)
        secret = claim.encode()
        tail = kept[1] if kept is not None and kept[2] is sign else self._tail(ask, sign)
        heads = self._head(key)
        return b"%b$%d\r\nincumbent2 %b \r\n%b$16\r\n%016d\r\n" % (
            heads.take if ask.queue is None else heads.wait,
            12 + len(secret),
            secret,
            tail,
            till * 1e6,
        )

    def take_looking(
        self, key: Key, claim: str, ask: Ask, sign: bytes, till: float, marker: str
    ) -> bytes:
        """The same request with a look at the server, of which the `marker` has this key."""
        return self._take_more(_take_looking, key, claim, ask, sign, till, marker)

    def _take_more(
        self, script: Script, key: Key, claim: str, ask: Ask, sign: bytes, till: float, *more: str
    ) -> bytes:
        names, slot = self.naming.of(key), ask.slot
        keys = [names.main, names.companion]
        parts = [*_ask_parts(ask, quoted(slot.name) if slot else "-", sign)]
        special = slot is not None or ask.candidacy > 0
        if special or ask.queue is not None:
            parts.append(line_words(self.inbox, ask, quoted(ask.holder)))
        if special:
            parts.append(milliseconds(slot.keep) if slot else "-")
        if ask.queue is not None:
            keys.append(names.line)
        if slot is not None:
            keys.append(names.slot(slot.name))
        if ask.candidacy > 0:
            keys.append(names.candidates)
            parts += (milliseconds(ask.candidacy), names.channel)
        keys += more
        last = b"%016d" % (till * 1e6)
        return script.call(len(keys), *keys, _held(claim, None), *parts, last)

    def _head(self, key: Key) -> _Heads:
        try:
            return self._heads[key]
        except KeyError:
            pass
        if len(self._heads) >= _CACHED * 4:
            self._heads.clear()
        names = self.naming.of(key)
        both = (names.main, names.companion)
        heads = self._heads[key] = _Heads(
            _take.open_call(both, 6),
            _take.open_call((*both, names.line), 7),
            _give.open_call((*both, names.line), 2),
            pack(names.channel).partition(b"\r\n")[2],
        )
        return heads

    def _tail(self, ask: Ask, sign: bytes) -> bytes:
        if len(self._tails) >= _CACHED:
            self._tails.clear()
        words = () if ask.queue is None else (line_words(self.inbox, ask, quoted(ask.holder)),)
        tail = pack(*_ask_parts(ask, "-", sign), *words).partition(b"\r\n")[2]
        # By identity, and with the object itself so that the identity stays its own: an Ask is
        # made once a lock, and hashing its fields would cost more than packing them.
        self._tails[id(ask)] = (ask, tail, sign)
        return tail

    def taken(self, answer: Any, key: Key, claim: str, ask: Ask, epoch: str) -> TakeOutcome:
        """The outcome of a take.

        Raises Mismatch if the answer is another claim's, TooLate if the take did.
        """
        if type(answer) is bytes:
            head, _, token = answer.rpartition(b" ")
            if head != b"incumbent2 " + claim.encode():
                raise Mismatch("the answer is another claim's")
            return Granted(claim, int(token), ask.ttl, epoch)
        if type(answer) is not list:
            if type(answer) is int:
                raise TooLate("the take came too late by the server's clock")
            raise self._unusable(answer, key)
        if len(answer) == 1:
            return self.taken(answer[0], key, claim, ask, epoch)
        if len(answer) == 2:
            first = self.taken(answer[0], key, claim, ask, epoch)
            return first._replace(ttl=answer[1] / 1000) if isinstance(first, Granted) else first
        return self._refused(answer, key, claim, ask, epoch)

    def _refused(self, answer: list[Any], key: Key, claim: str, ask: Ask, epoch: str) -> Refused:
        if len(answer) not in (4, 5) or not isinstance(answer[1], bytes):
            raise self._unusable(answer, key)
        kind, raw, left, now, *place = answer
        check_format(raw, self.where, self.naming.of(key).main)
        refusal = refused(kind, raw, left, now, ask.slot.name if ask.slot else "")
        return in_line(refusal, claim, ask, now, place[0], epoch) if place else refusal

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        closed_for: float,
        slot: str | None,
        reserve_for: str | None = None,
    ) -> bytes:
        """The request of a give."""
        if not token or slot is not None or closed_for > 0:
            return self._give_more(key, claim, token, closed_for, slot, reserve_for)
        held = b"incumbent2 %b %d " % (claim.encode(), token)
        heads = self._head(key)
        return b"%b$%d\r\n%b\r\n%b" % (heads.give, len(held), held, heads.channel)

    def _give_more(
        self,
        key: Key,
        claim: str,
        token: int | None,
        closed_for: float,
        slot: str | None,
        reserve_for: str | None,
    ) -> bytes:
        names = self.naming.of(key)
        keys = [names.main, names.companion, names.line]
        if slot is not None:
            keys.append(names.slot(slot))
        closed = milliseconds(closed_for) if closed_for > 0 else 0
        successor = (quoted(reserve_for),) if reserve_for else ()
        held, any_token = _held(claim, token), _held(claim, None)
        parts = (held, names.channel, closed, any_token, *successor)
        return _give.call(len(keys), *keys, *parts)

    def undo(self, key: Key, grant: Granted, slot: str | None) -> bytes:
        """The request that gives a grant back which is not believed, and may be asked for again.

        Nobody trusts what the grant left beside the lease: see take.lua.
        """
        names = self.naming.of(key)
        keys = [names.main, names.companion, names.line]
        if slot is not None:
            keys.append(names.slot(slot))
        held = (_held(grant.claim, grant.token), names.channel, 0, _held(grant.claim, None))
        return _give.call(len(keys), *keys, *held, "", "undo")

    def given(self, answer: Any, key: Key) -> GiveOutcome:
        """The outcome of a give."""
        if type(answer) is not int:
            raise self._unusable(answer, key)
        return _RELEASED if answer else _GONE

    # -- renew --------------------------------------------------------------------------------

    def renew(self, renewals: Sequence[Renewal], epoch: str) -> Program[list[RenewOutcome]]:
        """Renew what this incarnation of the server granted; it knows nothing of the rest."""
        return renew_program(self.naming, renewals, epoch, self._unusable)

    # -- put, read, scan ----------------------------------------------------------------------

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard) -> Program[PutOutcome]:
        """Write or remove a field."""
        names = self.naming.of(key)
        written = b"-" if value is None else b"=" + value
        parts = (names.main, names.companion, f"f:{field}", *_guard(guard), written, names.channel)
        (answer,) = yield Step(_put.call(2, *parts), 1)
        if type(answer) is not int:
            raise self._unusable(answer, key)
        return Stale() if answer < 0 else Stored(answer)

    def read(self, key: Key) -> Program[Record]:
        """All that is known of a key."""
        (record,) = yield from self._read_all([key])
        if isinstance(record, Record):
            return record
        raise self._unusable(record, key)

    def scan(self, namespace: str, prefix: str) -> Program[tuple[Record, ...]]:
        """Every key of the namespace that begins with the prefix."""
        keys: set[Key] = set()
        for pattern in self.naming.patterns(namespace, prefix):
            keys |= yield from self._scan_keys(pattern, namespace, prefix)
        found: list[Any] = []
        ordered = sorted(keys)
        for start in range(0, len(ordered), _READ_AT_ONCE):
            found += yield from self._read_all(ordered[start : start + _READ_AT_ONCE])
        # With a shared key pattern, other clients' keys of other types match too: not leases.
        return tuple(record for record in found if isinstance(record, Record))

    def _scan_keys(self, pattern: str, namespace: str, prefix: str) -> Program[set[Key]]:
        keys: set[Key] = set()
        cursor = b"0"
        while True:
            (answer,) = yield Step(pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED), 1)
            if type(answer) is not list:
                raise self._unusable(answer, None)
            cursor, names = answer
            for name in names:
                key = self.naming.key_of(name.decode("utf-8", "replace"), namespace)
                if key is not None and key[0] == namespace and key.name.startswith(prefix):
                    keys.add(key)
            if cursor == b"0":
                return keys

    def _read_all(self, keys: Sequence[Key]) -> Program[list[Any]]:
        """A Record for each key, or the error that the server answered."""
        names = [self.naming.of(key) for key in keys]
        answers = yield Step(pack("TIME") + b"".join(map(_read_request, names)), 1 + 4 * len(keys))
        if type(answers[0]) is not list:
            raise self._unusable(answers[0], None)
        now = int(answers[0][0]) + int(answers[0][1]) / 1e6
        found: list[Any] = []
        for at, each in enumerate(names):
            raw, left, companion, standing = answers[1 + 4 * at : 5 + 4 * at]
            broken = [it for it in (raw, companion) if isinstance(it, Exception)]
            if broken:
                found.append(broken[0])
                continue
            check_format(raw or b"", self.where, each.main)
            kept = pairs(companion)
            slots = yield from _read_slots(each, slots_named(kept))
            found.append(record_of(each.key, raw, left, kept, slots, standing, now))
        return found

    # -- waiting ------------------------------------------------------------------------------

    def unchanged(self, key: Key, seen: str) -> Program[bool]:
        """Whether what `Refused.seen` speaks of is still as it was."""
        what, _, mark = seen.rpartition(" ")
        names = self.naming.of(key)
        request = pack("GET", names.main)
        if what == "pause":
            request = pack("HGET", names.companion, "f:pause")
        elif what.startswith("slot:"):
            request = pack("GET", names.slot(what.removeprefix("slot:")))
        answers = yield Step(request + pack("HGET", names.companion, "v"), 2)
        for answer in answers:
            if answer is not None and not isinstance(answer, bytes):
                raise self._unusable(answer, key)
        same = mark_of(answers[0]) == (mark or "-")
        if what and not what.startswith("fields:"):
            return same
        return same and int(answers[1] or 0) == int(what.removeprefix("fields:") or 0)

    def time(self) -> Program[int]:
        """The server's clock in microseconds."""
        (answer,) = yield Step(pack("TIME"), 1)
        if type(answer) is not list:
            raise self._unusable(answer, None)
        return int(answer[0]) * 1_000_000 + int(answer[1])

    # -- errors -------------------------------------------------------------------------------

    def _unusable(self, answer: Any, key: Key | None) -> Exception:
        if isinstance(answer, hiredis.ReplyError):
            at = self.naming.of(key).main if key else ""
            return answered_error(str(answer), self.where, at)
        return Mismatch(f"an answer of type {type(answer).__name__} was not expected")


def is_repeatable(guard: Guard) -> bool:
    """Whether a second, equal write would give the same answer as the first."""
    return guard is None or isinstance(guard, ByClaim)


class _Heads(NamedTuple):
    """The beginnings of the requests for one key: a take, one that waits, a give."""

    take: bytes
    wait: bytes
    give: bytes
    channel: bytes


_RELEASED: Final = Released()
_GONE: Final = Gone()


def _ask_parts(ask: Ask, slot: str, sign: bytes) -> tuple[Part, ...]:
    holder = quoted(ask.holder)
    value = f" {milliseconds(ask.ttl)} {holder} ".encode() + ask.meta
    keep = milliseconds(max(ask.ttl, ask.keep_record))
    return (value, milliseconds(ask.ttl), b"%d %b" % (keep, sign), f" {slot} {holder}")


def _held(claim: str, token: int | None) -> str:
    return f"incumbent2 {claim} " if token is None else f"incumbent2 {claim} {token} "


def _guard(guard: Guard) -> tuple[str, str]:
    match guard:
        case None:
            return ("none", "")
        case Absent():
            return ("absent", "")
        case ByVersion(version):
            return ("version", str(version))
        case ByClaim(claim, token):
            return ("claim", _held(claim, token))


def _read_request(names: Names) -> bytes:
    lease = pack("GET", names.main) + pack("PTTL", names.main)
    standing = pack("ZRANGE", names.candidates, "0", "-1", "WITHSCORES")
    return lease + pack("HGETALL", names.companion) + standing


def _read_slots(names: Names, slots: Sequence[str]) -> Program[dict[str, float]]:
    if not slots:
        return {}
    requests = b"".join(pack("PTTL", names.slot(slot)) for slot in slots)
    lefts = yield Step(requests, len(slots))
    return {slot: left / 1000 for slot, left in zip(slots, lefts, strict=True) if left > 0}
