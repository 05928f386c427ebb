"""Waiting for what another thread or process does, with a bound instead of a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from incumbent.errors import StoreError
from tests.support.pace import now, took

T = TypeVar("T")

# A bound for what must come at all: on a machine that does ten other things a process alone
# takes seconds to start.
_AT_ALL = 40.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02
_LONGEST_BY_COST = 0.1
_SHARE = 0.04
"""Of the time waited so far: who asks all the time keeps what it waits for from running."""


def eventually(condition: Callable[[], T], within: float = _AT_ALL) -> T:
    """Return when `condition` holds, with what it returned; fail after `within` seconds.

    What it returned is what was true: asked again, it may be true no longer. A store that gives no
    answer in time, as on a busy machine, is asked again.
    """
    began = asked = now()
    while not (found := _asked(condition, until=began + within)):
        assert took(began) < within, f"did not come true within {within} s"
        pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, (now() - began) * _SHARE))
        # What takes long to find out is asked half of the time at most.
        time.sleep(max(pause, min(_LONGEST_BY_COST, now() - asked)))
        asked = now()
    return found


def _asked(condition: Callable[[], T], until: float) -> T | None:
    try:
        return condition()
    except StoreError as error:
        if error.permanent or now() >= until:
            raise
        return None


def written(path: Path) -> str:
    """The text of a file, "" while there is none: a shell makes it before it writes into it."""
    return path.read_text() if path.exists() else ""
