"""The text of a record, for stores that keep texts.

    incumbent1 <CRC-32 of the rest, in hexadecimal> <JSON>

The number is the format: rules that decide otherwise write another one, because the clients of a
store apply them side by side. The checksum tells a record that was cut short or edited by hand,
which must not be taken for a free name. An instant that begins with the write is "+<us>". Parts
with a name that is not known here are carried on as they are: so a later version adds only parts
that decide nothing, and no "+<us>" in them, which would begin again with every write.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import crc32
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeVar

from incumbent.model import Field
from incumbent.rules.record import (
    Beside,
    Closing,
    GivenUp,
    Grant,
    Instant,
    LastGrant,
    LeaseRecord,
    Line,
    ListedCandidate,
    Waiter,
    after,
    dated,
    dated_grant,
    us_after_write,
)

__all__ = [
    "RECORD_FORMAT",
    "Unreadable",
    "decoded",
    "decoded_entry",
    "decoded_waiter",
    "encoded",
    "encoded_entry",
    "encoded_waiter",
    "waiters_of",
]

T = TypeVar("T")

RECORD_FORMAT: Final = 1
"""Also part of the number of each store that keeps columns: a plain row has no text to say it."""

_SEALED: Final = re.compile(rb"incumbent(\d{1,9}) ([0-9a-f]{8}) (.*)", re.DOTALL)
_KNOWN: Final = frozenset({
    *("token", "granted", "changes", "held", "last", "closed", "pause", "resign"),
    *("line", "candidates", "given_up", "version", "keep"),
})  # fmt: skip


class Unreadable(ValueError):
    """A text is no record of this format; the message says why, after "it"."""


# -- records ---------------------------------------------------------------------------------------


def encoded(record: LeaseRecord) -> bytes:
    """The text of a record."""
    parts: dict[str, Any] = {
        **record.more,
        "token": record.token,
        "granted": record.granted,
        "changes": record.changes,
        "held": [_from_grant(grant) for grant in record.grants],
        "version": record.version,
        "keep": _from_instant(record.keep_until),
    }
    if record.last:
        parts["last"] = record.last
    if record.closing:
        parts["closed"] = record.closing._replace(until=_from_instant(record.closing.until))
    if record.pause:
        parts["pause"] = _from_field(record.pause)
    if record.resign:
        parts["resign"] = _from_field(record.resign)
    if record.line.waiters:
        line = [_from_waiter(waiter) for waiter in record.line.waiters]
        parts["line"] = line, _from_instant(record.line.lapses_at), record.line.overtaken
    if record.candidates:
        parts["candidates"] = [(it.holder, _from_instant(it.until)) for it in record.candidates]
    if record.given_up:
        parts["given_up"] = [(it.claim, _from_instant(it.until)) for it in record.given_up]
    return _sealed(parts)


def decoded(text: bytes, written: Instant) -> LeaseRecord:
    """The record of a text that the store wrote at `written`. Raises Unreadable."""
    parts = _opened(text)
    record = _read(lambda: _to_record(parts))
    return dated(record, written)


def _to_record(parts: dict[str, Any]) -> LeaseRecord:
    grants = tuple(map(_to_grant, parts["held"]))
    # No rule writes such a record: whoever reads on in it might grant what is held.
    if len({grant.permits for grant in grants}) > 1:
        raise ValueError("its holders asked for different numbers of permits")
    if len(grants) > 1 and grants[0].permits is None:
        raise ValueError("several claims hold it alone")
    return LeaseRecord(
        _whole(parts["token"]),
        _whole(parts["granted"]),
        grants,
        _whole(parts["changes"]),
        _to_last(parts["last"]) if "last" in parts else None,
        _to_closing(*parts["closed"]) if "closed" in parts else None,
        _to_field(*parts["pause"]) if "pause" in parts else None,
        _to_field(*parts["resign"]) if "resign" in parts else None,
        _to_line(*parts["line"]) if "line" in parts else Line(),
        tuple(
            ListedCandidate(_text(name), _instant(until))
            for name, until in parts.get("candidates", ())
        ),
        tuple(GivenUp(_text(claim), _instant(until)) for claim, until in parts.get("given_up", ())),
        _whole(parts["version"]),
        _instant(parts["keep"]),
        {name: part for name, part in parts.items() if name not in _KNOWN},
    )


# -- values beside a record ------------------------------------------------------------------------


def encoded_entry(value: Beside) -> bytes:
    """The text of a value beside a record: a field, the use of a slot, or a past holding."""
    match value:
        case Field():
            return _sealed({"field": _from_field(value)})
        case Grant():
            return _sealed({"slot": _from_grant(value)})
        case _:
            return _sealed({"past": value})


def decoded_entry(text: bytes, written: Instant) -> Beside:
    """The value of a text that the store wrote at `written`. Raises Unreadable."""
    parts = _opened(text)
    if "field" in parts:
        return _read(lambda: _to_field(*parts["field"]))
    if "slot" in parts:
        return dated_grant(_read(lambda: _to_grant(parts["slot"])), written)
    return _read(lambda: _to_last(parts["past"]))


def encoded_waiter(waiter: Waiter, looks_in: int) -> bytes:
    """The text of a waiter beside a record, see registers.Joined."""
    return _sealed({"waiter": _from_waiter(waiter), "looks_in": looks_in})


def decoded_waiter(text: bytes) -> tuple[Waiter, int]:
    """The waiter of a text, and its `looks_in`. Raises Unreadable."""
    parts = _opened(text)
    return _read(lambda: (_to_waiter(*parts["waiter"]), _whole(parts["looks_in"])))


def waiters_of(rows: Iterable[Iterable[Any]]) -> tuple[Waiter, ...]:
    """The waiters of rows, each with the parts of a Waiter. Raises Unreadable."""
    return _read(lambda: tuple(_waiter(*row) for row in rows))


@lru_cache(maxsize=1024)
def _waiter(*row: Any) -> Waiter:
    """The waiter of a row. Of a name that many want, the same rows are read again and again."""
    return _to_waiter(*row)


# -- texts -----------------------------------------------------------------------------------------


def _sealed(parts: dict[str, Any]) -> bytes:
    body = json.dumps(parts, separators=(",", ":")).encode()
    return b"incumbent%d %08x %b" % (RECORD_FORMAT, crc32(body), body)


def _opened(text: bytes) -> dict[str, Any]:
    found = _SEALED.fullmatch(text)
    if found is None:
        raise Unreadable("is not of incumbent")
    number, checksum, body = int(found[1]), int(found[2], 16), found[3]
    # Before the checksum: another format may compute another one.
    if number != RECORD_FORMAT:
        raise Unreadable(
            f"has format {number}, and this version of incumbent speaks format {RECORD_FORMAT}"
        )
    if crc32(body) != checksum:
        raise Unreadable("was cut short, or edited: its checksum does not match")
    parts = _read(lambda: json.loads(body))
    if not isinstance(parts, dict):
        raise Unreadable("is no JSON object")
    return parts


def _read(part: Callable[[], T]) -> T:
    try:
        return part()
    # RecursionError: thousands of brackets are valid JSON as well.
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Unreadable(f"makes no sense: {error}") from error


# -- parts -----------------------------------------------------------------------------------------


def _from_instant(instant: Instant) -> Any:
    us = us_after_write(instant)
    return instant if us is None else f"+{us}"


def _instant(part: object) -> Instant:
    if isinstance(part, str) and part[:1] == "+":
        return after(_whole(int(part[1:])))
    return _whole(part)


def _whole(part: object) -> int:
    """A count or an instant: anything else would be compared, and grant what is held."""
    # `type`, since a bool is an int; below record._BEGUN // 2, from which on an
    # instant has only begun.
    if type(part) is not int or not 0 <= part < 1 << 61:
        raise ValueError(f"{part!r:.40} is no count")
    return part


def _text(part: object) -> str:
    if not isinstance(part, str):
        raise TypeError(f"{part!r:.40} is no text")
    return part


def _bytes(part: object) -> bytes:
    return b64decode(_text(part), validate=True)


def _from_field(field: Field) -> Any:
    return b64encode(field.value).decode(), field.version


def _to_field(value: object, version: object) -> Field:
    return Field(_bytes(value), _whole(version))


def _from_grant(grant: Grant) -> Any:
    claim, holder, token, ttl, since, expires, meta, permits, number = grant
    instants = _from_instant(since), _from_instant(expires)
    return claim, holder, token, ttl, *instants, b64encode(meta).decode(), permits, number


def _to_grant(part: Any) -> Grant:
    claim, holder, token, ttl, since, expires, meta, permits, number = part
    return Grant(
        *(_text(claim), _text(holder), _whole(token), _whole(ttl)),
        *(_instant(since), _instant(expires), _bytes(meta)),
        None if permits is None else _whole(permits),
        _whole(number),
    )


def _from_waiter(waiter: Waiter) -> Any:
    return *waiter[:3], int(waiter.fair)


def _to_last(part: Any) -> LastGrant:
    holder, *numbers = part
    token, started, ended = map(_whole, numbers)
    return LastGrant(_text(holder), token, started, ended)


def _to_closing(holder: object, token: object, until: object, reserved_for: object) -> Closing:
    return Closing(_text(holder), _whole(token), _instant(until), _text(reserved_for))


def _to_line(waiters: Any, lapses_at: object, overtaken: object) -> Line:
    there = tuple(_to_waiter(*waiter) for waiter in waiters)
    return Line(there, _instant(lapses_at), _whole(overtaken))


def _to_waiter(claim: object, holder: object, heartbeat: object, fair: object) -> Waiter:
    return Waiter(_text(claim), _text(holder), _whole(heartbeat), bool(_whole(fair)))
