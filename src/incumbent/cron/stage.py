"""What a runner has for one task after the other: a part of it can be had before the task."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from incumbent.cron.events import Events
from incumbent.cron.output import Output
from incumbent.protocol.link import Link
from incumbent.supervise.child import Ready
from incumbent.supervise.guarding import Guard
from incumbent.supervise.signals import Signals

__all__ = ["Place", "Stage", "give_stdin"]


@dataclass(frozen=True, slots=True)
class Place:
    """What all runs of an instance have in common. `ttl`: seconds from proof to proof."""

    url: str
    namespace: str
    isolate: str
    ttl: float


class Stage:
    """What a runner has for one task after the other; a part of it can be had before the task.

    Standard output and error are a task's own pipe from `prepare` or `output` until `clear`.
    """

    def __init__(
        self,
        place: Place,
        link: Link,
        guard: Guard,
        signals: Signals,
        events: Events,
        started: Callable[[], None],
    ) -> None:
        self.link = link
        self.started = started
        self.guard = guard
        self.signals = signals
        self._standard = (os.dup(1), os.dup(2))
        self.events = events.knowing(self._standard[0])
        self.stopped = False
        """Whether a signal to leave came."""
        self.worn = False
        """Whether a task left something that the next one must not find."""
        self._ttl = place.ttl
        self.url = place.url
        self._output: Output | None = None
        self._ready: Ready | None = None

    @property
    def fit(self) -> bool:
        """Whether another task may follow."""
        return not self.stopped and not self.worn and self.guard.alive()

    def prepare(self) -> None:
        """Have all that needs neither task nor lease. Raises GuardFault or ConfigError."""
        self.output()
        self._ready = Ready(self.guard, self._ttl)

    def output(self) -> Output:
        """Where the command writes."""
        if self._output is None:
            self._output = Output()
            self._output.become_stdout()
        return self._output

    def ready(self, ttl: float) -> Ready:
        """For one attempt; the caller closes it. Raises as `prepare`."""
        ready, self._ready = self._ready, None
        if ready is None or ready.launch.broken or ttl != self._ttl:
            if ready is not None:
                ready.close()
            ready = Ready(self.guard, ttl)
        return ready

    def change(self, cwd: str | None, stdin: str | None) -> None:
        """Be where the task is to run, and have what it reads. Raises OSError."""
        if cwd is not None or stdin is not None:
            self.worn = True
            self._drop()
        if cwd is not None:
            os.chdir(cwd)
        if stdin is not None:
            give_stdin(stdin)

    def clear(self) -> None:
        """The task is over: nothing of it is for the next one."""
        self._drop()
        if self._output is not None:
            for number, ours in enumerate(self._standard, 1):
                os.dup2(ours, number)
            self._output.close()
            self._output = None

    def _drop(self) -> None:
        if self._ready is not None:
            self._ready.close()
            self._ready = None


def give_stdin(text: str | None) -> None:
    """What this process and its children read: nothing, or this."""
    if text is None:
        source = os.open(os.devnull, os.O_RDONLY)
    else:
        with tempfile.TemporaryFile() as file:
            file.write(text.encode())
            file.flush()
            source = os.dup(file.fileno())
        os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.close(source)
