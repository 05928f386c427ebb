"""A thread that acts when its alarm says so, and that is started again whatever ends it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from math import inf

from incumbent.protocol.alarm import Alarm, make_alarm
from incumbent.unpatched import original, start_bare_thread

_log = logging.getLogger("incumbent")

_PAUSE = 0.02
"""Seconds after which a thread that ended is started again; twice as many each time, until it has
acted once more."""
_PAUSE_MOST = 1.0


class AlarmThread:
    """Sleeps until the instant that `plan` says, then calls `act`, and so on.

    It is started when it is first woken. `ends_when_idle`: with nothing planned it ends, until it
    is woken again. No lock is taken here: who wakes it may be a finalizer, which comes in the
    middle of anything.
    """

    def __init__(
        self,
        name: str,
        plan: Callable[[], float],
        act: Callable[[], None],
        *,
        ends_when_idle: bool = False,
    ) -> None:
        self.name = name
        self._plan = plan
        self._act = act
        self._ends_when_idle = ends_when_idle
        self._absent = {True}
        """Not empty while there is no thread. The caller that takes it out starts one."""
        self._rung = False
        """Whether it was woken since it began to plan."""
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
        self._rung = True
        # Kept here meanwhile: the alarm of a thread that ends is closed once nobody has it.
        alarm = self.alarm
        if alarm is not None:
            self._ring(alarm)
        elif not self.stopped:
            self._start()

    def stop(self) -> None:
        """End it; it is started no more."""
        self.stopped = True
        self.wake()

    # -- one life ----------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            self._absent.pop()
        except KeyError:
            return  # Another thread starts it, which will plan all that was noted before.
        started = False
        try:
            alarm = self.alarm = make_alarm()
            start_bare_thread(lambda: self._live(alarm))
            started = True
        except RuntimeError as error:
            if "shutdown" not in str(error):
                _log.error("%s: no thread can be started: %s", self.name, error)
        finally:
            if not started:
                # The next caller that needs it tries again.
                self._bury()

    def _ring(self, alarm: Alarm) -> None:
        try:
            alarm.wake()
        except OSError:
            # Somebody closed its descriptors: the one who sleeps on them finds itself replaced.
            _log.exception("%s: its alarm was closed by others; it starts again", self.name)
            if self.alarm is alarm:
                self._bury()
            self._start()

    def _live(self, alarm: Alarm) -> None:
        try:
            while self.alarm is alarm and not self.stopped:
                self._rung = False
                until = self._plan()
                if until == inf and self._ends_when_idle:
                    break
                alarm.wait_until(until)
                self._act()
                self._deaths = 0
        except BaseException:  # noqa: BLE001 - whatever it was, leases depend on us
            _log.exception("%s ended by an error; it starts again", self.name)
            original("time", "sleep")(min(_PAUSE_MOST, _PAUSE * 2**self._deaths))
            self._deaths += 1
            self._rung = True
        finally:
            self._end(alarm)

    def _end(self, alarm: Alarm) -> None:
        if self.alarm is alarm:
            self._bury()
            # Who came since it planned found it living: the next one sees to it.
            if self._rung:
                self.wake()

    def _bury(self) -> None:
        self.alarm, self.planned = None, inf
        self._absent.add(True)


def call_guarded(callback: Callable[[], None]) -> None:
    """Call it; whatever it raises is logged, so that those after it are called too."""
    try:
        callback()
    except BaseException:  # noqa: BLE001 - SystemExit and the like too: this is no thread of theirs
        _log.exception("a callback failed")
