"""Runs users' callbacks apart from the renewals, so that a slow or broken one delays nothing."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from contextlib import suppress

from incumbent import clock
from incumbent.unpatched import original, start_thread

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
        self._idle = [True]
        """Not empty while there is no thread. The caller that takes it out starts one: no lock, for
        a signal handler could find it taken."""

    @property
    def running(self) -> bool:
        """Whether there is a thread."""
        return not self._idle

    def call(self, callback: Callable[[], None]) -> None:
        """Have `callback` run soon; its exceptions are logged. Never raises."""
        self._calls.put(callback)
        with suppress(IndexError):
            self._idle.pop()
            self._start()

    def _start(self) -> None:
        try:
            start_thread(self._run, "incumbent-notifier")
        except RuntimeError as error:
            # Callbacks wait for the next one, which tries again.
            self._idle.append(True)
            _log.error("callbacks wait, for no thread can be started: %s", error)

    def _run(self) -> None:
        calls = self._calls
        while True:
            self._guarded(calls.get())

    @staticmethod
    def _guarded(callback: Callable[[], None]) -> None:
        started = clock.now()
        try:
            callback()
        except BaseException:  # noqa: BLE001 - the user's code, sys.exit() too: others follow
            _log.exception("a callback failed")
        took = clock.now() - started
        if took > _BUDGET:
            _log.warning("a callback took %.1f s and delayed those after it", took)


notifier = Notifier()
