"""Does a store compare what it is told to compare? Found out before anybody relies on it.

A store that swaps without a comparison grants a name to everybody who asks: a proxy that answers
for several servers, an emulator that ignores conditions, a table without transactions.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Field, Key
from incumbent.rules.record import NOTHING, Entry, after
from incumbent.stores.registers import Load, Place, Seen, Swap, Swaps, Wanted

PROBE: Final = Key("incumbent.probe", "probe")
"""A name that nobody holds."""
_PLACE: Final[Place] = ("field", "probe")
_TRIES: Final = 8
_KEPT: Final = 3_600_000_000


def probe(where: str) -> Generator[Any, Any, None]:
    """A program (see stores.deciding) that swaps twice from the same version.

    Raises StoreUnavailable if the second swap is not refused, or if it leaves something behind.
    """
    (seen,) = yield Load((Wanted(PROBE, (_PLACE,)),))
    for _ in range(_TRIES):
        if isinstance(seen, StoreError):
            raise seen
        (refused,) = yield Swaps((_swap(seen, 1),))
        if refused is None:
            break
        seen = refused  # another process probes, too
    else:
        return  # which shows that versions are compared
    (now,) = yield Swaps((_swap(seen, 2),))
    if isinstance(now, StoreError):
        raise now
    if now is None or now.version == seen.version or now.field(_PLACE[1]) == Field(b"2", 2):
        raise StoreUnavailable(
            f"{where} writes also what it was told to write only if nobody else has: two clients"
            " would be granted the same lease. Is it a proxy, or an emulator? Name the server",
            permanent=True,
        )


def _swap(seen: Seen, turn: int) -> Swap:
    record = seen.record if seen.version else NOTHING
    new = record._replace(changes=record.changes + 1, keep_until=after(_KEPT))
    entry = Entry(*_PLACE, Field(b"%d" % turn, turn))
    return Swap(Wanted(PROBE, (_PLACE,)), seen, new, (entry,))
