"""One node's scripts as a table, for one lease: what node.lua of the quorum does, in their order.

A differential test plays the same steps on a real server. Bugs are planted here by name (`bugs`),
each the absence of one rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

MINUTE = 60_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
LONGEST = 15 * SECOND
Marker: TypeAlias = "tuple[str, int, int]"
"""Members, born, the longest ttl."""


class Take(NamedTuple):
    """A ballot. Times in microseconds; `raising`: what the claim has here is raised to it.

    `quarantine` None: the longest ttl that was asked for, here or by `longest`.
    """

    claim: str
    ballot: int
    ttl: int
    members: str
    quarantine: int | None
    raising: bool = False
    keep: int = DAY
    longest: int = LONGEST


class Renew(NamedTuple):
    """`quarantine` as in Take."""

    claim: str
    ballot: int
    ttl: int
    members: str
    quarantine: int | None = None
    longest: int = LONGEST


class Plant(NamedTuple):
    """`floor`: what the renewal saw, or None for none."""

    claim: str
    ballot: int
    ttl: int
    members: str
    quarantine: int | None
    floor: int | None
    keep: int = DAY


class Revoke(NamedTuple):
    """Take back a vote. `was_held`: it was perhaps a holding."""

    claim: str
    ballot: int
    was_held: bool = False


class Give(NamedTuple):
    """Release."""

    claim: str
    ballot: int


class Promise(NamedTuple):
    """To hear of no earlier change; `held`: the claim and ballot that have to hold the lease."""

    ballot: int
    members: str
    entry: str
    held: tuple[str, int] | None = None
    longest: int = LONGEST


class Accept(NamedTuple):
    """A change of `state`, or of `entries` with their states if they are given."""

    ballot: int
    members: str
    state: int | None
    entry: str = ""
    value: str | None = None
    held: tuple[str, int] | None = None
    entries: tuple[tuple[str, str], ...] = ()
    states: tuple[int, ...] = ()
    keep: int = 35 * DAY


class Look(NamedTuple):
    """The node's clock and marker, untouched."""


class Found(NamedTuple):
    """Mark a blank node as one of a new cluster, until `deadline`."""

    members: str
    deadline: int
    longest: int = LONGEST


@dataclass(slots=True)
class Kept:
    """A value with the last millisecond (of the node's clock) in which it is there."""

    value: Any
    expires: int


@dataclass(frozen=True, slots=True)
class Beside:
    """What is kept beside a lease; `states`: the ballots that led to it, the newest first."""

    promised: int = 0
    states: tuple[int, ...] = ()
    entries: tuple[tuple[str, str], ...] = ()
    expires: int | None = None

    def entry(self, name: str) -> str | None:
        """What it says of this one."""
        return dict(self.entries).get(name)


NOTHING = Beside()


@dataclass(slots=True)
class Data:
    """All that a node keeps; what a restart without data loses."""

    marker: Marker | None = None
    lease: Kept | None = None
    floor: Kept | None = None
    vote: int = 0
    """The last holding that is kept with the floor."""
    beside: Beside = NOTHING

    def copy(self) -> Data:
        """As a snapshot on the disk."""
        return Data(
            self.marker,
            None if self.lease is None else replace(self.lease),
            None if self.floor is None else replace(self.floor),
            self.vote,
            self.beside,
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
        if data.beside.expires is not None and now // 1000 > data.beside.expires:
            data.beside = NOTHING
        return getattr(self, f"_{type(request).__name__.lower()}")(request, now)

    # -- one for each script

    def _look(self, _: Look, now: int) -> tuple[int, Marker | None]:
        return now, self.data.marker

    def _found(self, request: Found, now: int) -> int:
        if request.deadline < now or self.data.marker is not None:
            return 0
        self.data.marker = (request.members, 0, request.longest)
        return 1

    def _take(self, request: Take, now: int) -> tuple[Any, ...]:
        marker = self._marked(request, now)
        if self._is_strange(marker, request.members):
            return ("members", marker)
        young = self._quarantined(marker, request.quarantine, now)
        if young > 0 and "no born quarantine" not in self.bugs:
            return ("young", young)
        admits, floor, held = self._admits(request.ballot, now), self._lowest(now), self.data.lease
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
                return (admits, now, self._lowest(now))
            stored = request.ballot
            held.value = (request.claim, stored)
            self._set_floor(stored, _end(now, _and_a_quarter(request.keep)))
            self.data.vote = stored
        held.expires = max(held.expires, _end(now, request.ttl))
        return ("again", stored)

    def _renew(self, request: Renew, now: int) -> Any:
        marker = self._marked(request, now)
        if self._is_strange(marker, request.members):
            return ("members", marker)
        held = self.data.lease
        if held is not None:
            if held.value != (request.claim, request.ballot):
                return ("gone",)
            held.expires = max(held.expires, _end(now, request.ttl))
            return ("renewed",)
        if (
            self._quarantined(marker, request.quarantine, now) <= 0
            or "no born quarantine" in self.bugs
        ):
            return ("free", self._floor())
        return ("gone",)

    def _plant(self, request: Plant, now: int) -> int:
        marker = self.data.marker
        if marker is None or self._is_strange(marker, request.members):
            return 0
        young = self._quarantined(marker, request.quarantine, now)
        if young > 0 and "no born quarantine" not in self.bugs:
            return 0
        floor = self._floor()
        if floor != request.floor and "plants whatever happened since" not in self.bugs:
            return 0
        if self.data.lease is not None:
            return 0
        self.data.lease = Kept((request.claim, request.ballot), _end(now, request.ttl))
        if floor is None or request.ballot > floor or "planting lowers the floor" in self.bugs:
            self._set_floor(request.ballot, self.data.floor.expires if self.data.floor else 0)
        self.data.vote = request.ballot
        if self.data.floor is not None:
            self.data.floor.expires = max(self.data.floor.expires, _end(now, request.keep))
        return 1

    def _revoke(self, request: Revoke, now: int) -> int:
        held, freed = self.data.lease, 0
        if held is not None and held.value[0] == request.claim and held.value[1] <= request.ballot:
            if self.data.vote == held.value[1] and not request.was_held:
                self.data.vote = 0
            self.data.lease, freed = None, 1
        floor, ahead = self._floor(), request.ballot - now
        if ahead <= 2 * MINUTE and (floor is None or request.ballot > floor):
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
            self.data.vote = request.ballot
        return 1

    # -- what is kept beside the lease: see promise and accept in node.lua

    def _promise(self, request: Promise, now: int) -> tuple[Any, ...]:
        marker = self._marked(request, now, learns=False)
        if self._is_strange(marker, request.members):
            return ("members", marker)
        kept, born = self.data.beside, marker[1]
        floor = kept.promised or now - MINUTE
        if "old floor" not in self.bugs:
            floor = max(floor, born + MINUTE if born else 0)
        held = self.data.lease.value if self.data.lease else None
        floor = max(floor, held[1] if held else 0)
        ahead = request.ballot - now
        if request.ballot <= floor and "promises are not kept" not in self.bugs:
            return ("low", floor, self._told(born))
        if ahead > MINUTE and not (ahead > 2 * MINUTE and request.ballot - floor <= SECOND):
            return ("high", now)
        expires = kept.expires if kept.states else _end(now, 600 * SECOND)
        self.data.beside = replace(kept, promised=request.ballot, expires=expires)
        states = self._told(born)
        holds = request.held is None or held == request.held
        return ("promised", states, kept.entry(request.entry), int(holds))

    def _told(self, born: int) -> tuple[int, ...]:
        """The ballots of its state; -1 if it may have forgotten, as one that was blank."""
        blank = born > 0 and "forgetting is not told" not in self.bugs
        return self.data.beside.states or (-1 if blank else 0,)

    def _accept(self, request: Accept, now: int) -> int:
        kept, marker = self.data.beside, self.data.marker
        if marker is None or self._is_strange(marker, request.members):
            return 0
        state = kept.states[0] if kept.states else 0
        if state == request.ballot:
            return 1
        if kept.promised != request.ballot and "accepts without a promise" not in self.bugs:
            return 0
        same = request.state in (None, state) or "accepts any state" in self.bugs
        if not same:
            return 0
        held = self.data.lease.value if self.data.lease else None
        if request.held is not None and held != request.held:
            return -1
        if request.state is None:
            kept = Beside(0, request.states, request.entries)
        entries = dict(kept.entries)
        entries.pop(request.entry, None)
        if request.value is not None:
            entries[request.entry] = request.value
        lefts = {name: _left(it, request.ballot) for name, it in entries.items() if name[0] == "u"}
        entries = {name: it for name, it in entries.items() if lefts.get(name, 0) >= -2 * MINUTE}
        keep = request.keep + max([0, *lefts.values()])
        expires = max(kept.expires or 0, _end(now, keep))
        if any(name.startswith("f:") for name in entries):
            expires = None  # type: ignore[assignment]
        states = (request.ballot, *kept.states)[:8]
        self.data.beside = Beside(request.ballot, states, tuple(sorted(entries.items())), expires)
        return 1

    # -- the rules

    def _marked(self, request: Take | Renew | Promise, now: int, *, learns: bool = True) -> Marker:
        known = self.data.marker or (request.members, now, request.longest)
        if learns and known[0] == request.members:
            known = (*known[:2], max(known[2], request.longest))
        self.data.marker = known
        return known

    @staticmethod
    def _quarantined(marker: Marker, quarantine: int | None, now: int) -> int:
        return marker[1] + (marker[2] if quarantine is None else quarantine) - now

    def _is_strange(self, marker: Marker, members: str) -> bool:
        return marker[0] != members and "the member list is ignored" not in self.bugs

    def _admits(self, ballot: int, now: int) -> str:
        floor, ahead = self._lowest(now), ballot - now
        if "floors are not looked at" in self.bugs:
            floor = now - MINUTE
        if ballot <= floor:
            return "low"
        astray = ahead > 2 * MINUTE and ballot - floor <= SECOND
        near = ahead <= MINUTE or (astray and self._floor() == floor == self.data.vote)
        return "yes" if near or "no limit of ballots" in self.bugs else "high"

    def _lowest(self, now: int) -> int:
        """What a ballot has to be above."""
        born = self.data.marker[1] if self.data.marker else 0
        after_birth = born + MINUTE if born and "old floor" not in self.bugs else 0
        kept = self._floor()
        return max(now - MINUTE if kept is None else kept, after_birth)

    def _store(self, request: Take, now: int) -> None:
        self.data.lease = Kept((request.claim, request.ballot), _end(now, request.ttl))
        self.data.vote = request.ballot
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


def _left(value: str, ballot: int) -> int:
    """For how long a slot is used, by a ballot taken for the time."""
    return (int(value.split(maxsplit=1)[0]) - ballot // 1000) * 1000


def _and_a_quarter(keep: int) -> int:
    return -(-(-(-keep // 1000) * 5) // 4) * 1000


def _end(now: int, keep: int) -> int:
    # As the server counts: whole milliseconds, the remainder of a wish rounded up.
    return now // 1000 - -keep // 1000
