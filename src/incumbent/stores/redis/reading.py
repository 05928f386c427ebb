"""What is known of leases, and whether it is still as it was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from incumbent.model import Holding, Key, Record
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.incarnation import check_format
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
from incumbent.stores.redis.resp import Program, Step, pack

_SCANNED: Final = 500
_READ_AT_ONCE: Final = 100


def read_record(commands: Commands, key: Key) -> Program[Record]:
    """All that is known of a key."""
    (record,) = yield from _read_all(commands, [key])
    if isinstance(record, Record):
        return record
    raise commands.unusable(record, key)


def scan_records(commands: Commands, namespace: str, prefix: str) -> Program[tuple[Record, ...]]:
    """Every key of the namespace that begins with the prefix."""
    naming, keys = commands.naming, set[Key]()
    for pattern in naming.patterns(namespace, prefix):
        cursor = b""
        while cursor != b"0":
            request = pack("SCAN", cursor or "0", "MATCH", pattern, "COUNT", _SCANNED)
            (reply,) = yield Step(request, 1)
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
    # With a shared key pattern, other clients' keys of other types match too: not leases.
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
    time, *replies = yield Step(request, 1 + 4 * len(keys))
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
            lefts = yield Step(asked, len(named))
            slots = {slot: ms / 1000 for slot, ms in zip(named, lefts, strict=True) if ms > 0}
        sharing: list[Holding] = []
        if is_shared(raw):
            (ends,) = yield Step(pack("ZRANGE", names.sharers, "0", "-1", "WITHSCORES"), 1)
            sharing = sharing_of(raw, fields, ends, now)
        about = (raw, left, fields, history, slots, candidates, now, sharing)
        records.append(record_of(names.key, *about))
    return records


def is_unchanged(commands: Commands, key: Key, seen: str) -> Program[bool]:
    """Whether what `Refused.seen` speaks of is still as it was."""
    what, _, mark = seen.rpartition(" ")
    names = commands.naming.of(key)
    request = pack("GET", names.main)
    if what == "pause":
        request = pack("HGET", names.companion, FIELDS["put"] + b"pause")
    elif what.startswith("slot:"):
        request = pack("GET", names.slot(what.removeprefix("slot:")))
    replies = yield Step(request + pack("HGET", names.companion, FIELDS["version"]), 2)
    for reply in replies:
        if reply is not None and not isinstance(reply, bytes):
            raise commands.unusable(reply, key)
    raw, version = replies
    is_same = mark_of(raw) == (mark or "-")
    if what and not what.startswith("fields:"):
        return is_same
    return is_same and int(version or 0) == int(what.removeprefix("fields:") or 0)


def server_time(commands: Commands) -> Program[int]:
    """The server's clock in microseconds."""
    (reply,) = yield Step(pack("TIME"), 1)
    if type(reply) is not list:
        raise commands.unusable(reply)
    return int(reply[0]) * 1_000_000 + int(reply[1])
