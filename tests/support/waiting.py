"""Waiting for what another thread or process does, with a bound instead of a guess."""

from __future__ import annotations

import time
from collections.abc import Callable

# A bound for what must come at all: on a machine that does ten other things a process alone
# takes seconds to start.
_AT_ALL = 20.0


def eventually(condition: Callable[[], object], within: float = _AT_ALL) -> None:
    """Return when `condition` holds; fail after `within` seconds."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, f"did not come true within {within} s"
        time.sleep(0.002)
