"""Waiting for what another thread or process does, with a bound instead of a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.support.pace import now, took

# A bound for what must come at all: on a machine that does ten other things a process alone
# takes seconds to start.
_AT_ALL = 20.0


def eventually(condition: Callable[[], object], within: float = _AT_ALL) -> None:
    """Return when `condition` holds; fail after `within` seconds."""
    began = now()
    while not condition():
        assert took(began) < within, f"did not come true within {within} s"
        time.sleep(0.002)


def written(path: Path) -> str:
    """The text of a file, "" while there is none: a shell makes it before it writes into it."""
    return path.read_text() if path.exists() else ""
