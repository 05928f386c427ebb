"""Instants that an operator names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from incumbent.durations import parse_duration
from incumbent.errors import ConfigError

__all__ = ["instant_of", "since_of"]


def since_of(text: str, now: float) -> float:
    """`2h` ago, or an instant; raises ConfigError."""
    try:
        return now - parse_duration(text, "since")
    except ConfigError:
        return instant_of(text, "since", now, "2h, ")


def instant_of(text: str, what: str, now: float, also: str = "") -> float:
    """`05:30` (the last one), `2026-11-21T05:30`, with a zone or in local time; ConfigError."""
    here = datetime.fromtimestamp(now, UTC).astimezone()
    try:
        if len(text) <= 8 and ":" in text:
            clock = datetime.strptime(text, "%H:%M" if text.count(":") == 1 else "%H:%M:%S")  # noqa: DTZ007 - only its time
            found = here.replace(
                hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0
            )
            return (found if found <= here else found - timedelta(days=1)).timestamp()
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.astimezone()).timestamp()
    except ValueError:
        raise ConfigError(
            f"{what}={text[:40]!r}: write {also}05:30, 2026-11-21T05:30 or 2026-11-21T05:30:00Z",
            name=what,
        ) from None
