"""A runner: a process that does one task after the other, for as long as the zygote keeps it.

What needs no task is there before it comes: a guard, a connection, and after a moment of rest the
process that becomes the command, in its namespace. To the zygote it says bytes: that a task has
begun, how it ended, that it is prepared, that it leaves.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

from incumbent import clock
from incumbent.cron.control import CONTROL
from incumbent.cron.events import Events
from incumbent.cron.packets import unpacked
from incumbent.cron.running import STARTED, STOPPING, Task, run_task
from incumbent.cron.stage import Place, Stage, give_stdin
from incumbent.errors import ConfigError, StoreError
from incumbent.model import Key
from incumbent.protocol.link import Link, new_link
from incumbent.supervise.guarding import GuardFault, start_guard
from incumbent.supervise.kernel import Waiter
from incumbent.supervise.signals import Signals

__all__ = ["LEAVES", "PREPARED", "be_runner"]

PREPARED: Final = 255
LEAVES: Final = 254
"""After a task: it takes no more."""
_REST: Final = 10.0
"""Seconds after a task until it prepares: a burst comes first, and who is not needed leaves."""
_STALE: Final = 60.0
"""Seconds after which it prepares anew: the mounts that the command will see are of that moment."""
_TASKS_MOST: Final = 200
"""Tasks of one process, so that what grows in it does not grow for ever."""
_WARM_WITHIN: Final = 2.0


def be_runner(place: Place, channel: socket.socket, first: Task | None, events: Events) -> None:
    """Do `first`, then what comes from `channel`, until that ends or a signal says so."""
    give_stdin(None)
    with start_guard(place.isolate) as guard, Signals() as signals:
        link = new_link(place.url)
        say = _Saying(channel)
        stage = Stage(place, link, guard, signals, events, lambda: say(STARTED))
        try:
            if first is None:
                _connect(link, place.namespace)
            _Runner(stage, channel, say).run(first)
        finally:
            stage.clear()
            link.close()


def _connect(link: Link, namespace: str) -> None:
    # The first request of a process takes twenty times as long as the second.
    with suppress(StoreError):
        link.store.read(Key(namespace, CONTROL), clock.now() + _WARM_WITHIN)


class _Saying:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def __call__(self, *said: int) -> None:
        with suppress(OSError):
            self._channel.sendall(bytes(said))


class _Runner:
    def __init__(self, stage: Stage, channel: socket.socket, say: _Saying) -> None:
        self._say = say
        self._stage = stage
        self._channel = channel
        self._came = b""

    def run(self, first: Task | None) -> None:
        task = first or self._next_task(0.0)
        done = 0
        while task is not None:
            code = run_task(task, self._stage)
            self._stage.clear()
            done += 1
            if done >= _TASKS_MOST or not self._stage.fit:
                self._say(code, LEAVES)
                return
            self._say(code)
            task = self._next_task(_REST)

    def _next_task(self, rest: float) -> Task | None:
        """None if there will be none; `rest`: seconds after which to prepare."""
        waiter = Waiter()
        try:
            return self._wait(waiter, clock.now() + rest)
        except (GuardFault, ConfigError, OSError):
            return None
        finally:
            waiter.close()

    def _wait(self, waiter: Waiter, prepare_at: float) -> Task | None:
        stage = self._stage
        fds = [self._channel.fileno(), stage.signals.fd]
        fds += [stage.guard.fd] if stage.guard.fd >= 0 else []
        while True:
            ready = waiter.wait(fds, prepare_at)
            if STOPPING & set(stage.signals.take()) or not stage.guard.alive():
                return None
            if self._channel.fileno() in ready:
                return self._read()
            if clock.now() >= prepare_at:
                stage.clear()
                stage.prepare()
                self._say(PREPARED)
                prepare_at = clock.now() + _STALE

    def _read(self) -> Task | None:
        while True:
            data = self._channel.recv(1 << 20)
            if not data:
                return None
            found, self._came = unpacked(self._came + data)
            if found:
                task: Task = found[0]
                return task
