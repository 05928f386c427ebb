"""How long to sleep while somebody else writes. Pure; both sides of the store use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from incumbent.errors import StoreUnavailable

__all__ = ["looks", "pauses", "still_locked"]

_FIRST: Final = 0.0001  # a transaction takes some 20 us; a sleep is seldom shorter than this
_LONGEST: Final = 0.01

_LOOK_FIRST: Final = 0.002
_LOOK_LONGEST: Final = 0.025
_LOOK_GROWTH: Final = 1.25


def pauses(until: float, now: Callable[[], float]) -> Iterator[float]:
    """Seconds to sleep before each further try, with jitter; ends where `until` would pass."""
    from random import random  # only where there is contention: start-up time counts

    pause = _FIRST
    while (left := until - now()) > 0:
        yield min(pause * (0.5 + random()), left)
        pause = min(pause * 1.5, _LONGEST)


def looks(until: float, now: Callable[[], float]) -> Iterator[float]:
    """Seconds to sleep before each further look for a change, slowly growing, up to `until`."""
    pause = _LOOK_FIRST
    while (left := until - now()) > 0:
        yield min(pause, left)
        pause = min(pause * _LOOK_GROWTH, _LOOK_LONGEST)


def still_locked(path: Path) -> StoreUnavailable:
    """What is said when the time is over."""
    return StoreUnavailable(
        f"{path} stayed locked by another process, which is writing or was stopped while it did;"
        f" nothing was changed (who: fuser {path})"
    )
