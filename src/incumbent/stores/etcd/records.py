"""What is kept in etcd's one flat, ordered key space, and how people's records are read. Pure.

    PREFIX/NAMESPACE/NAME/held        the lease: all under PREFIX/NAMESPACE/NAME/ contend for it
    PREFIX/NAMESPACE!s/NAME/...       the switches "pause" and "resign", and the "closing"
    PREFIX/NAMESPACE!r/NAME/...       f/FIELD  h/RING/PLACE  t/SLOT/CLAIM  w/HOLDER
    PREFIX/NAMESPACE!x/NAME/CLAIM     a claim that was given up: a take of it comes too late
    PREFIX!born                       which incarnation of the cluster this is
    PREFIX!born-ttl                   the longest ttl that was ever asked for, above the default

What is written again and again has one key: until the next compaction etcd looks at every key that
ever was in a range, also at those that are gone.

The slash within a name becomes %2F, and neither names nor namespaces have a "!" or a "%": what
stands under one name is never under another.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from incumbent.errors import StoreUnavailable
from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.stores.notices import PAUSE, RESIGN
from incumbent.stores.table import CANDIDATES_KEPT, HISTORY_KEPT

__all__ = [
    "RECORD_FORMAT",
    "Entry",
    "Names",
    "Naming",
    "after",
    "b64",
    "entries_in",
    "entry_of",
    "holding_of",
    "number_in",
    "packed",
    "part",
    "record_of",
    "seen_in",
    "surplus_candidates",
]

RECORD_FORMAT: Final = 2
"""Of the marker and of a lease's value; those without a number are of format 1."""
_CACHED: Final = 16_384
_SHOWN: Final = 200
_SWITCHES: Final = (PAUSE, RESIGN)
_quoted: Final = json.encoder.encode_basestring_ascii


def b64(text: str) -> str:
    """The text as the gateway's JSON wants bytes."""
    return b2a_base64(text.encode(), newline=False).decode()


def after(prefix: str) -> str:
    """The end of the range of all keys that begin with `prefix`, which ends in ASCII."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def part(text: str) -> str:
    """One part of a key, without a slash."""
    return text if text.isalnum() and text.isascii() else quote(text, safe="")


class Names:
    """The keys of one lease; `x64` is the base64 of `x`, `x_end64` that of its range's end."""

    def __init__(self, prefix: str, key: Key) -> None:
        base, name = f"{prefix}/{key.namespace}", quote(key.name, safe=":@")
        self.leases = f"{base}/{name}/"
        self.switches = f"{base}!s/{name}/"
        self.record = f"{base}!r/{name}/"
        self.late = f"{base}!x/{name}/"
        self.leases64, self.leases_end64 = b64(self.leases), b64(after(self.leases))
        self.switches64, self.switches_end64 = b64(self.switches), b64(after(self.switches))
        self.record64, self.record_end64 = b64(self.record), b64(after(self.record))
        self.lease64 = b64(f"{self.leases}held")
        self.others64 = b64(f"{self.record}w")
        """Where the candidates begin; a new candidate is no change."""
        self.closing64 = b64(f"{self.switches}closing")
        self.pause64 = b64(self.switches + PAUSE)
        self.resign64 = b64(self.switches + RESIGN)

    def field64(self, field: str) -> str:
        """The key of a field."""
        switch = field in _SWITCHES
        return b64(f"{self.switches}{field}" if switch else f"{self.record}f/{part(field)}")

    def late64(self, claim: str) -> str:
        """The key of the mark of a claim that was given up."""
        return b64(self.late + claim)

    def past64(self, place: str) -> str:
        """The key of an entry of the history."""
        return b64(f"{self.record}h/{place}")

    def slot(self, slot: str) -> str:
        """What the keys of a slot begin with."""
        return f"{self.record}t/{part(slot)}/"

    def slot64(self, slot: str, claim: str) -> str:
        """The key of a slot that `claim` took."""
        return b64(self.slot(slot) + part(claim))

    def candidate64(self, holder: str) -> str:
        """The key of one that stands by."""
        return b64(f"{self.record}w/{part(holder)}")


class Naming:
    """From keys to names and back, under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.born64 = b64(f"{prefix}!born")
        self.born_end64 = b64(f"{prefix}!born.")
        self.ttl64 = b64(f"{prefix}!born-ttl")
        self.nothing64 = b64(f"{prefix}!nothing")
        """Nobody writes it: removing it is an entry of the log, also while the database is full."""
        self._cache: dict[Key, Names] = {}

    def of(self, key: Key) -> Names:
        """The names of `key`."""
        names = self._cache.get(key)
        if names is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            names = self._cache[key] = Names(self.prefix, key)
        return names

    def ranges(self, namespace: str, prefix: str) -> list[tuple[str, str]]:
        """Key ranges that cover all of the names that begin with `prefix`."""
        start = quote(prefix, safe=":@")
        areas = (f"{self.prefix}/{namespace}{kind}/" for kind in ("", "!s", "!r"))
        return [(area + start, after(area + start if start else area)) for area in areas]

    def parse(self, namespace: str, found: str) -> tuple[Key, str, str] | None:
        """From a key in etcd to its lease, its area ("/", "!s", "!r"), and the rest."""
        base = f"{self.prefix}/{namespace}"
        for kind in ("!s/", "!r/", "/"):
            name, slash, rest = found.removeprefix(base + kind).partition("/")
            if found.startswith(base + kind) and name and slash:
                return Key(namespace, unquote(name)), kind[:2] if kind != "/" else "/", rest
        return None


class Entry(NamedTuple):
    """One key as the gateway answered it."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: str

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a value of ours; nothing of anybody else's."""
        try:
            found = json.loads(self.value)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def value64(self) -> str:
        """The value in base64."""
        return b64encode(self.value).decode()


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
        if entry.fields.get("claim") == claim:
            return entry
    return None


def packed(**fields: str | float) -> str:
    """A value of ours, in base64: JSON, which is written by hand as it is quicker."""
    inside = ",".join([
        f'"{name}":{_quoted(value) if isinstance(value, str) else repr(value)}'
        for name, value in fields.items()
    ])  # fmt: skip
    return b64(f"{{{inside}}}")


def holding_of(entry: Entry, base: int, lives: Mapping[str, float], wall: float) -> Holding:
    """The holder that this key names; `lives` has the seconds that are left of etcd leases.

    Raises StoreUnavailable, finally, for a lease that another version of incumbent wrote.
    """
    fields = entry.fields
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
        number_in(fields.get("ttl")),
        max(0.0, wall - number_in(fields.get("since"), wall)),
        b64decode(str(fields.get("meta", ""))),
        str(fields["claim"]),
    )


def number_in(value: object, default: float = 0.0) -> float:
    """A number of a value's fields, or the default for anything else."""
    return float(value) if isinstance(value, int | float) else default


def seen_in(entries: Iterable[Entry]) -> str:
    """What `wait_change` compares: when the last of these was written.

    Of a name that is held only the lease counts. The watch shows a switch or a field that is
    written meanwhile: it begins where the asker has looked.
    """
    newest = max((entry.modified for entry in entries), default=0)
    return str(newest) if newest else ""


def surplus_candidates(entries: Iterable[Entry]) -> list[str]:
    """The keys of candidates beyond the limit: those whose time ends first."""
    ordered = sorted(entries, key=lambda entry: (number_in(entry.fields.get("until")), entry.key))
    return [entry.key for entry in ordered[:-CANDIDATES_KEPT]]


def record_of(
    key: Key,
    naming: Naming,
    entries: list[Entry],
    base: int,
    lives: Mapping[str, float],
    wall: float,
) -> Record:
    """The record of a key from its entries. Without any, an empty record."""
    kinds: dict[str, list[tuple[str, Entry]]] = {kind: [] for kind in ("/", "c", "!s", *"fthw")}
    for entry in entries:
        place = naming.parse(key.namespace, entry.key)
        if place is not None and place[0] == key:
            kind, rest = _kind(place[1], place[2])
            kinds.setdefault(kind, []).append((unquote(rest), entry))
    leases = sorted((entry for _, entry in kinds["/"]), key=lambda entry: entry.created)
    closing = next((entry for _, entry in kinds["c"]), None)
    candidates = [Candidate(name, _left(entry, lives, wall)) for name, entry in kinds["w"]]
    changes = [entry for kind, found in kinds.items() if kind != "w" for _, entry in found]
    return Record(
        key,
        tuple(holding_of(entry, base, lives, wall) for entry in leases[:1]),
        _left(closing, lives, wall) if closing else 0.0,
        {name: Field(entry.value, entry.modified) for name, entry in (*kinds["!s"], *kinds["f"])},
        {name.rpartition("/")[0]: _left(entry, lives, wall) for name, entry in kinds["t"]},
        _history([entry for _, entry in kinds["h"]], base),
        tuple(sorted(candidates, key=lambda candidate: candidate.holder)),
        seen_in(leases or changes),
        str(closing.fields.get("reserved_for", "")) if closing else "",
    )


def _kind(area: str, rest: str) -> tuple[str, str]:
    if area == "!r":
        kind, _, rest = rest.partition("/")
        return kind, rest
    return ("c", "") if area == "!s" and rest == "closing" else (area, rest)


def _left(entry: Entry, lives: Mapping[str, float], wall: float) -> float:
    """Seconds: by etcd where it was asked, else by the writer's wall clock."""
    if entry.lease in lives:
        return lives[entry.lease]
    fields = entry.fields
    kept = number_in(fields.get("kept"))
    return min(kept, max(0.0, number_in(fields.get("until")) - wall))


def _history(entries: list[Entry], base: int) -> tuple[Past, ...]:
    found: dict[int, Past] = {}
    for entry in entries:
        fields = entry.fields
        ended = fields.get("ended")
        revision = entry.modified if ended is None else int(fields.get("revision", entry.created))
        if ended is None and revision in found:
            # It was ended by another process than took it, which noted it once more.
            continue
        holder, started = str(fields.get("holder", "")), number_in(fields.get("since"))
        found[revision] = Past(holder, base + revision, started, ended)
    return tuple(found[revision] for revision in sorted(found)[-HISTORY_KEPT:])
