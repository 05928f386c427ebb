"""A thread that acts when its alarm says so, and that is started again whatever ends it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf

from incumbent._drive.alarm import Alarm, make_alarm
from incumbent.unpatched import original, start_thread

__all__ = ["AlarmThread", "call_guarded"]

_log = logging.getLogger("incumbent")

_PAUSE = 0.02
"""Seconds after which a thread that ended is started again; twice as many each time, until it has
acted once more."""
_PAUSE_MOST = 1.0


class AlarmThread:
    """Sleeps until the instant that `plan` says, then calls `act`, and so on.

    It is started when it is first woken. `mutex` is what `plan` may need: no other is taken here.
    `rests`: with nothing planned it sleeps for ever; else it ends, until it is woken again.
    """

    def __init__(
        self,
        name: str,
        mutex: threading.RLock,
        plan: Callable[[], float],
        act: Callable[[], None],
        *,
        rests: bool = True,
    ) -> None:
        self.name = name
        self.mutex = mutex
        self._plan = plan
        self._act = act
        self._rests = rests
        self._deaths = 0
        self.alarm: Alarm | None = None
        self.planned = inf
        """Until when it sleeps: what is due before has to wake it. `plan` writes it."""
        self.stopped = False

    def wake(self) -> None:
        """Have it plan anew; from any thread, and in signal handlers. Never raises."""
        if sys.is_finalizing():
            # There is no thread to wake any more: what is owed now is left to the ttl.
            return
        # Under the mutex: a thread that ends closes its alarm, whose numbers may then be others'.
        with self.mutex:
            if self.alarm is None and not self.stopped:
                self._start()
            if self.alarm is not None:
                self._ring(self.alarm)

    def stop(self) -> None:
        """End it; it is started no more."""
        self.stopped = True
        self.wake()

    # -- one life ----------------------------------------------------------------------------

    def _start(self) -> None:
        alarm = self.alarm = make_alarm()
        try:
            start_thread(lambda: self._live(alarm), self.name)
        except RuntimeError as error:
            # Whoever needs it next tries again.
            self._bury(alarm)
            if "shutdown" not in str(error):
                _log.error("%s: no thread can be started: %s", self.name, error)

    def _ring(self, alarm: Alarm) -> None:
        try:
            alarm.wake()
        except OSError:
            # Somebody closed its descriptors: the one who sleeps on them finds itself replaced.
            _log.exception("%s: its alarm was closed by others; it starts again", self.name)
            self._start()

    def _live(self, alarm: Alarm) -> None:
        try:
            while self.alarm is alarm and not self.stopped:
                # In one go, so that who comes later finds either the plan or no thread.
                with self.mutex:
                    until = self._plan()
                    if until == inf and not self._rests:
                        return self._bury(alarm)
                alarm.wait_until(until)
                self._act()
                self._deaths = 0
        except BaseException:  # noqa: BLE001 - whatever it was, leases depend on us
            _log.exception("%s ended by an error; it starts again", self.name)
            original("time", "sleep")(min(_PAUSE_MOST, _PAUSE * 2**self._deaths))
            self._deaths += 1
        finally:
            self._end(alarm)

    def _end(self, alarm: Alarm) -> None:
        with self.mutex:
            if self.alarm is alarm:
                self._bury(alarm)
                self.wake()

    def _bury(self, alarm: Alarm) -> None:
        self.alarm, self.planned = None, inf
        # Somebody may have closed its descriptors: that must not cost us the next thread.
        with suppress(OSError):
            alarm.close()


def call_guarded(callback: Callable[[], None]) -> None:
    """Call it; whatever it raises is logged, so that those after it are called too."""
    try:
        callback()
    except BaseException:  # noqa: BLE001 - SystemExit and the like too: this is no thread of theirs
        _log.exception("a callback failed")
