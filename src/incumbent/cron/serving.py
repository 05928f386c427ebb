"""`incumbent cron FILE`: one instance, from its start until it is drained."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from incumbent import clock
from incumbent.cron.claims import Claimer
from incumbent.cron.commands_launcher import CommandLauncher, Settings
from incumbent.cron.events import Events
from incumbent.cron.instance import MAX_RUNS, Instance
from incumbent.cron.spec import JobSpec
from incumbent.cron.stage import Place
from incumbent.cron.zygote import Zygote
from incumbent.durations import parse_duration
from incumbent.errors import ConfigError
from incumbent.options import LockSettings
from incumbent.policy import TTL_DEFAULT
from incumbent.protocol.link import new_link
from incumbent.supervise.signals import Signals

__all__ = ["Fleet", "serve_jobs"]

_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
_FAULT: Final = 125


@dataclass(frozen=True, slots=True)
class Fleet:
    """What instances of one fleet agree on, and this one's part in it.

    `drain`: seconds. `max_runs`: at a time, here.
    """

    namespace: str
    settings: Settings
    lock: LockSettings
    drain: float = 25.0
    max_runs: int = MAX_RUNS

    @property
    def ttl(self) -> float:
        """Seconds."""
        return parse_duration(self.lock.get("ttl", TTL_DEFAULT), "ttl")

    @property
    def place(self) -> Place:
        """What all runs here have in common."""
        settings = self.settings
        return Place(settings.url, self.namespace, settings.isolate, self.ttl)


def serve_jobs(
    specs: Iterable[JobSpec],
    fleet: Fleet,
    reread: Callable[[], tuple[JobSpec, ...]],
    events: Events,
) -> int:
    """Run until TERM; the exit code. Call it in the main thread, before there is any other.

    `reread` gives the jobs anew for HUP; it raises ConfigError where they cannot be used. Raises
    StoreError if the store refuses us for good before its first answer.
    """
    # A fork: before any thread, and before a connection that it would keep open.
    zygote = Zygote(fleet.place, events)
    try:
        with Signals() as signals:
            link = new_link(fleet.settings.url)
            try:
                claimer = Claimer(link, fleet.namespace, fleet.lock)
                launcher = CommandLauncher(claimer, zygote, fleet.settings, events)
                instance = Instance(
                    specs,
                    link,
                    fleet.namespace,
                    fleet.settings.holder,
                    launcher,
                    events,
                    lambda: len(launcher.running),
                    fleet.max_runs,
                    lambda: len(launcher.starting),
                )
                for spec in instance.specs:
                    claimer.wanted(spec)
                return _Serving(instance, launcher, signals, fleet, reread, events).run()
            finally:
                link.close()
    finally:
        zygote.close()


class _Serving:
    def __init__(
        self,
        instance: Instance,
        launcher: CommandLauncher,
        signals: Signals,
        fleet: Fleet,
        reread: Callable[[], tuple[JobSpec, ...]],
        events: Events,
    ) -> None:
        self._instance = instance
        self._launcher = launcher
        self._signals = signals
        self._fleet = fleet
        self._reread = reread
        self._events = events
        self._kill_at = inf
        self._code: int | None = None
        self.fd = signals.fd

    def run(self) -> int:
        try:
            while not self._is_over():
                self._instance.turn((self, self._launcher))
                self._pass_on()
                self._reap()
                if clock.now() >= self._kill_at:
                    self._kill_at = inf
                    self._launcher.stop_all()
        finally:
            self._instance.close()
        self._events("stopped")
        return self._code or 0

    @staticmethod
    def _reap() -> None:
        """As the init of a container: orphans of killed runners come to us."""
        if os.getpid() != 1:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _is_over(self) -> bool:
        if self._launcher.gone:
            # Commands can no longer be started here: another instance does it.
            self._events("fault", why="the process that starts commands is gone")
            self._code = _FAULT
            return True
        return self._code is not None and not self._launcher.running

    def _pass_on(self) -> None:
        launcher, instance = self._launcher, self._instance
        while launcher.over:
            instance.over(launcher.over.pop())
        while launcher.given_back:
            instance.came_back(*launcher.given_back.pop())
        while launcher.vanished:
            instance.vanished(*launcher.vanished.pop(), self._fleet.ttl)
        launcher.stand_by(*instance.stand_by())

    # -- signals, as a Source ------------------------------------------------------------------

    def ready(self) -> None:
        """See Source."""
        for signum in self._signals.take():
            if signum == signal.SIGHUP:
                self._reload()
            elif signum in _ENDING:
                self._drain(signum)

    def _reload(self) -> None:
        try:
            self._instance.reload(self._reread())
        except ConfigError as error:
            self._events("reload_failed", why=f"{error}; the jobs stay as they were")

    def _drain(self, signum: int) -> None:
        running = len(self._launcher.running)
        name = signal.Signals(signum).name
        if self._code is not None:
            self._events("stopping", why=f"{name} again", running=running)
            self._launcher.stop_all()
            return
        self._code = 0 if signum == signal.SIGTERM else 128 + signum
        self._events("stopping", why=name, running=running)
        self._instance.stop()
        self._kill_at = clock.now() + self._fleet.drain
