"""Does a store compare what it is told to compare? Tested before anybody relies on it.

A store that swaps without a comparison grants a name to everybody who asks: a proxy that answers
for several servers, an emulator that ignores conditions, a table without transactions.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Field, Key
from incumbent.policy import TTL_DEFAULT
from incumbent.rules.record import NOTHING, Entry, after
from incumbent.stores.findings import (
    Finding,
    about_clock,
    about_start,
    about_trip,
    finding,
    wait_after_restart,
)
from incumbent.stores.registers import Load, Place, Registers, Seen, Swap, Swaps, Wanted

PROBE: Final = Key("incumbent.probe", "probe")
"""A name that nobody holds."""
_PLACE: Final[Place] = ("field", "probe")
_TRIES: Final = 8
_KEPT: Final = 3_600_000_000


def probe(where: str) -> Generator[Any, Any, None]:
    """A program (see stores.deciding) that swaps twice from the same version, and reads in between.

    Raises StoreUnavailable if the second swap is not refused, or leaves something behind, and if
    what the first one wrote cannot be read.
    """
    wanted = Load((Wanted(PROBE, (_PLACE,)),))
    (seen,) = yield wanted
    before = []
    for _ in range(_TRIES):
        if isinstance(seen, StoreError):
            raise seen
        before.append(seen.version)
        (refused,) = yield Swaps((_swap(seen, 1),))
        if refused is None:
            break
        seen = refused  # another process probes, too
    else:
        return  # which shows that versions are compared
    (read,) = yield wanted
    if isinstance(read, StoreError):
        raise read
    if read.version in before:
        raise StoreUnavailable(
            f"{where} says that it has written, but has the same version as before: it lost the"
            " write, answers from an old copy, or numbers two writes alike, and two clients would"
            " be granted the same lease. Is it a replica, a cache or an emulator? Name the server",
            permanent=True,
        )
    # By the version from before the first write, so it has to be refused.
    (now,) = yield Swaps((_swap(seen, 2),))
    if isinstance(now, StoreError):
        raise now
    if now is None or now.version == seen.version or now.field(_PLACE[1]) == Field(b"2", 2):
        raise StoreUnavailable(
            f"{where} writes even what it should write only if nobody else has: two clients would"
            " be granted the same lease. Is it a proxy, or an emulator? Name the server",
            permanent=True,
        )


def _swap(seen: Seen, turn: int) -> Swap:
    record = seen.record if seen.version else NOTHING
    new = record._replace(changes=record.changes + 1, keep_until=after(_KEPT))
    entry = Entry(*_PLACE, Field(b"%d" % turn, turn))
    return Swap(Wanted(PROBE, (_PLACE,)), seen, new, (entry,))


def about_registers(
    registers: Registers, restart_wait: float | None, ttl: float, until: float
) -> list[Finding]:
    """What `doctor` says of any registers with a wall clock. Raises StoreError.

    `restart_wait`: the option of that name; `ttl`: the asker's.
    """
    began = clock.now()
    (seen,) = registers.load((Wanted(PROBE),), until)
    trip = clock.now() - began
    if isinstance(seen, StoreError):
        raise seen
    wait = wait_after_restart(restart_wait, ttl, seen.incarnation.longest)
    unknown = f"it may not know the ttl of {say_seconds(ttl)} of leases from before"
    return [
        finding(True, "it compares what it should"),
        about_start("the same server and data for", seen.incarnation.age, wait),
        finding(
            restart_wait is not None or ttl <= TTL_DEFAULT,
            "after a failover it waits for holders that may still believe",
            f"after a failover {unknown}",
            f"say ?restart_wait={say_seconds(ttl)} in every URL",
        ),
        about_clock(abs(seen.wall / 1e6 - clock.wall())),
        about_trip(trip, ttl),
    ]
