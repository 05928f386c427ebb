"""A text that is not TOML: where it is not, and what is left when those tables are taken out. Pure.

tomllib stops at the first fault. Taking out the table with it, and reading again, finds the next
one, and lets all that can be read be checked.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from tomllib import TOMLDecodeError, loads
from typing import Any, Final

__all__ = ["Fault", "Mended", "mend"]

_WHERE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TABLE: Final = re.compile(
    r"^[ \t]*\[{1,2}[ \t]*(?:job|defaults)[ \t]*\]{1,2}[ \t]*(?:#.*)?$", re.M
)
_DEFAULTS: Final = re.compile(r"^[ \t]*\[+[ \t]*defaults\b", re.M)
_MOST: Final = 20
"""Faults that are told of one text: more of them say that it is something else."""
_BACK: Final = 3
"""Tables before that of a fault that may be to blame for it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a text is not TOML; line and column count from 1."""

    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class Mended:
    """`text`: with blanks for what was taken out, so that all else stands where it stood."""

    text: str
    tables: dict[str, Any]
    faults: tuple[Fault, ...]
    has_defaults: bool = True


def mend(text: str) -> Mended:
    """Read it, without the tables that cannot be."""
    faults: list[Fault] = []
    has_defaults = True
    while len(faults) < _MOST:
        try:
            return Mended(text, loads(text), tuple(faults), has_defaults)
        except (TOMLDecodeError, RecursionError) as error:
            faults.append(_fault(text, error))
        place = _to_blame(text, faults[-1])
        if place is None:
            break
        start, end = place
        has_defaults = has_defaults and not _DEFAULTS.search(text[start:end])
        text = text[:start] + _blank(text[start:end]) + text[end:]
    # Where a quote or a bracket that is not closed ends is anybody's guess.
    return Mended("", {}, tuple(faults))


def _fault(text: str, error: Exception) -> Fault:
    found = _WHERE.search(str(error))
    if found and found[1]:
        line, column = int(found[1]), int(found[2])
    else:
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    what = _WHERE.sub("", str(error)) if isinstance(error, TOMLDecodeError) else "nested too deep"
    return Fault(line, column, f"this is not TOML: {what}")


def _to_blame(text: str, fault: Fault) -> tuple[int, int] | None:
    """From where to where the tables of a fault reach; None if that cannot be told."""
    starts = [0, *(it.start() for it in _TABLE.finditer(text)), len(text)]
    place = min(bisect_right(starts, _offset(text, fault)) - 1, len(starts) - 2)
    # A quote that is not closed is only found at a later table.
    for first in range(place, max(-1, place - _BACK - 1), -1):
        start, end = starts[first], starts[place + 1]
        if text[start:end].strip() and _reads(text[:start]):
            return start, end
    return None


def _offset(text: str, fault: Fault) -> int:
    line_starts = [0, *(it.end() for it in re.finditer("\n", text))]
    return line_starts[min(fault.line, len(line_starts)) - 1] + fault.column - 1


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _reads(text: str) -> bool:
    try:
        loads(text)
    except (TOMLDecodeError, RecursionError):
        return False
    return True
