"""What processes share that contend for a lease: orders on their input, looks at what is proved."""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any

from incumbent.clock import now

_LOOK_EVERY = 0.004
_SLACK = 0.002


class Orders:
    """What comes on the input, read by a thread of its own."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put("")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self._lines.get():
            yield json.loads(line)
            self._lines.get()

    @property
    def stopped(self) -> bool:
        """Whether the next line is there."""
        return not self._lines.empty()


def obey(kind: str, carry_out: Callable[[dict[str, Any], Orders], dict[str, int]]) -> None:
    """Carry out each order of the input, and say what came of it."""
    # A lease that was lost may be collected later; that is not what is judged here.
    warnings.simplefilter("ignore", ResourceWarning)
    logging.disable()
    orders = Orders()
    say({"ready": kind})
    for order in orders:
        say({"done": carry_out(order, orders)})


def look(
    lease: Any, until: float, orders: Orders, proved: Callable[[float], None]
) -> Generator[float, None, float]:
    """Look at a lease until an instant or the next order; returns when it was last seen held.

    Yields the seconds to rest until the next look. `proved` hears each deadline that is later than
    the one before.
    """
    seen, told = now(), 0.0
    while True:
        # The deadline is at least this: `remaining` is computed after `before`.
        before = now()
        left = lease.remaining
        if left <= 0:
            break
        seen = before
        if before + left > told + _SLACK:
            told = before + left
            proved(told)
        if before >= until or orders.stopped:
            break
        yield _LOOK_EVERY
    return seen


def say(line: dict[str, Any]) -> None:
    """One line of JSON on the output."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
