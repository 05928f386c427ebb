"""The tables of "Coming from another lock": a row has the two columns that its test runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "coming-from"


@dataclass(frozen=True)
class Row:
    """One row. The first row of a section makes what the rows below it use."""

    section: str
    theirs: str
    ours: str
    first: Row | None

    @property
    def id(self) -> str:
        return f"{self.section}: {self.theirs}"


def code(cell: str) -> str:
    """All code of the cell, a line each; a cell of words alone has none."""
    return "\n".join(re.findall(r"`([^`]+)`", cell))


def _rows_of(page: Path) -> Iterator[Row]:
    section, first, head = "", None, True
    for line in page.read_text().splitlines():
        if line.startswith("## "):
            section, first, head = line.removeprefix("## "), None, True
        elif line.startswith("|---"):
            head = False
        elif line.startswith("|") and not head and section:
            theirs, ours = (cell.strip() for cell in line.strip("|").split("|")[:2])
            row = Row(section, code(theirs) or theirs, code(ours) or ours, first)
            first = first or row
            yield row


@cache
def all_rows() -> tuple[Row, ...]:
    """Each row of each section; the summary of the first page has no section."""
    return tuple(row for page in sorted(FOLDER.glob("*.md")) for row in _rows_of(page))
