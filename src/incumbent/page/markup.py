"""HTML and SVG as values: texts are escaped on insertion, so that none can act as markup."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from functools import cache, lru_cache
from html import escape
from typing import Final, NamedTuple
from zlib import crc32

from incumbent.cron.fleet import result_of
from incumbent.cron.ledger import SlotRecord, SlotState
from incumbent.durations import say_seconds
from incumbent.page.snapshot import TermView

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Characters that are invisible, change the direction of text, or cannot be encoded."""
_PLAIN: Final = re.compile(r"[\w ./:;,()@#*+-]*", re.ASCII)
_VOID: Final = frozenset({"input", "link", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def safe(text: object) -> str:
    """Escape `text` for an element or an attribute, unless it is Html."""
    if isinstance(text, Html):
        return text
    text = str(text)
    return text if _PLAIN.fullmatch(text) else escape(_UNSEEN.sub("\ufffd", text))


def tag(name: str, /, *inside: object, **attributes: object) -> Html:
    """An element. Attributes that are None or False are left out; `_` in names becomes a hyphen."""
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
    """The parts one after the other, escaped unless they are Html."""
    return Html("".join([safe(part) for part in parts]))


def breakable(text: str) -> Html:
    """A name or text that breaks between its parts, and inside a word only if that is very long."""
    html = Html("<wbr>".join([safe(part) for part in _BREAKS.split(text)]))
    return tag("span", html, class_="long") if _LONG_WORD.search(text) else html


_BREAKS: Final = re.compile(r"(?<=[/@_.])(?=[^\s/@_.])")
_LONG_WORD: Final = re.compile(r"[^\s/@_.-]{25}")


def short(token: int) -> Html:
    """A term by its last digits; all of them are in its title, and in what is copied."""
    text = str(token)
    if len(text) <= _DIGITS + 1:
        return Html(text)
    head, tail = text[:-_DIGITS], text[-_DIGITS:]
    return Html(f'<span class="term" title="{text}"><i>{head}</i>{tail}</span>')


_DIGITS: Final = 4


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
"""Seconds from 1970: instants that are farther away are outside of our calendar."""


# -- SVG: a bar that drains, a line of terms, dots; each has a label in words too ------------------


_WIDE: Final = 1000
_HUES: Final = 6
_STEPS: Final = 240


class Window(NamedTuple):
    """A span of time. It moves in steps, so that unchanged lines are not sent again."""

    start: float
    end: float

    @classmethod
    def ending(cls, now: float, length: float) -> Window:
        """The window of this length that has `now` in its last step."""
        step = length / _STEPS
        end = (now // step + 1) * step
        return cls(end - length, end)

    def x(self, instant: float) -> float:
        """The horizontal position of an instant."""
        share = (instant - self.start) / (self.end - self.start)
        return round(_WIDE * min(1.0, max(0.0, share)), 1)


def draining(left: float, ttl: float) -> Html:
    """A bar with the remaining time of a lease; it shrinks by itself until the next update."""
    share = round(100 * min(1.0, max(0.0, left / ttl if ttl else 0.0)), 1)
    return Html(
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" class="bar" role="img"'
        f' aria-label="{say_seconds(left)} of {say_seconds(ttl)} left">'
        '<rect width="100" height="8" class="track"/>'
        f'<rect width="{share}" height="8" class="left"><animate attributeName="width"'
        f' from="{share}" to="0" dur="{left + 0.01:.2f}s" fill="freeze"/></rect></svg>'
    )


_CROSS: Final = "M-5-5l10 10m0-10l-10 10"
_MARKS: Final = {
    "resigned": "M-6-5h12l-6 10z",
    "broken": _CROSS,
    "expired": _CROSS,
    "lost": _CROSS,
    "failed": _CROSS,
    "timed_out": _CROSS,
    "paused": "M-3-6v12m6-12v12",
}


def time_line(terms: tuple[TermView, ...], window: Window, paused: float | None = None) -> Html:
    """A line with a bar for each term, and marks for ends without a release and for a pause."""
    shown = [term for term in terms if term.ends >= window.start]
    marks = [(term.ends, term.how) for term in shown if term.how in _MARKS]
    marks += [] if paused is None or paused < window.start else [(paused, "paused")]
    by_holder: dict[tuple[str, bool], list[TermView]] = {}
    for term in shown:
        by_holder.setdefault((term.holder, term.how == "expired"), []).append(term)
    drawn = [_bars(holder, theirs, window) for (holder, _), theirs in by_holder.items()]
    drawn += [_mark(at, kind, window) for at, kind in marks]
    sentences = [_said(term) for term in shown[-5:]] or ["nobody held it in this time"]
    return _line(drawn, f"{len(shown)} in this time: {'; '.join(sentences)}")


def _said(term: TermView) -> str:
    if not term.how:
        return f"{term.holder} holds it"
    return f"{term.holder} for {say_seconds(max(0.0, term.ends - term.began))}, {term.how}"


def _bars(holder: str, terms: Sequence[TermView], window: Window) -> Html:
    """The bars of one holder, as one shape: the runs of a job may be thousands."""
    hue = crc32(holder.encode("utf-8", "replace")) % _HUES
    faint = " faint" if terms[0].how == "expired" else ""
    spans = [(window.x(term.began), window.x(term.ends)) for term in terms]
    sizes = [(left, max(2.0, round(right - left, 1))) for left, right in spans]
    shape = "".join([f"M{left} 4h{wide}v12h-{wide}z" for left, wide in sizes])
    which = f"term {terms[0].token} {terms[0].how}" if len(terms) == 1 else f"{len(terms)} times"
    title = safe(f"{holder}, {which}")
    return Html(f'<path d="{shape}" class="hue{hue}{faint}"><title>{title}</title></path>')


def _mark(at: float, kind: str, window: Window) -> Html:
    move = f"translate({window.x(at)} 10)"
    return tag("path", tag("title", kind), d=_MARKS[kind], class_="mark", transform=move)


def outages_line(outages: Sequence[tuple[float, float]], window: Window) -> Html:
    """A line of the spans in which the store gave no answer while somebody looked."""
    spans = [(window.x(start), window.x(end)) for start, end in outages if end >= window.start]
    drawn = [
        tag("rect", x=left, y=2, height=16, width=max(4.0, right - left), class_="down")
        for left, right in spans
    ]
    return _line(drawn, f"{len(spans)} outages of the store in this time")


def _line(drawn: Iterable[Html], label: str) -> Html:
    start = f'<svg viewBox="0 0 {_WIDE} 20" preserveAspectRatio="none" class="line" role="img"'
    return Html(f'{start} aria-label="{safe(label)}">{joined(drawn)}</svg>')


_DOTS: Final = 20
_SIGNS: Final = {
    SlotState.FAILED: "M-4-4l8 8m0-8l-8 8",
    SlotState.TIMED_OUT: "M-4-4l8 8m0-8l-8 8",
    SlotState.LOST: "M-4-4h8v8h-8z",
    SlotState.MISSED: "M0-5l5 5-5 5-5-5z",
    SlotState.SKIPPED: "M-5 0h10",
}
"""Shapes of states, which colour alone must not distinguish; others are circles."""


def dots(runs: Sequence[SlotRecord]) -> Html:
    """Dots for the last slots, the newest at the right."""
    last = runs[-_DOTS:]
    drawn = [_dot(run, 7 + 14 * place) for place, run in enumerate(last, _DOTS - len(last))]
    counts = Counter(run.state.replace("_", " ") for run in last)
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    label = f"last {len(last)} slots: {words}" if last else "no slot is on record"
    start = f'<svg viewBox="0 0 {14 * _DOTS} 14" class="dots" role="img" aria-label="{label}">'
    return Html(f"{start}{''.join(drawn)}</svg>")


def _dot(run: SlotRecord, x: int) -> str:
    sign = _SIGNS.get(run.state)
    name, shape = ("path", f'd="{sign}"') if sign else ("circle", 'r="4.5"')
    title = f"<title>{safe(f'{run.slot}: {result_of(run)}')}</title>"
    return f'<{name} {shape} transform="translate({x} 7)" class="{run.state}">{title}</{name}>'
