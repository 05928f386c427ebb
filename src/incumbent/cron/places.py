"""Where the keys of a TOML file stand; tomllib gives values without their places.

The text is valid TOML already (tomllib has read it), so only its outline is followed: headers, keys
at the beginning of a statement, strings, comments and brackets. tomlkit would bring a second parser
and still no line numbers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["Place", "Places", "find_places"]

_TOKEN: Final = re.compile(
    r"""(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<comment>\#[^\n]*)|(?P<blank>[^\S\n]+)|(?P<sign>[\[\]{}=,.\n])"""
    r"""|(?P<word>[^\s\[\]{}=,."'\#]+)""",
    re.DOTALL,
)
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Of a key or a header, and of the value; offsets into the text."""

    key: int
    value: int


@dataclass(frozen=True, slots=True)
class Places:
    """By path: `("job", 0, "schedule")`. A path without a place has that of what it is in."""

    text: str
    found: Mapping[_Path, Place]
    starts: tuple[int, ...]

    def of(self, *path: str | int) -> Place:
        """The place of `path`, or of the nearest thing around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.found:
                return self.found[path[:length]]
        return Place(0, 0)

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Both count from 1."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1


def find_places(text: str) -> Places:
    """Follow the outline of a valid TOML text."""
    starts = (0, *(it.end() for it in re.finditer("\n", text)))
    return Places(text, _Outline(text).places(), starts)


class _Outline:
    def __init__(self, text: str) -> None:
        self._tokens: Iterator[re.Match[str]] = (
            it for it in _TOKEN.finditer(text) if it.lastgroup not in ("blank", "comment")
        )
        self._counts: dict[str, int] = {}
        self._found: dict[_Path, Place] = {}

    def places(self) -> dict[_Path, Place]:
        table: _Path = ()
        for token in self._tokens:
            if token.group() == "[":
                table = self._header(token)
            elif token.group() != "\n":
                self._statement(token, table)
        return self._found

    def _header(self, opening: re.Match[str]) -> _Path:
        names, brackets = [], 1
        for token in self._tokens:
            if token.group() == "\n":
                break
            brackets += token.group() == "["
            if token.lastgroup in ("word", "text"):
                names.append(_name(token))
        path = self._path(names, is_item=brackets > 1)
        self._found[path] = Place(opening.start(), opening.start())
        return path

    def _path(self, names: list[str], *, is_item: bool) -> _Path:
        first, rest = names[0], names[1:]
        if is_item and not rest:
            self._counts[first] = self._counts.get(first, -1) + 1
        if first in self._counts:
            return (first, self._counts[first], *rest)
        return tuple(names)

    def _statement(self, first: re.Match[str], table: _Path) -> None:
        names = [_name(first)]
        for token in self._tokens:
            if token.group() == "=":
                break
            if token.lastgroup != "sign":
                names.append(_name(token))
        place = Place(first.start(), self._skip_value())
        for length in range(1, len(names) + 1):
            self._found.setdefault((*table, *names[:length]), place)

    def _skip_value(self) -> int:
        start, depth = -1, 0
        for token in self._tokens:
            sign = token.group()
            if start < 0:
                start = token.start()
            depth += (sign in ("[", "{")) - (sign in ("]", "}"))
            if sign == "\n" and depth == 0:
                break
        return start


def _name(token: re.Match[str]) -> str:
    text = token.group()
    if token.lastgroup != "text":
        return text
    from tomllib import loads

    return next(iter(loads(f"{text} = 0")))
