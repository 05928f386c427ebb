"""Text from elsewhere, made fit for a terminal or a log, and what a misspelt word meant. Pure.

Whoever can write to the store can name a holder, a lease or a reason as he likes: with the escape
sequences of a terminal, or with a line break and a forged line behind it. What people read shows
such characters as escapes (`\\x1b`, `\\n`, `\\u202e`); attributes and JSON keep the text itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache


def printable(text: str) -> str:
    """`text` with an escape for each character that is not printable, as Python writes it."""
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def printable_lines(text: str) -> str:
    """`printable` for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def nearest(word: str, known: Iterable[str], likeness: float = 0.66) -> str | None:
    """The known word that `word` is most like, if it is a slip of it. `likeness`: 1.0 is equal."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=likeness)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if `word` is a slip of a known word, else an empty text."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def json_line(value: object) -> str:
    """`value` as JSON on one line, in which every character is printable."""
    as_it_is, in_ascii = _encoders()
    line = as_it_is(value)
    return line if line.isprintable() else in_ascii(value).replace("\x7f", "\\u007f")


@cache
def _encoders() -> tuple[Callable[[object], str], Callable[[object], str]]:
    from json import JSONEncoder

    return JSONEncoder(ensure_ascii=False, default=str).encode, JSONEncoder(default=str).encode
