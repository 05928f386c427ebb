"""HTML as values: a text is escaped where it is put in, so nothing of a record can break out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, timedelta
from functools import cache, lru_cache
from html import escape
from typing import Final

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""What shows nothing, turns the text around it, or cannot be encoded."""
_PLAIN: Final = re.compile(r"[\w ./:;,()@#*+-]*", re.ASCII)
_VOID: Final = frozenset({"input", "link", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def safe(text: object) -> str:
    """`text` as HTML shows it, in an element or an attribute."""
    if isinstance(text, Html):
        return text
    text = str(text)
    return text if _PLAIN.fullmatch(text) else escape(_UNSEEN.sub("\ufffd", text))


def tag(name: str, /, *inside: object, **attributes: object) -> Html:
    """An element; an attribute that is None or False is left out, `_` in its name is a hyphen."""
    shown = "".join(
        [
            f' {_attribute(key)}="{safe(value)}"' if value is not True else f" {_attribute(key)}"
            for key, value in attributes.items()
            if value is not None and value is not False
        ]
    )
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{joined(inside)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    """One after the other."""
    return Html("".join([safe(part) for part in parts]))


@cache
def _attribute(name: str) -> str:
    return name.strip("_").replace("_", "-")


def when(instant: float, now: float) -> Html:
    """An instant in UTC: the time, with the date if it is another day."""
    if not abs(instant) < _FAR:
        return Html("?")
    day, second = divmod(int(instant), 86_400)
    on, today = _date(day), day == int(now) // 86_400
    time = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    shown = time if today else f"{on} {time[:5]}"
    return Html(f'<time datetime="{on}T{time}Z">{shown}</time>')


@lru_cache(maxsize=64)
def _date(day: int) -> str:
    return (_FIRST + timedelta(days=day)).isoformat()


_FIRST: Final = date(1970, 1, 1)
_FAR: Final = 6e10
"""Seconds: what is farther away than our calendar goes is no instant."""
