"""Every message of an error can be found in docs/troubleshooting.md, by its text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.docs.messages import GAP, all_texts, messages

PAGE = Path(__file__).parent.parent.parent / "docs" / "troubleshooting.md"
SPAN = re.compile(r"(`+)(.+?)\1")
END = "\0"
"""Between texts that are searched at once."""


def entries() -> list[str]:
    """What stands in the first column of the tables: texts, with a gap for what differs."""
    rows = re.findall(r"^\| (.*?) \| .* \|$", PAGE.read_text(), re.MULTILINE)
    return [text.strip() for row in rows for _, text in SPAN.findall(row)]


def fits(entry: str, message: str) -> bool:
    """Whether the entry is a part of the message: its fixed words, in their order."""
    return _pattern(entry).search(message) is not None


@cache
def _pattern(entry: str) -> re.Pattern[str]:
    parts = [re.escape(part.strip()) for part in entry.split(GAP)]
    any_words = f"[^{END}]*"
    return re.compile(any_words.join(parts).removeprefix(any_words).removesuffix(any_words))


def test_every_message_is_found_by_its_text() -> None:
    known = entries()
    missing = [
        f"{place}: {text}"
        for text, place in messages().items()
        if not any(fits(entry, text) for entry in known)
    ]
    assert missing == [], "add what it means, and what to do, to docs/troubleshooting.md"


def test_every_entry_is_a_message() -> None:
    said = END.join([*messages(), *all_texts()])
    stale = [entry for entry in entries() if not fits(entry, said)]
    assert stale == [], "docs/troubleshooting.md has entries that no error says"


def test_an_entry_that_is_left_out_is_missed() -> None:
    assert len(messages()) > 250
    assert not fits("is held by …", "… is paused: nobody may take it")
    assert fits("is held by …", "is held by ……")
