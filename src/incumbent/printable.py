"""Text from elsewhere, made fit for a terminal or a log. Pure.

Whoever can write to the store can name a holder, a lease or a reason as he likes: with the escape
sequences of a terminal, or with a line break and a forged line behind it. What people read shows
such characters as escapes (`\\x1b`, `\\n`, `\\u202e`); attributes and JSON keep the text itself.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with an escape for each character that is not printable, as Python writes it."""
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def printable_lines(text: str) -> str:
    """`printable` for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(line: str) -> str:
    """A line of JSON with the same value, in which every character is printable."""
    if line.isprintable():
        return line
    from json import dumps

    return "".join(it if it.isprintable() else dumps(it)[1:-1] for it in line)
