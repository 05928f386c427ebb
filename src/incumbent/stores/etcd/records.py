"""What is kept under the keys, and how people's records are read from them. Pure."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from incumbent.errors import StoreUnavailable
from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.stores.etcd.incarnation import RECORD_FORMAT
from incumbent.stores.etcd.keys import Naming, b64
from incumbent.stores.etcd.memory import Mine, Session
from incumbent.stores.table import CANDIDATES_KEPT, HISTORY_KEPT

__all__ = [
    "Entry",
    "entries_in",
    "entry_of",
    "holding_of",
    "mine_of",
    "packed",
    "record_of",
    "seen_in",
    "surplus_candidates",
    "unpacked",
]

_SHOWN: Final = 200
_quoted: Final = json.encoder.encode_basestring_ascii


class Entry(NamedTuple):
    """One key as the gateway answered it."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: str


def entries_in(response: Mapping[str, Any]) -> list[Entry]:
    """The keys that a range answered, of `responses[i]`."""
    kvs = response.get("response_range", response).get("kvs", ())
    return [
        Entry(
            b64decode(kv["key"]).decode(errors="replace"),
            b64decode(kv.get("value", "")),
            int(kv["create_revision"]),
            int(kv["mod_revision"]),
            kv.get("lease", "0"),
        )
        for kv in kvs
    ]


def entry_of(claim: str, response: Mapping[str, Any]) -> Entry | None:
    """The lease that a lookup found, if it is this claim's."""
    for entry in entries_in(response):
        if unpacked(entry.value).get("claim") == claim:
            return entry
    return None


def packed(**fields: str | float) -> str:
    """A value of ours, in base64: JSON, which is written by hand as it is quicker."""
    inside = ",".join([
        f'"{name}":{_quoted(value) if isinstance(value, str) else repr(value)}'
        for name, value in fields.items()
    ])  # fmt: skip
    return b64(f"{{{inside}}}")


def unpacked(value: bytes) -> dict[str, Any]:
    """The fields of a value of ours; nothing of anybody else's."""
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def holding_of(entry: Entry, base: int, lives: Mapping[str, float], wall: float) -> Holding:
    """Who holds by this key; `lives` has the seconds that are left of etcd leases.

    Raises StoreUnavailable, finally, for a lease that another version of incumbent wrote.
    """
    fields = unpacked(entry.value)
    token, left = base + entry.created, lives.get(entry.lease)
    if "claim" not in fields:
        # etcdctl, a Go program: their value may be anything, and is often empty.
        shown = entry.value.decode(errors="replace").strip()[:_SHOWN]
        return Holding(shown or entry.key[-_SHOWN:], token, left, foreign=True)
    if fields.get("format") != RECORD_FORMAT:
        raise StoreUnavailable(
            f"{entry.key!r} is a lease of format {fields.get('format') or 1}, and this version"
            f" speaks {RECORD_FORMAT}: an instance of another version holds it. Stop those first,"
            " or give the new version a prefix of its own in the store's URL",
            permanent=True,
        )
    return Holding(
        str(fields.get("holder", "")),
        token,
        left,
        _number(fields.get("ttl")),
        max(0.0, wall - _number(fields.get("since"), wall)),
        b64decode(str(fields.get("meta", ""))),
        str(fields["claim"]),
    )


def mine_of(key: Key, entry: Entry, session: Session, due: float) -> Mine:
    """A lease of ours as its key says it."""
    fields = unpacked(entry.value)
    return Mine(
        *(key, str(fields.get("claim", "")), session, due),
        *(str(fields.get("holder", "")), _number(fields.get("since"))),
        *(_number(fields.get("ttl")), b64decode(str(fields.get("meta", "")))),
        revision=entry.created,
    )


def _number(value: object, default: float = 0.0) -> float:
    return float(value) if isinstance(value, int | float) else default


def seen_in(entries: Iterable[Entry]) -> str:
    """What `wait_change` compares: when the last of these was written.

    Of a name that is held only the lease counts; a switch or a field that is written meanwhile is
    told by the watch, which begins where the asker has looked.
    """
    newest = max((entry.modified for entry in entries), default=0)
    return str(newest) if newest else ""


def surplus_candidates(entries: Iterable[Entry]) -> list[str]:
    """The keys of those who are left out: whose time is over first."""
    ordered = sorted(entries, key=lambda it: (_until(it), it.key))
    return [entry.key for entry in ordered[:-CANDIDATES_KEPT]]


def _until(entry: Entry) -> float:
    return _number(unpacked(entry.value).get("until"))


def record_of(
    key: Key,
    naming: Naming,
    entries: list[Entry],
    base: int,
    lives: Mapping[str, float],
    wall: float,
) -> Record:
    """All that the entries (those of this key) say. Without any, an empty record."""
    by_kind: dict[str, list[tuple[str, Entry]]] = {}
    for entry in entries:
        place = naming.parse(key.namespace, entry.key)
        if place is not None and place[0] == key:
            kind, rest = _kind(place[1], place[2])
            by_kind.setdefault(kind, []).append((unquote(rest), entry))
    leases = sorted((entry for _, entry in by_kind.get("/", ())), key=lambda it: it.created)
    closed_for, reserved_for = _closing(by_kind.get("c", []), lives, wall)
    return Record(
        key,
        tuple(holding_of(entry, base, lives, wall) for entry in leases[:1]),
        closed_for,
        {
            name: Field(entry.value, entry.modified)
            for name, entry in (*by_kind.get("!s", ()), *by_kind.get("f", ()))
        },
        {
            name.rpartition("/")[0]: _left(entry, lives, wall)
            for name, entry in by_kind.get("t", ())
        },
        _history([entry for _, entry in by_kind.get("h", ())], base),
        tuple(
            sorted(
                (
                    Candidate(name, _left(entry, lives, wall))
                    for name, entry in by_kind.get("w", ())
                ),
                key=lambda it: it.holder,
            )
        ),
        seen_in(leases or _all_but_candidates(by_kind)),
        reserved_for,
    )


def _all_but_candidates(by_kind: dict[str, list[tuple[str, Entry]]]) -> list[Entry]:
    return [entry for kind, them in by_kind.items() if kind != "w" for _, entry in them]


def _kind(area: str, rest: str) -> tuple[str, str]:
    if area == "!r":
        kind, _, rest = rest.partition("/")
        return kind, rest
    return ("c", "") if area == "!s" and rest == "closing" else (area, rest)


def _closing(
    found: list[tuple[str, Entry]], lives: Mapping[str, float], wall: float
) -> tuple[float, str]:
    for _, entry in found:
        return _left(entry, lives, wall), str(unpacked(entry.value).get("reserved_for", ""))
    return 0.0, ""


def _left(entry: Entry, lives: Mapping[str, float], wall: float) -> float:
    """Seconds: by etcd where it was asked, else by the writer's wall clock."""
    if entry.lease in lives:
        return lives[entry.lease]
    fields = unpacked(entry.value)
    kept = _number(fields.get("kept"))
    return min(kept, max(0.0, _number(fields.get("until")) - wall))


def _history(entries: list[Entry], base: int) -> tuple[Past, ...]:
    found: dict[int, Past] = {}
    for entry in entries:
        fields = unpacked(entry.value)
        ended = fields.get("ended")
        revision = entry.modified if ended is None else int(fields.get("revision", entry.created))
        holder, started = str(fields.get("holder", "")), _number(fields.get("since"))
        if ended is None and revision in found:
            # Who ended it was another process than who took it, and has noted it once more.
            continue
        found[revision] = Past(holder, base + revision, started, ended)
    return tuple(found[revision] for revision in sorted(found)[-HISTORY_KEPT:])
