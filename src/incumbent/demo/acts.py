"""What one side shows: its scenes as they were measured, and what was done to whom when."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from incumbent.demo.timeline import Mark

__all__ = ["ALL", "FOR_LONG", "TTL", "Acts", "hold"]

TTL: Final = 1.2
"""Seconds; of both sides."""
FOR_LONG: Final = 6.0
"""Seconds that a scene waits for what must come."""
ALL: Final = "store"

Say: TypeAlias = "Callable[[str, str], None]"


@dataclass
class Acts:
    """`say(title, measured)` is called as each scene ends."""

    say: Say
    marks: dict[str, list[Mark]] = field(default_factory=dict)
    silent: list[tuple[float, float]] = field(default_factory=list)
    missed: str = ""
    """Why it was broken off."""

    def mark(self, who: str, sign: str) -> float:
        """Note that something is done to `who` now; returns the instant."""
        now = time.monotonic()
        self.marks.setdefault(who, []).append(Mark(now, sign))
        return now


def hold(seconds: float) -> None:
    """Let the leader lead, so that there is something to see."""
    time.sleep(seconds)
