"""Runs users' callbacks apart from the renewals, so that a slow or broken one delays nothing."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

from incumbent import clock
from incumbent.unpatched import original, start_thread

__all__ = ["Notifier", "notifier"]

_log = logging.getLogger("incumbent")
_BUDGET = 1.0
"""Seconds after which a callback's delay of the others is reported."""


class Notifier:
    """One thread for the callbacks of a process; started by the first of them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what waits; after a fork there is no thread either."""
        self._calls: queue.SimpleQueue[Callable[[], None]] = original("queue", "SimpleQueue")()
        self._start = original("_thread", "allocate_lock")()
        self._running = False

    def call(self, callback: Callable[[], None]) -> None:
        """Have `callback` run soon; its exceptions are logged."""
        self._calls.put(callback)
        with self._start:
            if not self._running:
                self._running = True
                start_thread(self._run, "incumbent-notifier")

    def _run(self) -> None:
        calls = self._calls
        while True:
            self._guarded(calls.get())

    @staticmethod
    def _guarded(callback: Callable[[], None]) -> None:
        started = clock.now()
        try:
            callback()
        except Exception:  # noqa: BLE001 - it is the user's code: whatever it was, others follow
            _log.exception("a callback failed")
        took = clock.now() - started
        if took > _BUDGET:
            _log.warning("a callback took %.1f s and delayed those after it", took)


notifier = Notifier()
