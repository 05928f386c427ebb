"""The fields of a cron expression: hints for words of other programs, and steps that do nothing.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

FIELDS: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
RANGES: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTH, _WEEKDAY = 4, 5
_WORD: Final = re.compile(r"\S+")
_MONTHS: Final = (
    *("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_NAMES: Final = {
    _MONTH: {name: number for number, name in enumerate(_MONTHS, 1)},
    _WEEKDAY: {name: number for number, name in enumerate(_WEEKDAYS)},
}


def words_of(expression: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Each field's word, with its index in FIELDS."""
    words = list(_WORD.finditer(expression))
    return enumerate(words, len(FIELDS) - len(words))


# -- what to write instead -------------------------------------------------------------------------


_SPREAD: Final = "write a number; `jitter` in a job file spreads starts"
_ADVICE: Final = (
    (r".*\?.*", "write * instead of ?"),
    (r"H(\(.*\))?(/\d+)?", f"there is no H: {_SPREAD}"),
    (r".*~.*", f"there are no random times, on which instances could not agree: {_SPREAD}"),
    (r"\d*W", "there is no nearest weekday (W): write a day, or LW, the month's last weekday"),
    (r".*#.*", "MON#2 (the second Monday) belongs in day-of-week; #1 to #5"),
    (r"L(-\d+)?|\d*L|LW", "L and LW belong in day-of-month; 5L (the last Friday) in day-of-week"),
    (r".*/0*", "a step is at least 1"),
    (r"-.*", "leave out the - at the beginning, which keeps cronie from writing to syslog"),
)
"""Words of other programs (Quartz, AWS, Jenkins, cronie), and what to write instead."""


def advice_for(word: str, index: int) -> str:
    """Advice for a word that is no field of this kind; empty if there is none."""
    for part in word.upper().split(","):
        for pattern, advice in _ADVICE:
            if re.fullmatch(pattern, part):
                return advice
        if advice := _range_that_wraps(part, index) or _name_in_full(part, index):
            return advice
    return ""


def _value(text: str, index: int) -> int | None:
    number = _NAMES.get(index, {}).get(text)
    return int(text) if number is None and text.isdecimal() else number


def _range_that_wraps(part: str, index: int) -> str:
    """`22-4` in two parts; with a step, its values."""
    found = re.fullmatch(r"(\w+)-(\w+)(?:/(\d+))?", part)
    if found is None:
        return ""
    first, last, step = _value(found[1], index), _value(found[2], index), int(found[3] or 1)
    low, high = RANGES[index]
    high -= index == _WEEKDAY
    if first is None or last is None or not low <= last < first <= high or not step:
        return ""
    if step > 1:
        values = [*range(first, high + 1), *range(low, last + 1)][::step]
        return f"it does not wrap: write {','.join(map(str, values))}"
    ends = (first, high), (low, last)
    spans = (str(low) if low == high else f"{low}-{high}" for low, high in ends)
    return f"it does not wrap: write {','.join(spans)}"


def _name_in_full(part: str, index: int) -> str:
    for word in re.findall(r"[A-Z]{4,}", part):
        if word[:3] in _NAMES.get(index, ()):
            return f"names have three letters: {word[:3]}"
    return ""


# -- steps without effect --------------------------------------------------------------------------

_EVERY: Final = {0: ("seconds", "s"), 1: ("minutes", "m"), 2: ("hours", "h"), 3: ("days", "d")}


def steps_without_effect(expression: str) -> list[tuple[int, str]]:
    """A warning for each step that is larger than what it steps through, with its offset.

    A schedule such as `*/90 * * * *` is valid: it runs hourly, which is seldom what was meant.
    """
    if expression.lstrip().startswith("@"):
        return []
    return [
        (word.start(), text)
        for index, word in words_of(expression)
        for part in word[0].upper().split(",")
        if (text := _step_warning(part, index))
    ]


def _step_warning(part: str, index: int) -> str:
    match = re.fullmatch(r"(\*|L|LW|(\w+)(?:-(\w+))?)/(\d+)", part)
    if match is None:
        return ""
    base, step = match[1], int(match[4])
    if base in ("L", "LW"):
        return f"{part!r}: the step does nothing, as {base} is one day"
    low, high = RANGES[index]
    high -= index == _WEEKDAY
    first = low if base == "*" else _value(match[2], index)
    last = high if match[3] is None else _value(match[3], index)
    if first is None or last is None or step <= last - (low if match[3] is None else first) + 1:
        return ""
    what = f"{part!r}: a step of {step} is larger than {first}-{last}, so this is {first} alone"
    if match[3] is not None or index not in _EVERY:
        return what
    unit, short = _EVERY[index]
    return f'{what}; for every {step} {unit} a job file has every = "{step}{short}"'
