"""Waiting for what another thread or process does, with a bound instead of a guess."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within: float = 5.0) -> None:
    """Return when `condition` holds; fail after `within` seconds."""
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, f"did not come true within {within} s"
        time.sleep(0.002)
