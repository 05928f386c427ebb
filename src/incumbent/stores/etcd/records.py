"""What is kept in etcd's one flat, ordered key space, and how people's records are read. Pure.

    PREFIX/NAMESPACE/NAME/held        the lease: all under PREFIX/NAMESPACE/NAME/ contend for it
    PREFIX/NAMESPACE!s/NAME/...       the switches "pause" and "resign", and the "closing"
    PREFIX/NAMESPACE!r/NAME/...       f/FIELD  h/RING/PLACE  t/SLOT/CLAIM  w/HOLDER
    PREFIX/NAMESPACE!x/NAME/CLAIM     a claim that was given up: a take of it comes too late
    PREFIX/NAMESPACE!q/NAME/PROCESS   a process whose waiters wait, in the order of the last writing
    PREFIX!born                       which incarnation of the cluster this is
    PREFIX!born-ttl                   the longest ttl that was ever asked for, above the default

What is written again and again has one key: until the next compaction etcd looks at every key that
ever was in a range, also at those that are gone.

The slash within a name becomes %2F, and neither names nor namespaces have a "!" or a "%": what
stands under one name is never under another.
"""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from incumbent.errors import StoreUnavailable
from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.stores.etcd.kv import Entry, after, entries_in
from incumbent.stores.notices import PAUSE, RESIGN
from incumbent.stores.table import CANDIDATES_KEPT, HISTORY_KEPT

RECORD_FORMAT: Final = 2
"""Of the marker and of a lease's value; those without a number are of format 1."""
_SHOWN: Final = 200


# -- keys -----------------------------------------------------------------------------------------


def _part(text: str) -> str:
    """One part of a key, without a slash."""
    return text if text.isalnum() and text.isascii() else quote(text, safe="")


class Names:
    """The keys of one lease."""

    __slots__ = ("_late", "closing", "lease", "leases", "line", "record", "switches", "waiting")

    def __init__(self, prefix: str, key: Key) -> None:
        base, name = f"{prefix}/{key.namespace}", quote(key.name, safe=":@")
        self.leases = f"{base}/{name}/"
        self.lease = f"{base}/{name}/held"
        self.switches = f"{base}!s/{name}/"
        self.closing = f"{base}!s/{name}/closing"
        self.record = f"{base}!r/{name}/"
        self.waiting = f"{base}!r/{name}/w"
        """Where the candidates begin; a new candidate is no change."""
        self.line = f"{base}!q/{name}/"
        self._late = f"{base}!x/{name}/"

    def field(self, field: str) -> str:
        if field in (PAUSE, RESIGN):
            return self.switches + field
        return f"{self.record}f/{_part(field)}"

    def late(self, claim: str) -> str:
        """The mark of a claim that was given up."""
        return self._late + claim

    def past(self, place: str) -> str:
        """An entry of the history."""
        return f"{self.record}h/{place}"

    def slot(self, slot: str, claim: str = "") -> str:
        """A slot that `claim` took; without a claim, what the keys of the slot begin with."""
        return f"{self.record}t/{_part(slot)}/{_part(claim)}"

    def candidate(self, holder: str) -> str:
        return f"{self.waiting}/{_part(holder)}"


names_of = lru_cache(maxsize=16_384)(Names)
"""The same object again for the same prefix and key: quoting costs more than all the rest."""


def scanned(prefix: str, namespace: str, name: str) -> list[tuple[str, str]]:
    """Ranges that have all keys of the names that begin with `name`."""
    start = quote(name, safe=":@")
    areas = (f"{prefix}/{namespace}{kind}/" for kind in ("", "!s", "!r"))
    return [(area + start, after(area + start)) for area in areas]


# -- values ---------------------------------------------------------------------------------------


def entry_of(claim: str, response: Mapping[str, Any]) -> Entry | None:
    """The lease that a lookup found, if it is this claim's."""
    return next((at for at in entries_in(response) if at.fields.get("claim") == claim), None)


def number_in(value: object, default: float = 0.0) -> float:
    """A number of a value's fields, or the default for anything else."""
    return float(value) if isinstance(value, int | float) else default


def check_format(entry: Entry, cure: str = "") -> dict[str, Any]:
    """The fields. Raises StoreUnavailable, finally, if another version of incumbent wrote them."""
    fields = entry.fields
    if fields.get("format") != RECORD_FORMAT:
        raise StoreUnavailable(
            f"{entry.key!r} has format {fields.get('format') or 1}, and this version speaks"
            f" {RECORD_FORMAT}: instances of another version use it. Stop those first{cure}, or"
            " give the new version a prefix of its own in the store's URL",
            permanent=True,
        )
    return fields


def seen_in(leases: Sequence[Entry], others: Iterable[Entry] = (), count: int = 0) -> str:
    """What `wait_change` compares: when the last of these was written, and how many there are.

    Of a name that is held only the lease counts. The watch shows a switch or a field that is
    written meanwhile: it begins where the asker has looked. `count`: how many others there are, if
    these are only the newest.
    """
    written = [entry.modified for entry in leases or others]
    newest, among = max(written, default=0), 1 if leases else max(count, len(written))
    return f"{newest}+{among}" if among > 1 else str(newest or "")


def newest_seen(seen: str) -> int:
    """When the last of what `seen` speaks of was written; 0 if it speaks of nothing of ours."""
    newest = seen.partition("+")[0]
    return int(newest) if newest.isdigit() else 0


def surplus_candidates(entries: Iterable[Entry]) -> list[str]:
    """The keys of candidates beyond the limit: those whose time ends first."""
    ordered = sorted(entries, key=lambda entry: (number_in(entry.fields.get("until")), entry.key))
    return [entry.key for entry in ordered[:-CANDIDATES_KEPT]]


# -- records --------------------------------------------------------------------------------------

Kinds: TypeAlias = dict[str, list[tuple[str, Entry]]]
"""The entries of one name: "/lease", "/switch", "/closing", and those of its record: f, h, t, w."""


def by_name(prefix: str, namespace: str, entries: Iterable[Entry]) -> dict[Key, Kinds]:
    """Entries by the lease they belong to and by their kind, each with the rest of its key."""
    found: dict[Key, Kinds] = {}
    for entry in entries:
        area, _, rest = entry.key.removeprefix(f"{prefix}/{namespace}").partition("/")
        name, slash, rest = rest.partition("/")
        if not (name and slash):
            continue
        if area == "!r":
            kind, _, rest = rest.partition("/")
        elif area == "!s":
            kind = "/closing" if rest == "closing" else "/switch"
        else:
            kind = "/lease"
        kinds = found.setdefault(Key(namespace, unquote(name)), defaultdict(list))
        kinds[kind].append((unquote(rest), entry))
    return found


def record_of(key: Key, kinds: Kinds, base: int, lives: Mapping[str, float], wall: float) -> Record:
    """The record of a key; `lives` has the seconds that are left of etcd leases."""

    def left(entry: Entry) -> float:
        """Seconds: by etcd where it was asked, else by the writer's wall clock."""
        if entry.lease in lives:
            return lives[entry.lease]
        fields = entry.fields
        kept = number_in(fields.get("kept"))
        return min(kept, max(0.0, number_in(fields.get("until")) - wall))

    leases = sorted((entry for _, entry in kinds["/lease"]), key=lambda entry: entry.created)
    closing = next((entry for _, entry in kinds["/closing"]), None)
    candidates = [Candidate(name, left(entry)) for name, entry in kinds["w"]]
    changes = [entry for kind, found in kinds.items() if kind != "w" for _, entry in found]
    return Record(
        key,
        tuple(holding_of(entry, base, lives, wall) for entry in leases[:1]),
        left(closing) if closing else 0.0,
        {
            name: Field(entry.value, entry.modified)
            for name, entry in (*kinds["/switch"], *kinds["f"])
        },
        {name.rpartition("/")[0]: left(entry) for name, entry in kinds["t"]},
        _history([entry for _, entry in kinds["h"]], base),
        tuple(sorted(candidates, key=lambda candidate: candidate.holder)),
        seen_in(leases, changes),
        str(closing.fields.get("reserved_for", "")) if closing else "",
    )


def holding_of(entry: Entry, base: int, lives: Mapping[str, float], wall: float) -> Holding:
    """The holder that this key names. Raises StoreUnavailable if another version wrote it."""
    token, left = base + entry.created, lives.get(entry.lease)
    if "claim" not in entry.fields:
        # etcdctl, a Go program: their value may be anything, and is often empty.
        shown = entry.value.decode(errors="replace").strip()[:_SHOWN]
        return Holding(shown or entry.key[-_SHOWN:], token, left, foreign=True)
    fields = check_format(entry)
    return Holding(
        str(fields.get("holder", "")),
        token,
        left,
        number_in(fields.get("ttl")),
        max(0.0, wall - number_in(fields.get("since"), wall)),
        b64decode(str(fields.get("meta", ""))),
        str(fields["claim"]),
    )


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
