"""The place of this process in the line of waiters for a name, and when its first waiter looks.

Each process with waiters has one key in the line. The first two processes watch the lease; any
other process watches the key two places ahead. So a release wakes two processes, of which one asks,
and a grant moves one more to the front. The line is only a hint: no take depends on it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from incumbent import clock
from incumbent.model import Key
from incumbent.stores.etcd import foreign, kv
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.kv import Entry, Names, Reply, Request, Steps
from incumbent.stores.etcd.site import LeaseMissing
from incumbent.stores.notices import RESIGN

_FRONT: Final = 2
_FAR: Final = 10
_SILENT: Final = 0.2
"""Seconds for which a free lease is left to the first in line; then the second overtakes it."""
_NAMES_MAX: Final = 16_384
_ORDER: Final = ',"sort_order":"ASCEND","sort_target":"MOD","keys_only":true'
_KEYS: Final = ',"keys_only":true'


@dataclass(slots=True)
class Standing:
    """The place of this process in line: the number of processes before it, as of `revision`.
    `ahead`: the key of the process to watch; `before`: the key of the process just before this one.

    `seen`: `Refused.seen` of our first waiter; `free_since`: the instant since which the lease is
    free; `called`: a successor was named, perhaps a waiter of ours; `moved`: the line has to be
    read again; `missed`: something was written before our watches began, or our ticket (see
    `foreign`) has to be there.
    """

    key: Key
    names: Names
    seen: str
    revision: int
    place: int
    ahead: str
    before: str
    free_since: float = inf
    called: bool = False
    moved: bool = False
    missed: bool = False
    contested: bool = False

    def watch(self) -> Request:
        """The request for one stream of all relevant changes.

        etcd sends past changes to a new watch with a delay of up to 0.1 s. So near the front a
        watch begins with the next change, and missed changes are read.
        """
        names = self.names
        ranges = [(names.closing, "")]
        if self.place < _FRONT:
            ranges = [(area, kv.after(area)) for area in (names.leases, names.switches)]
        if self.ahead:
            ranges.append((self.ahead, ""))
        self.moved = False
        return kv.watch(ranges, self.revision + 1 if self.place >= _FAR else 0)

    def update(self, now: Standing) -> None:
        """Take over a later reading of the line; set `moved` if other keys have to be watched."""
        in_front = self.place < _FRONT
        self.moved = now.ahead not in ("", self.ahead) or in_front != (now.place < _FRONT)
        self.revision, self.place = now.revision, now.place
        self.ahead, self.before = now.ahead, now.before
        self.free_since, self.called = now.free_since, now.called
        self.contested = now.contested
        self.missed = False

    def see(self, result: Mapping[str, Any], now: float) -> None:
        """Handle one message of that stream."""
        if result.get("created"):
            newer = int(result["header"]["revision"]) > self.revision
            self.missed = self.missed or (newer and self.place < _FAR)
        for event in result.get("events", ()):
            self._see(event, now)

    def _see(self, event: Mapping[str, Any], now: float) -> None:
        written, gone = event.get("kv", {}), event.get("type") == "DELETE"
        key = b64decode(written.get("key", "")).decode(errors="replace")
        if key.startswith(self.names.line):
            # A key that is written again moves to the end of the line.
            if key == self.ahead:
                self._advance()
            return
        if key == self.names.ticket or self._is_foreign(key):
            self._see_foreign(key, now, gone=gone)
            return
        self.free_since = now if gone else inf
        if key == self.names.closing and not gone:
            self.called = self.called or _is_reserved(b64decode(written.get("value", "")))

    def _is_foreign(self, key: str) -> bool:
        return key.startswith(self.names.leases) and not foreign.is_ours(self.names, key)

    def _see_foreign(self, key: str, now: float, *, gone: bool) -> None:
        if key == self.names.ticket:
            self.missed = self.missed or (gone and self.contested)
            return
        self.contested = True
        if gone:
            # It may be our turn.
            self.free_since = now
        else:
            self.missed = True

    def _advance(self) -> None:
        if self.place < _FRONT:
            self.place, self.ahead = 0, ""
        else:
            # Assume a place in front; the line is read again once the watches have begun.
            self.place, self.ahead = _FRONT - 1, self.before
            self.moved = self.missed = True

    @property
    def looks_at(self) -> float:
        """The instant at which our first waiter looks, unless the lease is taken before."""
        if self.called:
            return -inf
        return self.free_since + _SILENT * self.place if self.place < _FRONT else inf


def join(cluster: Cluster, key: Key, seen: str) -> Steps[Standing]:
    """Join the line, at its end if this process has just had its turn, and read the place.

    `seen`: `Refused.seen` of the waiter's last refusal.
    """
    sessions, now = cluster.sessions, clock.now()
    names, place = kv.names_of(cluster.prefix, key), sessions.line_key(key)
    if len(sessions.names_with_our_place) >= _NAMES_MAX:
        sessions.names_with_our_place.clear()
    sessions.names_with_our_place.add(key)
    areas = [kv.read_all(names.line, _ORDER), kv.read_all(names.leases, _KEYS)]
    areas.append(kv.read_all(names.switches))
    reply: Reply = {}
    where = [] if cluster.turns.end_turn(key) else [kv.absent(place)]
    while not reply:
        lease = yield from sessions.keep_line_lease()
        put, ticket = kv.put(place, "", lease), kv.put(names.ticket, foreign.WAITS, lease)
        asked = [kv.nested([kv.absent(names.ticket)], [ticket]), *areas]
        try:
            reply = yield kv.transaction([put, *asked], asked, where=where)
        except LeaseMissing:
            sessions.line_lease_until = 0.0
    line, leases, switches = map(kv.entries_in, reply["responses"][-3:])
    at_name = foreign.contenders(names, leases)
    order = [entry.key for entry in line]
    at = order.index(place)
    ahead, before = (order[max(0, at - _FRONT)], order[at - 1]) if at else ("", "")
    resign = names.field(RESIGN)
    free = not at_name.holders and all(entry.key == resign for entry in switches)
    # Only a successor that was named after the waiter's refusal counts.
    since = kv.newest_seen(seen)
    called = any(
        entry.key == names.closing and entry.modified > since and _is_reserved(entry.value)
        for entry in switches
    )
    found = (kv.revision_of(reply), at, ahead, before)
    since_when, contested = now if free else inf, bool(at_name.foreign)
    return Standing(key, names, seen, *found, since_when, called, contested=contested)


def pass_by(standing: Standing) -> Steps[None]:
    """Remove the first in line, which let its turn go by: dead, frozen, or back at the end."""
    free = foreign.may_take(standing.names, 0)
    yield kv.transaction([kv.delete(standing.ahead)], where=free)


def leave(cluster: Cluster, key: Key) -> Steps[None]:
    """After a waiter has left: give up the place in line if it was the last of this process."""
    sessions, turns = cluster.sessions, cluster.turns
    left = sessions.tickets.pop(key, "")
    if left:
        yield kv.transaction([sessions.drop_ticket(key, left)])
    if turns.waits(key) or key not in sessions.names_with_our_place:
        return
    if turns.waits():
        yield kv.transaction([kv.delete(sessions.line_key(key)), sessions.drop_ticket(key)])
        return
    sessions.line_lease_until = 0.0
    with suppress(LeaseMissing):
        yield kv.lease("revoke", sessions.line_lease)


def _is_reserved(value: bytes) -> bool:
    fields = Entry("", value, 0, 0, "").fields
    return bool(fields.get("reserved_for"))
