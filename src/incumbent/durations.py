"""Durations: 15, 15.0, "15s", "1h30m", "250ms" or a timedelta, parsed to finite seconds.

And an instant as programs are told it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import TypeAlias

from incumbent.errors import ConfigError

Duration: TypeAlias = "float | int | str | timedelta"

DAY = 86_400.0
_WORDS = {
    0.001: "ms",
    1.0: "s sec secs second seconds",
    60.0: "m min mins minute minutes",
    3600.0: "h hr hrs hour hours",
    DAY: "d day days",
}
_UNITS = {word: seconds for seconds, words in _WORDS.items() for word in words.split()}
_PART = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+) ?", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_PLAIN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_duration(
    value: Duration, what: str = "duration", *, least: float = 0.0, most: float = 366 * DAY
) -> float:
    """Return `value` in seconds.

    Raises ConfigError, which names `what`, for anything but a finite number of seconds between
    `least` and `most`.
    """
    seconds = _seconds(value, what)
    if not isfinite(seconds) or not least <= seconds <= most:
        raise ConfigError(
            f"{what}={_shown(value)} is out of range: it must lie between {say_seconds(least)}"
            f" and {say_seconds(most)}",
            name=what,
        )
    return seconds


def _seconds(value: Duration, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _from_text(value.strip(), what)
    # bool is an int in Python, but nobody means one second by True.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what}={_shown(value)} is not a duration: {_HINT}", name=what)
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _from_text(text: str, what: str) -> float:
    if _PLAIN.fullmatch(text):
        return float(text)
    parts = _PART.findall(text) if _WHOLE.fullmatch(text) else []
    if parts and all(unit in _UNITS for _, unit in parts):
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    raise ConfigError(f"{what}={_shown(text)} is not a duration: {_HINT}", name=what)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to show an int of more than 4300 digits
        text = f"a {type(value).__name__} of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


_HINT = 'write seconds (15, 2.5) or a text such as "500ms", "15s", "5min", "1h30m"'


def say_seconds(seconds: float) -> str:
    """The duration as text: 0.25 -> "250ms", 90 -> "1m30s"."""
    # A value that rounds up to the next unit is shown in that unit: 1m, not 60s.
    if seconds < 0.99995:
        return f"{seconds * 1000:.4g}ms"
    if seconds < 59.95:
        return f"{seconds:.3g}s"
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def backoff_delay(tries: int, jitter: float, *, base: float = 0.05, cap: float = 5.0) -> float:
    """Seconds to wait after the `tries`-th failure in a row; `jitter` is uniform in [0, 1).

    Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS, 2015).
    """
    # 2 ** 30 * base is far above any cap; the bound keeps the power from overflowing.
    return jitter * min(cap, base * 2.0 ** min(tries, 30))


def utc(instant: float) -> str:
    """An instant of the wall clock for programs: RFC 3339, in UTC."""
    from datetime import UTC, datetime

    text = datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds")
    return f"{text.removesuffix('+00:00')}Z"
