"""A thread whose start ends in an exception, as of a signal handler that was called meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

WHEN = pytest.mark.parametrize("when", ["runs", "begins later", "never begins"])
"""What the thread does all the same."""


class Limit(Exception):
    """As a handler raises it."""


def interrupt_start(patch: pytest.MonkeyPatch, name: str, when: str) -> Callable[[], None]:
    """Have the start of the thread `name` raise Limit; what this returns waits for its end."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name != name:
            return start(thread)
        if when == "runs":
            start(thread)
        started.append(thread)
        raise Limit

    def let_it_end() -> None:
        (thread,) = started
        if when == "begins later":
            start(thread)
        if when != "never begins":
            thread.join(40)
            assert not thread.is_alive()

    patch.setattr(threading.Thread, "start", interrupted)
    return let_it_end
