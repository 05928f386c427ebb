"""The wait of a claim in line: which keys it watches, and when it asks the store again.

The first two in line watch the lease; any other waiter watches the key two places ahead. So a
release wakes two waiters, of which one asks, and a grant moves one more to the front. The second
asks only if the first leaves a free lease alone for a moment, and may be overtaken.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from incumbent import clock
from incumbent.model import OVERTAKEN_MOST, Key
from incumbent.stores.etcd import foreign, kv
from incumbent.stores.etcd.kv import GatewayRequest, KeyValue, Names
from incumbent.stores.etcd.line import overtaken_in
from incumbent.stores.etcd.obstacles import Obstacles
from incumbent.stores.etcd.places import EtcdPlace

_FRONT: Final = 2
"""Waiters that watch the lease."""
_FAR: Final = 10
"""Waiters before one that can afford to get a change 0.1 s late: see `watch_request`."""
_SILENT: Final = 0.2
"""Seconds for which a free lease is left to the first in line; then the second overtakes it."""


@dataclass(slots=True)
class LinePosition:
    """Where a claim stands in line as of `revision`. `index`: the number of waiters before it.

    `ahead`: the key of the waiter to watch; `before`: the key of the waiter just before this one;
    `seen`: the state as of then; `free_since`: the instant since which there may be room for the
    claim; `yields_for`: seconds for which it leaves that to others; `reserved`: a release named a
    successor, perhaps a waiter of ours; `rewatch`: other keys have to be watched; `missed`: what
    was written before our watches began, or what an event says too little of, has to be read;
    `contested`: there are foreign keys (see `foreign`); `crowded`: several share the lease, and
    this claim wants it alone.
    """

    key: Key
    names: Names
    place: EtcdPlace
    seen: str
    revision: int
    index: int
    ahead: str
    before: str
    free_since: float = inf
    yields_for: float = 0.0
    reserved: bool = False
    rewatch: bool = False
    missed: bool = False
    contested: bool = False
    crowded: bool = False

    def watch_request(self) -> GatewayRequest:
        """The request for one stream of all relevant changes.

        etcd sends past changes to a new watch with a delay of up to 0.1 s. So near the front a
        watch begins with the next change, and missed changes are read.
        """
        names = self.names
        ranges = [(names.closing, "")]
        if self.index < _FRONT:
            areas = (names.contenders, names.switches)
            ranges = [(area, kv.after(area)) for area in areas]
        if self.ahead:
            ranges.append((self.ahead, ""))
        self.rewatch = False
        return kv.watch(ranges, self.revision + 1 if self.index >= _FAR else 0)

    def update(self, newer: LinePosition) -> None:
        """Take over a later reading of the line; set `rewatch` if other keys have to be watched."""
        in_front = self.index < _FRONT
        self.rewatch = newer.ahead not in ("", self.ahead) or in_front != (newer.index < _FRONT)
        if self.place.shares and newer.index == 0 and (self.index, self.seen) != (0, newer.seen):
            # There may be room for one more.
            newer.free_since = clock.now()
        self.seen, self.revision, self.index = newer.seen, newer.revision, newer.index
        self.ahead, self.before, self.yields_for = newer.ahead, newer.before, newer.yields_for
        self.free_since, self.reserved = newer.free_since, newer.reserved
        self.contested, self.crowded = newer.contested, newer.crowded
        self.missed = False

    def apply(self, result: Mapping[str, Any], now: float) -> None:
        """Handle one message of that stream."""
        if result.get("created"):
            # Near the front the watch begins with the next change: what came in
            # between has to be read.
            self.missed |= self.index < _FAR and int(result["header"]["revision"]) > self.revision
        for event in result.get("events", ()):
            self._apply_event(event, now)

    def _apply_event(self, event: Mapping[str, Any], now: float) -> None:
        written, gone = event.get("kv", {}), event.get("type") == "DELETE"
        key = b64decode(written.get("key", "")).decode(errors="replace")
        if key.startswith(self.names.line):
            # A waiter's key is written again when that waiter is overtaken.
            if key == self.ahead and gone:
                self._advance(now)
            return
        ours = not key.startswith(self.names.contenders) or foreign.is_ours(self.names, key)
        if key == self.names.ticket or not ours:
            self._apply_foreign(key, now, gone=gone)
            return
        if self.crowded:
            self.missed = True
        elif gone:
            self.free_since = now
        elif not self.place.shares:
            self.free_since = inf
        if key == self.names.closing and not gone:
            self.reserved = self.reserved or _is_reserved(b64decode(written.get("value", "")))

    def _apply_foreign(self, key: str, now: float, *, gone: bool) -> None:
        if key == self.names.ticket:
            self.missed = self.missed or (gone and self.contested)
            return
        self.contested = True
        if gone:
            # It may be our turn.
            self.free_since = now
        else:
            self.missed = True

    def _advance(self, now: float) -> None:
        if self.index < _FRONT:
            self.index, self.ahead, self.yields_for = 0, "", 0.0
            if self.place.shares:
                self.free_since = now
        else:
            # Assume a place in front; the line is read again once the watches have begun.
            self.index, self.ahead, self.yields_for = _FRONT - 1, self.before, inf
            self.rewatch = self.missed = True

    @property
    def rechecks_at(self) -> float:
        """The instant at which the claim asks again, unless the lease is taken before."""
        if self.reserved:
            return -inf
        return self.free_since + self.yields_for if self.index < _FRONT else inf


def position_in(
    names: Names, key: Key, place: EtcdPlace, seen: str, found: Obstacles
) -> LinePosition | None:
    """Where a claim with that place stands in the line that was found; None: it has none.

    `seen`: only a successor that was named after that refusal counts.
    """
    order = [entry.key for entry in found.line]
    if place.key not in order:
        return None
    at, first = order.index(place.key), found.line[0]
    strict = place.shares or first.fields.get("fair") or overtaken_in(first) >= OVERTAKEN_MOST
    ahead, before = (order[max(0, at - _FRONT)], order[at - 1]) if at else ("", "")
    closing, shares, since = found.closing, place.shares, kv.newest_seen(seen)
    return LinePosition(
        *(key, names, place, found.seen, found.revision, at, ahead, before),
        free_since=clock.now() if found.free and not shares else inf,
        yields_for=0.0 if not at else inf if strict else _SILENT,
        reserved=closing is not None and closing.modified > since and _is_reserved(closing.value),
        contested=bool(found.foreign),
        crowded=len(found.holders) > 1 and not shares,
    )


def _is_reserved(value: bytes) -> bool:
    fields = KeyValue("", value, 0, 0, "").fields
    return bool(fields.get("reserved_for"))
