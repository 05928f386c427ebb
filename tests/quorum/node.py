"""One node's scripts as a table, for one lease: what *.lua of the quorum do, in their order.

A differential test plays the same steps on a real server. Bugs are planted here by name (`bugs`),
each the absence of one rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

MINUTE = 60_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND


class Take(NamedTuple):
    """A ballot. Times in microseconds; `raising`: what the claim has here is raised to it."""

    claim: str
    ballot: int
    ttl: int
    members: str
    quarantine: int
    raising: bool = False
    keep: int = DAY


class Renew(NamedTuple):
    """`quarantine` None: the ttl."""

    claim: str
    ballot: int
    ttl: int
    members: str
    quarantine: int | None = None


class Plant(NamedTuple):
    """`floor`: what the renewal saw, or None for none."""

    claim: str
    ballot: int
    ttl: int
    members: str
    quarantine: int
    floor: int | None
    keep: int = DAY


class Revoke(NamedTuple):
    """Take back a vote."""

    claim: str
    ballot: int


class Give(NamedTuple):
    """Release."""

    claim: str
    ballot: int


class Look(NamedTuple):
    """The node's clock and marker, untouched."""


class Found(NamedTuple):
    """Mark a blank node as one of a new cluster, until `deadline`."""

    members: str
    born: int
    deadline: int


@dataclass(slots=True)
class Kept:
    """A value with the last millisecond (of the node's clock) in which it is there."""

    value: Any
    expires: int


@dataclass(slots=True)
class Data:
    """All that a node keeps; what a restart without data loses."""

    marker: tuple[str, int] | None = None
    lease: Kept | None = None
    floor: Kept | None = None

    def copy(self) -> Data:
        """As a snapshot on the disk."""
        return Data(
            self.marker,
            None if self.lease is None else replace(self.lease),
            None if self.floor is None else replace(self.floor),
        )


@dataclass(slots=True)
class Node:
    """`bugs`: rules that are left out."""

    bugs: frozenset[str] = frozenset()
    data: Data = field(default_factory=Data)

    def handle(self, request: Any, now: int) -> Any:
        """What the script answers at `now`, microseconds of this node's clock."""
        data = self.data
        for name in ("lease", "floor"):
            kept = getattr(data, name)
            if kept is not None and now // 1000 > kept.expires:
                setattr(data, name, None)
        return getattr(self, f"_{type(request).__name__.lower()}")(request, now)

    # -- one for each script

    def _look(self, _: Look, now: int) -> tuple[int, tuple[str, int] | None]:
        return now, self.data.marker

    def _found(self, request: Found, now: int) -> int:
        if request.deadline < now or self.data.marker is not None:
            return 0
        self.data.marker = (request.members, request.born)
        return 1

    def _take(self, request: Take, now: int) -> tuple[Any, ...]:
        marker = self._marked(request.members, now)
        if self._is_strange(marker, request.members):
            return ("members", marker)
        young = marker[1] + request.quarantine - now
        if young > 0 and "no born quarantine" not in self.bugs:
            return ("young", young)
        admits, floor, held = self._admits(request.ballot, now), self._floor(), self.data.lease
        if held is None:
            if admits != "yes":
                return (admits, now, floor)
            self._store(request, now)
            return ("vote", request.ballot)
        if held.value[0] == request.claim:
            return self._repeat(request, held, admits, now)
        return ("held", held.value, now, floor)

    def _repeat(self, request: Take, held: Kept, admits: str, now: int) -> tuple[Any, ...]:
        stored = held.value[1]
        if request.raising and stored != request.ballot:
            if admits != "yes":
                return (admits, now, self._floor())
            stored = request.ballot
            held.value = (request.claim, stored)
            self._set_floor(stored, _end(now, _and_a_quarter(request.keep)))
        held.expires = max(held.expires, _end(now, request.ttl))
        return ("again", stored)

    def _renew(self, request: Renew, now: int) -> Any:
        marker = self._marked(request.members, now)
        if self._is_strange(marker, request.members):
            return ("members", marker)
        held = self.data.lease
        if held is not None:
            if held.value != (request.claim, request.ballot):
                return ("gone",)
            held.expires = max(held.expires, _end(now, request.ttl))
            return ("renewed",)
        wait = request.ttl if request.quarantine is None else request.quarantine
        if marker[1] + wait - now <= 0 or "no born quarantine" in self.bugs:
            return ("free", self._floor())
        return ("gone",)

    def _plant(self, request: Plant, now: int) -> int:
        marker = self.data.marker
        if marker is None or self._is_strange(marker, request.members):
            return 0
        young = marker[1] + request.quarantine - now > 0
        if young and "no born quarantine" not in self.bugs:
            return 0
        floor = self._floor()
        if floor != request.floor and "plants whatever happened since" not in self.bugs:
            return 0
        if self.data.lease is not None:
            return 0
        self.data.lease = Kept((request.claim, request.ballot), _end(now, request.ttl))
        if floor is None or request.ballot > floor or "planting lowers the floor" in self.bugs:
            self._set_floor(request.ballot, self.data.floor.expires if self.data.floor else 0)
        if self.data.floor is not None:
            self.data.floor.expires = max(self.data.floor.expires, _end(now, request.keep))
        return 1

    def _revoke(self, request: Revoke, now: int) -> int:
        held, freed = self.data.lease, 0
        if held is not None and held.value[0] == request.claim and held.value[1] <= request.ballot:
            self.data.lease, freed = None, 1
        floor, ahead = self._floor(), request.ballot - now
        if -MINUTE < ahead <= MINUTE and (floor is None or request.ballot > floor):
            least = _end(now, 600 * SECOND)
            kept = self.data.floor.expires if self.data.floor else 0
            self._set_floor(request.ballot, max(kept, least))
        return freed

    def _give(self, request: Give, now: int) -> int:
        held = self.data.lease
        if held is None or held.value != (request.claim, request.ballot):
            return 0
        self.data.lease = None
        if self.data.floor is None:
            self._set_floor(request.ballot, _end(now, DAY))
        return 1

    # -- the rules

    def _marked(self, members: str, now: int) -> tuple[str, int]:
        if self.data.marker is None:
            self.data.marker = (members, now)
        return self.data.marker

    def _is_strange(self, marker: tuple[str, int], members: str) -> bool:
        return marker[0] != members and "the member list is ignored" not in self.bugs

    def _admits(self, ballot: int, now: int) -> str:
        floor, ahead = self._floor(), ballot - now
        if "floors are not looked at" in self.bugs:
            floor = None
        if not (ballot > floor if floor is not None else ahead > -MINUTE):
            return "low"
        near = ahead <= MINUTE or (floor is not None and ballot - floor <= SECOND)
        return "yes" if near or "no limit of ballots" in self.bugs else "high"

    def _store(self, request: Take, now: int) -> None:
        self.data.lease = Kept((request.claim, request.ballot), _end(now, request.ttl))
        ahead = request.ballot - now
        keep = request.keep + (ahead if ahead > MINUTE else 0)
        kept = self.data.floor
        # Its end is left where it is for as long as that is late enough.
        if kept is not None and kept.expires * 1000 - now >= -(-keep // 1000) * 1000:
            self._set_floor(request.ballot, kept.expires)
        else:
            self._set_floor(request.ballot, _end(now, _and_a_quarter(keep)))

    def _floor(self) -> int | None:
        kept = self.data.floor
        return None if kept is None else int(kept.value)

    def _set_floor(self, ballot: int, expires: int) -> None:
        if "the floor is not stored" not in self.bugs:
            self.data.floor = Kept(ballot, expires)


def _and_a_quarter(keep: int) -> int:
    return -(-(-(-keep // 1000) * 5) // 4) * 1000


def _end(now: int, keep: int) -> int:
    # As the server counts: whole milliseconds, the remainder of a wish rounded up.
    return now // 1000 - -keep // 1000
