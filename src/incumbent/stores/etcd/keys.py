"""Where a lease and what is beside it live in etcd's one flat, ordered key space.

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

from binascii import b2a_base64
from typing import Final
from urllib.parse import quote, unquote

from incumbent.model import Key
from incumbent.stores.notices import PAUSE, RESIGN

__all__ = ["Names", "Naming", "after", "b64", "part"]

_SWITCHES: Final = (PAUSE, RESIGN)
_CACHED: Final = 16_384


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

    __slots__ = (
        "closing64",
        "key",
        "late",
        "lease64",
        "leases",
        "leases64",
        "leases_end64",
        "others64",
        "pause64",
        "record",
        "record64",
        "record_end64",
        "resign64",
        "switches",
        "switches64",
        "switches_end64",
    )

    def __init__(self, prefix: str, key: Key) -> None:
        base, name = f"{prefix}/{key.namespace}", quote(key.name, safe=":@")
        self.key = key
        self.leases = f"{base}/{name}/"
        self.switches = f"{base}!s/{name}/"
        self.record = f"{base}!r/{name}/"
        self.late = f"{base}!x/{name}/"
        self.leases64, self.leases_end64 = b64(self.leases), b64(after(self.leases))
        self.switches64, self.switches_end64 = b64(self.switches), b64(after(self.switches))
        self.record64, self.record_end64 = b64(self.record), b64(after(self.record))
        self.lease64 = b64(f"{self.leases}held")
        self.others64 = b64(f"{self.record}w")
        """Where the candidates begin: whoever stands by is no change."""
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
        """A key in etcd: whose it is, the kind of thing ("/", "!s", "!r"), and the rest."""
        base = f"{self.prefix}/{namespace}"
        for kind in ("!s/", "!r/", "/"):
            name, slash, rest = found.removeprefix(base + kind).partition("/")
            if found.startswith(base + kind) and name and slash:
                return Key(namespace, unquote(name)), kind[:2] if kind != "/" else "/", rest
        return None
