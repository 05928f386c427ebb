"""The places of a process in lines of waiters: their keys, and the etcd leases that keep them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from incumbent import clock
from incumbent.model import Key
from incumbent.stores.etcd import kv
from incumbent.stores.etcd.kv import EtcdProgram, KeyValue

if TYPE_CHECKING:
    from incumbent.stores.etcd.obstacles import Obstacles
    from incumbent.stores.etcd.sessions import Sessions

_NOTED_MAX: Final = 16_384
_FRESH: Final = 2 / 3
"""Fraction of a heartbeat: if less of it is left, the places in line are kept alive."""

_now = clock.now


@dataclass(slots=True, eq=False)
class EtcdPlace:
    """A place in line of this process. `heartbeat`: in whole seconds.

    `created`: the revision that determines the order; `found`: the obstacles of the last refusal;
    `shares`: whether the claim would share the name.
    """

    key: str
    created: int
    etcd_lease: str
    heartbeat: int
    shares: bool
    found: Obstacles


@dataclass(slots=True, eq=False)
class _Beat:
    """The etcd lease of our places in lines with one heartbeat. `until`: when it may be over.

    What is on it decides the order alone, so it is never proved.
    """

    etcd_lease: str
    until: float


class LinePlaces:
    """What one engine knows of its places in lines. `firsts`: see remember_first.

    Both sides share it, as all of Sessions.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.firsts: dict[Key, KeyValue] = {}
        self._places: dict[Key, dict[str, EtcdPlace]] = {}
        self._beats: dict[int, _Beat] = {}
        self._numbers: dict[Key, dict[str, int]] = {}
        self.change_keys()

    def of(self, key: Key) -> dict[str, EtcdPlace]:
        """The places in the line of a name, by claim."""
        return self._places.get(key, {})

    def remember(self, key: Key, claim: str, place: EtcdPlace) -> None:
        """Remember a place in line of this process."""
        if len(self._places) >= _NOTED_MAX:
            # The keys of places that are forgotten may still stand in line.
            self._places.clear()
            self.change_keys()
        self._places.setdefault(key, {})[claim] = place

    def place_of(self, key: Key, claim: str) -> EtcdPlace | None:
        """The place in line of this claim, as far as this process knows."""
        return self._places.get(key, {}).get(claim)

    def remember_first(self, key: Key, first: KeyValue | None) -> None:
        """Remember the waiter that a grant to this process left behind as the first in line."""
        # The next take of this process may overtake it without reading the line before.
        if len(self.firsts) >= _NOTED_MAX:
            self.firsts.clear()
        self.firsts.pop(key, None)
        if first is not None:
            self.firsts[key] = first

    def change_keys(self) -> None:
        """Use other keys than before for new places in lines."""
        self._numbers = {}
        self._client = os.urandom(6).hex()

    def key_for(self, key: Key, claim: str) -> str:
        """The key with which the claim joins the line, one that no other claim of ours uses."""
        numbers = self._numbers.setdefault(key, {})
        # A number that is free is used again: until etcd compacts its history, reading the line
        # visits every key that ever stood there, so a key for each claim would slow all waiters.
        if claim not in numbers:
            used = set(numbers.values())
            numbers[claim] = next(number for number in count() if number not in used)
        return f"{kv.names_of(self._sessions.prefix, key).line}{self._client}/{numbers[claim]}"

    def known_key(self, key: Key, claim: str) -> str:
        """The key in line that the claim has, or may have got; empty: none."""
        place = self.place_of(key, claim)
        if place is not None:
            return place.key
        return self.key_for(key, claim) if claim in self._numbers.get(key, ()) else ""

    def removal(self, key: Key, claim: str, *, serves: int = 0) -> list[str]:
        """The operations: remove the claim's key in line, and our ticket if it is our last one.

        `serves`: the ticket by which a grant is asked for: it stays then.
        """
        place, mine = self.place_of(key, claim), self.known_key(key, claim)
        remove = [kv.delete(mine)] if mine else []
        if place is not None and len(self.of(key)) == 1 and not serves:
            # No other waiter of ours is left that it could be for.
            ticket = kv.names_of(self._sessions.prefix, key).ticket
            remove.append(kv.nested([kv.attached(ticket, place.etcd_lease)], [kv.delete(ticket)]))
        return remove

    def forget(self, key: Key, claim: str) -> None:
        """Forget a place whose key is gone. One that is not would be kept alive with the others."""
        # A place that another thread notes in between is lost here; its next take
        # finds it in the line.
        for known in (self._places, self._numbers):
            of_name = known.get(key, {})
            of_name.pop(claim, None)
            if not of_name:
                known.pop(key, None)

    def keep_alive(self, heartbeat: int) -> EtcdProgram[str]:
        """Keep alive the etcd lease of all our places with this heartbeat, and return its id."""
        beat = self._beats.get(heartbeat)
        if beat is not None:
            if self.fresh_etcd_lease(heartbeat):
                return beat.etcd_lease
            # Set this first, so that other waiters do not send a keep-alive as well.
            until, beat.until = beat.until, _now() + heartbeat
            try:
                reply = yield kv.lease_request("keepalive", beat.etcd_lease)
            except BaseException:
                beat.until = until
                raise
            if int(reply.get("result", reply).get("TTL", 0)) > 0:
                return beat.etcd_lease
            if self._beats.get(heartbeat) is beat:
                # Not `del`: another thread may find it gone at the same time.
                self._beats.pop(heartbeat, None)
        sent = _now()
        new = yield from self._sessions.grant(heartbeat)
        # Another thread may have made one meanwhile.
        return self._beats.setdefault(heartbeat, _Beat(new.id, sent + heartbeat)).etcd_lease

    def fresh_etcd_lease(self, heartbeat: int) -> str:
        """The same etcd lease, if it lives for a while without a keep-alive; else ""."""
        beat = self._beats.get(heartbeat)
        return (
            beat.etcd_lease if beat is not None and beat.until - _now() > heartbeat * _FRESH else ""
        )

    def is_kept_alive(self, place: EtcdPlace) -> bool:
        """Whether the etcd lease of a place in line is kept alive."""
        beat = self._beats.get(place.heartbeat)
        return beat is not None and beat.etcd_lease == place.etcd_lease

    def heartbeats(self) -> list[int]:
        """The heartbeats of our places."""
        return list(self._beats) if self._places else []

    def remember_missing_lease(self) -> None:
        """Remember that one of these etcd leases may be gone."""
        for beat in list(self._beats.values()):
            beat.until = 0.0
