"""Time zones by name, and what happens to local time where a zone's offset changes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from math import floor

from incumbent.errors import ConfigError


def near_word(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for a slip of the pen, or nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def find_zone(name: str) -> tzinfo:
    """The zone; raises ConfigError for a name that nobody here knows."""
    if name in ("UTC", "Etc/UTC", "Z"):
        return UTC
    if name == "localtime":
        raise ConfigError("localtime is another zone on every machine: name one", name="timezone")
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        # KeyError: no such file; ValueError: a path; OSError: a folder such as "Europe".
        hint = near_word(name, available_timezones())
        raise ConfigError(f"{name[:60]!r} is not a time zone{hint}", name="timezone") from None


def local_time(instant: float, zone: tzinfo) -> datetime:
    """What a clock in `zone` shows, with its fold, to the second."""
    return datetime.fromtimestamp(floor(instant), zone)


def seconds_of(naive: datetime, zone: tzinfo, fold: int) -> float | None:
    """When a clock shows `naive` for the first (0) or last (1) time; None if it never does."""
    instant = naive.replace(tzinfo=zone, fold=fold).timestamp()
    shown = datetime.fromtimestamp(instant, zone)
    return instant if shown.replace(tzinfo=None, fold=0) == naive else None


def offset_at(instant: float, zone: tzinfo) -> float:
    """Seconds that the zone is ahead of UTC."""
    offset = local_time(instant, zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def change_between(low: float, high: float, zone: tzinfo) -> float:
    """The first second with the new offset; the offsets at `low` and `high` differ."""
    old = offset_at(low, zone)
    first, last = floor(low), floor(high)
    while last - first > 1:
        middle = (first + last) // 2
        if offset_at(middle, zone) == old:
            first = middle
        else:
            last = middle
    return float(last)
