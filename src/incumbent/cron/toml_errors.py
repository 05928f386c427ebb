"""A job file cut at its headers: each piece is read for itself, and errors have a place. Pure.

tomllib stops at the first fault of a text, and gives values without their places. Piece by piece, a
fault hides nothing of the other pieces, and a key is looked for in its own piece only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from tomllib import TOMLDecodeError, loads
from typing import Any, Final

__all__ = ["Piece", "cut"]

_HEADER: Final = re.compile(
    r"^[ \t]*\[{1,2}[ \t]*(?:job|defaults)[ \t]*\]{1,2}[ \t]*(?:#.*)?$", re.M
)
_LONG_TEXT: Final = re.compile(r'"{3}(?:\\.|[^\\])*?"{3,5}' + r"|'{3}.*?'{3,5}", re.S)
_WHERE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Piece:
    """From one header to the next; `line`, which counts from 1, is that of its beginning.

    `fault`: why it is not TOML, with its place; then there are no values.
    """

    line: int
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    fault: tuple[int, int, str] | None = None

    @property
    def hides_defaults(self) -> bool:
        """Whether `[defaults]` is in what cannot be read."""
        return self.fault is not None and bool(
            re.search(r"^[ \t]*\[+[ \t]*defaults\b", self.text, re.M)
        )

    def place(self, *names: str) -> tuple[int, int]:
        """Line and column of a key, else of what it is in; both count from 1."""
        return _place(self.text, self._find(*names)[0], self.line)

    def place_inside(self, name: str, value: str, at: int) -> tuple[int, int]:
        """So far into a text, if it is written as it is; else its beginning."""
        _, start = self._find(name)
        as_it_is = self.text.startswith(value, start + 1)
        return _place(self.text, start + 1 + at if as_it_is else start, self.line)

    def _find(self, *names: str) -> tuple[int, int]:
        """Offsets of a key and of its value."""
        text, key, value = _blank(self.text), len(self.text) - len(self.text.lstrip(" \t")), 0
        for name in names:
            word = rf"""["']?{re.escape(name)}["']?"""
            pattern = rf"^[ \t]*((?:\[+[ \t]*)?(?:\w+[ \t]*\.[ \t]*)*{word})[ \t]*(?:=[ \t]*|[.\]])"
            found = re.compile(pattern, re.M).search(text, key)
            if found:
                key, value = found.start(1), found.end()
        return key, value


def cut(text: str) -> list[Piece]:
    """The pieces of a text. If they can be read, but not together, the last one says why."""
    starts = {0, *(it.start() for it in _HEADER.finditer(_blank(text))), len(text)}
    pieces, line = [], 1
    for start, end in pairwise(sorted(starts)):
        pieces.append(_read(text[start:end], line))
        line += text.count("\n", start, end)
    whole = _read(text, 1)
    if (whole.fault is None) == all(it.fault is None for it in pieces):
        return pieces
    # A header within a text that we did not see as one; or the same table twice.
    return [whole] if whole.fault is None else [*pieces, Piece(1, "", fault=whole.fault)]


def _read(text: str, line: int) -> Piece:
    try:
        return Piece(line, text, loads(text))
    except TOMLDecodeError as error:
        found, what = _WHERE.search(str(error)), _WHERE.sub("", str(error))
    except RecursionError:
        found, what = None, "nested too deep"
    if found and found[1]:
        row, column = line + int(found[1]) - 1, int(found[2])
    else:
        row, column = _place(text, len(text), line)
    return Piece(line, text, fault=(row, column, f"this is not TOML: {what}"))


def _place(text: str, offset: int, line: int) -> tuple[int, int]:
    return line + text.count("\n", 0, offset), offset - text.rfind("\n", 0, offset)


def _blank(text: str) -> str:
    """With nothing in texts of several lines, which may look like keys and headers."""
    if '"""' not in text and "'''" not in text:
        return text
    return _LONG_TEXT.sub(lambda it: re.sub(r"[^\n]", " ", it[0]), text)
