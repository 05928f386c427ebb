"""Writes of fields (put.lua), and reads of whole records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from incumbent.model import (
    Absent,
    ByClaim,
    ByVersion,
    Guard,
    Holding,
    Key,
    PutOutcome,
    Record,
    Stale,
    Stored,
)
from incumbent.stores.redis.incarnation import check_format
from incumbent.stores.redis.records import (
    FIELDS,
    history_of,
    is_shared,
    pairs,
    record_of,
    sharing_of,
    slots_named,
    value_start,
)
from incumbent.stores.redis.resp import SCRIPTS, RequestBatch, RespProgram, pack
from incumbent.stores.redis.site import Packer

_SCANNED: Final = 500
_READ_AT_ONCE: Final = 100


def put_program(
    packer: Packer, key: Key, field: str, value: bytes | None, guard: Guard
) -> RespProgram[PutOutcome]:
    """Write a field, or with None remove it, if the guard holds."""
    names = packer.naming.of(key)
    written = b"-" if value is None else b"=" + value
    fields = (FIELDS["put"] + field.encode(), *_guard(guard), written, names.channel)
    request = SCRIPTS["put"].call(2, names.lease, names.record, *fields)
    (reply,) = yield RequestBatch(request, 1)
    if type(reply) is not int:
        raise packer.unusable(reply, key)
    return Stale() if reply < 0 else Stored(reply)


def _guard(guard: Guard) -> tuple[str, str]:
    match guard:
        case None:
            return ("none", "")
        case Absent():
            return ("absent", "")
        case ByVersion(version):
            return ("version", str(version))
        case ByClaim(claim, token):
            return ("claim", value_start(claim, token))


def read_program(packer: Packer, key: Key) -> RespProgram[Record]:
    """The record of a key."""
    (record,) = yield from _read_all(packer, [key])
    if isinstance(record, Record):
        return record
    raise packer.unusable(record, key)


def scan_program(packer: Packer, namespace: str, prefix: str) -> RespProgram[tuple[Record, ...]]:
    """The records in the namespace whose names begin with the prefix."""
    naming, keys = packer.naming, set[Key]()
    for pattern in naming.patterns(namespace, prefix):
        cursor = b""
        while cursor != b"0":
            request = pack("SCAN", cursor or "0", "MATCH", pattern, "COUNT", _SCANNED)
            (reply,) = yield RequestBatch(request, 1)
            if type(reply) is not list:
                raise packer.unusable(reply)
            cursor, names = reply
            found = (naming.key_of(name.decode("utf-8", "replace"), namespace) for name in names)
            # A set: while the table grows or shrinks, SCAN names a key twice.
            keys |= {
                key
                for key in found
                if key and key.namespace == namespace and key.name.startswith(prefix)
            }
    records: list[Any] = []
    ordered = sorted(keys)
    for start in range(0, len(ordered), _READ_AT_ONCE):
        records += yield from _read_all(packer, ordered[start : start + _READ_AT_ONCE])
    # A shared key pattern may also match other clients' keys of other types: those are no leases.
    return tuple(record for record in records if isinstance(record, Record))


def _read_all(packer: Packer, keys: Sequence[Key]) -> RespProgram[list[Any]]:
    """A Record for each key, or the error that the server replied."""
    all_names = [packer.naming.of(key) for key in keys]
    # No transaction: other clients may write in between. A record is for
    # display, not for decisions.
    request = pack("TIME") + b"".join(
        pack("GET", names.lease)
        + pack("PTTL", names.lease)
        + pack("HGETALL", names.record)
        + pack("ZRANGE", names.candidates, "0", "-1", "WITHSCORES")
        for names in all_names
    )
    time, *replies = yield RequestBatch(request, 1 + 4 * len(keys))
    if type(time) is not list:
        raise packer.unusable(time)
    now = int(time[0]) + int(time[1]) / 1e6
    records: list[Any] = []
    for at, names in enumerate(all_names):
        raw, left, hash_, candidates = replies[4 * at : 4 * at + 4]
        if error := _first_error(raw, left, hash_):
            records.append(error)
            continue
        check_format(raw or b"", packer.where, names.lease)
        fields, slots = pairs(hash_), dict[str, float]()
        history = history_of(fields)
        if named := slots_named(history):
            asked = b"".join(pack("PTTL", names.slot(slot)) for slot in named)
            lefts = yield RequestBatch(asked, len(named))
            if error := _first_error(*lefts):
                records.append(error)
                continue
            slots = {slot: ms / 1000 for slot, ms in zip(named, lefts, strict=True) if ms > 0}
        sharing: list[Holding] = []
        if is_shared(raw):
            (ends,) = yield RequestBatch(pack("ZRANGE", names.sharers, "0", "-1", "WITHSCORES"), 1)
            sharing = sharing_of(raw, fields, ends, now)
        about = (raw, left, fields, history, slots, candidates, now, sharing)
        records.append(record_of(names.key, *about))
    return records


def _first_error(*replies: object) -> Exception | None:
    # Each may be one of its own: a cluster moves a slot key by key, and redirects some of them.
    return next((reply for reply in replies if isinstance(reply, Exception)), None)
