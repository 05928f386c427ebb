"""Who wrote when, drawn in text. Pure: instants in, lines out; nothing is drawn that was not given.

seconds 0    1    2    3
one     ####x
two           #####z
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import NamedTuple

__all__ = ["Row", "draw", "spell"]


class Row(NamedTuple):
    """One line: `spans` are drawn as `sign`, and over them each of the `marks` (instant, sign)."""

    spans: Sequence[tuple[float, float]]
    marks: Sequence[tuple[float, str]] = ()
    sign: str = "#"


def spell(seconds: float) -> str:
    """A measured time with two digits that mean something."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


def draw(rows: Mapping[str, Row], start: float, end: float, width: int) -> list[str]:
    """The axis, then a line for each row; one column is `(end - start) / width` seconds."""
    column = max(end - start, 1e-9) / width
    margin = max(map(len, (*rows, "seconds"))) + 1
    lines = ["seconds".ljust(margin) + _axis(column, width)]
    for name, row in rows.items():
        lines.append((name.ljust(margin) + _cells(row, start, column, width)).rstrip())
    return lines


def _axis(column: float, width: int) -> str:
    cells = [" "] * (width + 4)
    # As dense as the numbers can be read.
    step = next(step for step in (1, 2, 5, 10, 60, 600) if step / column >= 5 or step == 600)
    for second in range(0, floor(column * width) + 1, step):
        at = floor(second / column)
        cells[at : at + len(str(second))] = str(second)
    return "".join(cells).rstrip()


def _cells(row: Row, start: float, column: float, width: int) -> str:
    cells = [" "] * width
    for begin, end in row.spans:
        for at in _columns((begin - start) / column, (end - start) / column):
            if 0 <= at < width:
                cells[at] = row.sign
    for instant, sign in row.marks:
        at = min(width - 1, floor((instant - start) / column))
        if at >= 0:
            cells[at] = sign
    return "".join(cells)


def _columns(begin: float, end: float) -> range:
    """Columns that are filled to at least a half; of a short span the one in which it begins."""
    filled = range(ceil(begin - 0.5), floor(end + 0.5))
    return filled if filled else range(floor(begin), floor(begin) + 1)
