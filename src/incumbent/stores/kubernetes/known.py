"""What this process knows of the Leases of a namespace; both sides share it.

It is the clock: how long a version of a record has stood is counted from when it was seen first.
So what is known is kept while versions stay equal, and an older answer never replaces a newer one.

The marker is a Lease of its own. A namespace that was made anew has another one, and whoever sees
that the revisions of etcd went back (it was restored) counts its `turn` up. Both begin another
incarnation: nothing is granted until whoever held a lease before has stopped to believe in it.
A process that has seen no newer revision cannot tell that etcd was restored: see docs.

Each change is one step of a dict or one assignment, so no lock is needed.
"""

from __future__ import annotations

from typing import Any, Final

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key, Refused
from incumbent.rules.codec import Unreadable
from incumbent.stores.kubernetes.objects import (
    MARKER,
    RECORD,
    SKEW,
    LeaseSight,
    beside_of,
    opened,
    record_of,
    sealed,
)
from incumbent.stores.registers import Incarnation, Seen

LOOK_EVERY: Final = 10.0
"""Seconds after which a take looks at the marker again."""
FRESH: Final = 5.0
"""Seconds for which a take goes by what is known: a restored etcd may count up to it again."""
AHEAD: Final = 60_000_000
"""Microseconds by which tokens begin ahead of the clock, of an incarnation and of an object."""
_WATCHED: Final = 300.0
"""Seconds for which somebody who asks once may have to watch a lease."""
_NAMES: Final = 10_000
_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec"


class NamespaceMarker:
    """The marker as it was seen. Raises StoreUnavailable if it cannot be read."""

    def __init__(self, lease: dict[str, Any], where: str) -> None:
        self.lease, self.looked = lease, clock.now()
        meta = lease["metadata"]
        try:
            found = opened((meta.get("annotations") or {}).get(RECORD, ""))
            self.turn, self.born, self.longest, self.floor = (
                int(found[name]) for name in ("turn", "born", "longest", "floor")
            )
        except (Unreadable, KeyError, TypeError, ValueError) as error:
            raise StoreUnavailable(
                f"{where}: the Lease {MARKER} {error}. Nothing is granted. Stop instances of"
                " another version, and remove it when nobody holds a lease",
                permanent=True,
            ) from error
        self.id = f"{meta.get('uid', '')}:{self.turn}"


def marker_with(
    namespace: str,
    before: NamespaceMarker | None,
    *,
    turn: int,
    born: int,
    longest: int,
    floor: int,
) -> dict[str, Any]:
    """The marker's object."""
    meta = {**(before.lease["metadata"] if before else {})}
    meta.pop("managedFields", None)
    text = sealed({"turn": turn, "born": born, "longest": longest, "floor": floor})
    meta |= {"name": MARKER, "namespace": namespace}
    meta["annotations"] = {**(meta.get("annotations") or {}), RECORD: text}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}}


class Known:
    """See the module. `newest`: the highest revision that an answer had; `upset`: one that must be
    newer was not, or the marker is another one."""

    now = staticmethod(clock.now)

    def __init__(self, where: str) -> None:
        self.where = where
        self.sights: dict[Key, LeaseSight] = {}
        self.marker: NamespaceMarker | None = None
        self.newest = 0
        self.upset = False
        self._ahead: float | None = None

    # -- clocks -------------------------------------------------------------------------------

    def wall(self) -> int:
        """The wall clock of the API servers, in microseconds; by their answers' header Date."""
        ahead = self._ahead
        return int((clock.wall() if ahead is None else clock.now() + ahead) * 1e6)

    def heard(self, date: bytes) -> None:
        """Note the Date (in lower case) of an answer that has just come."""
        second = _seconds(date)
        if second is None:
            return
        # A Date is up to a second behind the clock that it is read from. Ours says which part of
        # the second it is, unless it is another second altogether.
        ours = clock.wall()
        self._ahead = (ours if second <= ours < second + 2 else second) - clock.now()

    # -- objects ------------------------------------------------------------------------------

    def see(
        self, key: Key, lease: dict[str, Any] | None, floor: int = 0, *, own: bool = False
    ) -> LeaseSight:
        """Note what an answer has of a name. `floor`: what its revision cannot be below."""
        # From when the answer is here: an earlier instant would let a lease end too early.
        found, before = LeaseSight(lease, self.now(), own=own), self.sights.get(key)
        self.note(found.revision or floor, floor)
        if before is not None and before == found:
            # The same version keeps its `first`, from which its clock is counted.
            before.seen = found.first
            return before
        if before is None or before.id[0] != found.id[0] or before.revision <= found.revision:
            if len(self.sights) >= _NAMES:
                self.sights.clear()
            self.sights[key] = found
        return found

    def is_unproved(self, key: Key, refused: Refused) -> bool:
        """Whether who is in the way has not renewed in time by the wall clock: only a hint."""
        sight, left = self.sights.get(key), refused.retry_after or 0.0
        by_time = refused.reason in ("held", "reserved", "turn") and left <= _WATCHED
        return by_time and sight is not None and sight.looks_dead(self.wall())

    def note(self, revision: int, floor: int) -> None:
        """Note the revision of an answer; `floor`: one that it cannot be below."""
        # A floor above `newest` was read before another thread began anew.
        if revision < floor <= self.newest:
            self.upset = True
        self.newest = max(self.newest, revision)

    def floor_of(self, key: Key) -> int:
        """The revision that an answer about a name cannot be below, while it is the same object."""
        sight = self.sights.get(key)
        return sight.revision if sight else 0

    def seen(
        self, key: Key, sight: LeaseSight, marker: NamespaceMarker | None, *, recalled: bool = False
    ) -> Seen:
        """What a version says. Raises StoreUnavailable if it cannot be read."""
        wall = self.wall()
        if marker is None:
            raise StoreUnavailable(f"{self.where}: it is not known yet", retry_after=0.05)
        now = sight.now(self.now())
        record = record_of(sight, key, wall, now, self.where)
        beside = beside_of(sight, key, wall, now, self.where)
        age = max(0, wall - marker.born - SKEW) / 1e6
        incarnation = Incarnation(marker.id, age, marker.longest / 1e6)
        # An object that was removed leaves no token to count on from.
        floor = marker.floor if sight else max(marker.floor, wall + AHEAD)
        return Seen(record, sight, now, wall, incarnation, floor, beside, recalled=recalled)

    def seen_or_error(
        self, key: Key, sight: LeaseSight, marker: NamespaceMarker | None
    ) -> Seen | StoreError:
        """The same, with the error as a value."""
        try:
            return self.seen(key, sight, marker)
        except StoreError as error:
            return error


def _seconds(date: bytes) -> int | None:
    """The seconds since 1970 of such a text: fri, 27 nov 2026 03:42:11 gmt."""
    from datetime import UTC, datetime

    try:
        _, day, month, year, time, _ = date.decode().split()
        hour, minute, second = map(int, time.split(":"))
        number = _MONTHS.split().index(month) + 1
        found = datetime(int(year), number, int(day), hour, minute, second, tzinfo=UTC)
    except (ValueError, UnicodeDecodeError):
        return None
    return int(found.timestamp())
