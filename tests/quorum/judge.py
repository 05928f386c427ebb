"""Who could prove what when, as contenders of other processes said it on the clock of the host.

A span is a lease that somebody could prove: from when it was first seen valid, to when it was given
back, or seen lost, or else to the last deadline that was seen. A span never says more than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Span:
    """One lease; `until` is the end of what was proved so far."""

    who: str
    token: int
    begin: float
    until: float
    ended: bool = False


@dataclass
class Sight:
    """All spans of one name, in the order in which they came."""

    spans: list[Span] = field(default_factory=list)

    def hear(self, who: str, said: dict[str, float]) -> None:
        """One line of a contender: the lease is proved until, or it ended."""
        token, until = int(said["token"]), float(said["until"])
        span = self._of(who, token)
        if span is None:
            self.spans.append(Span(who, token, float(said["at"]), until))
        elif not span.ended:
            span.ended = said["end"] == 1
            span.until = until if not span.ended else min(span.until, until)

    def _of(self, who: str, token: int) -> Span | None:
        ours = (span for span in self.spans if (span.who, span.token) == (who, token))
        return next(ours, None)

    @property
    def wrong(self) -> list[str]:
        """What no schedule may show."""
        ordered = sorted(self.spans, key=lambda span: span.begin)
        return [*_overlaps(ordered), *_regressions(ordered)]


def _overlaps(ordered: list[Span]) -> Iterable[str]:
    for at, later in enumerate(ordered):
        for earlier in ordered[:at]:
            both = min(earlier.until, later.until) - later.begin
            if both > 0:
                yield f"for {both * 1000:.1f} ms both {_said(earlier)} and {_said(later)}"


def _regressions(ordered: list[Span]) -> Iterable[str]:
    for earlier, later in pairwise(ordered):
        if later.token <= earlier.token:
            yield f"{_said(later)} after {_said(earlier)}: the token does not grow"


def _said(span: Span) -> str:
    return f"{span.who} (token {span.token}, from {span.begin:.3f} to {span.until:.3f})"
