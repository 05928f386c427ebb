"""The code blocks of README and docs, as they stand.

A comment before a block may say what a test does with it: `<!-- not run: why -->`,
`<!-- file: jobs.toml -->` (it is the content of that file for the blocks of the page),
`<!-- under: incumbent run x -->` (it runs as the command of that).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"^(?:<!-- (?P<word>[a-z ]+): (?P<text>.*?) -->\n+)?"
    r"(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    page: Path
    line: int
    language: str
    code: str
    directive: str
    argument: str

    @property
    def id(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("fence")) + 1,
            language=found["language"].split(" ")[0].strip(),
            code=found["code"],
            directive=found["word"] or "",
            argument=found["text"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]
