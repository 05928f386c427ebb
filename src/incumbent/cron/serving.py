"""`incumbent cron FILE`: one instance, from its start until it is drained.

Each command that was granted to it is run by a worker of its own, which the zygote forks.
"""

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
from incumbent.cron.events import Events, Said
from incumbent.cron.execute import CannotLaunch
from incumbent.cron.instance import MAX_RUNS, Instance
from incumbent.cron.ledger import Run
from incumbent.cron.slots import Slot
from incumbent.cron.spec import JobSpec
from incumbent.cron.worker import ENDED_WELL, GAVE_BACK, STARTED, UNTOLD, Place, Task
from incumbent.cron.zygote import Notify, StandBy, Stop, Zygote, ZygoteGone
from incumbent.errors import ConfigError
from incumbent.model import Refused
from incumbent.options import LockSettings, policy_from
from incumbent.protocol.held import Held
from incumbent.protocol.link import new_link
from incumbent.supervise.signals import Signals

__all__ = ["CommandLauncher", "Fleet", "Settings", "serve_jobs"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What all runs of an instance have in common."""

    url: str
    holder: str
    isolate: str = "auto"
    share_store: bool = False


class CommandLauncher:
    """A Launcher, and a Source for the loop: `told` hears how each run's process ended."""

    def __init__(self, claimer: Claimer, zygote: Zygote, settings: Settings, said: Said) -> None:
        self._claimer = claimer
        self._zygote = zygote
        self._settings = settings
        self._said = said
        self.fd = zygote.fd
        self.gone = False
        self._standing = StandBy(0, 0)
        self.running: dict[tuple[str, str], Slot] = {}
        self.starting: set[tuple[str, str]] = set()
        """Those of them whose command does not run yet."""
        self.given_back: list[tuple[str, Slot]] = []
        self.vanished: list[tuple[str, Slot]] = []
        self.over: list[str] = []
        """Slots that are seen to: of what was given back, or vanished, a trigger must stand on."""

    def claim(self, spec: JobSpec, slot: Slot) -> Held | Refused:
        """See Launcher."""
        return self._claimer.claim(spec, slot)

    def launch(self, spec: JobSpec, slot: Slot, grant: Held) -> None:
        """See Launcher."""
        if self.gone:
            self._claimer.give_back(grant)
            raise CannotLaunch("the process that starts commands is gone")
        task = self._task(spec, slot, grant)
        try:
            self._zygote.send(task)
        except ZygoteGone as error:
            # Nobody believes in it any more: it runs out, and its witnesses say so.
            self.gone = True
            raise CannotLaunch(str(error)) from error
        self.running[spec.name, slot.name] = slot
        self.starting.add((spec.name, slot.name))

    def _task(self, spec: JobSpec, slot: Slot, held: Held) -> Task:
        settings = self._settings
        return Task(
            job=spec.name,
            slot=slot.name,
            due=slot.due,
            attempt=slot.attempt,
            instance=settings.holder,
            command=spec.argv or (),
            grant=self._claimer.part_with(held),
            env=dict(spec.env),
            share_store=settings.share_store,
            stdin=spec.stdin,
            cwd=spec.cwd,
            retries=spec.retries,
            retry_backoff=spec.retry_backoff,
            success_codes=spec.success_codes,
            output_bytes=spec.output_bytes,
            on_failure=spec.on_failure,
            keep_runs=spec.keep_runs,
            keep_for=spec.keep_for,
        )

    def failed(self, spec: JobSpec, run: Run) -> None:
        """See Launcher."""
        if spec.on_failure is not None:
            self._tell(Notify(spec.name, run, spec.on_failure, dict(spec.env), spec.cwd))

    def stand_by(self, ready: int, kept: int) -> None:
        """See StandBy."""
        if (wish := StandBy(ready, kept)) != self._standing:
            self._standing = wish
            self._tell(wish)

    def stop_all(self) -> None:
        """TERM to every run."""
        self._tell(Stop())

    def _tell(self, message: Notify | StandBy | Stop) -> None:
        if not self.gone:
            try:
                self._zygote.send(message)
            except ZygoteGone:
                # The loop sees that, says it, and ends.
                self.gone = True

    def ready(self) -> None:
        """Runs that ended; see Source."""
        try:
            ended = self._zygote.ended()
        except ZygoteGone:
            self.gone = True
            return
        for job, name, code in ended:
            self.starting.discard((job, name))
            if code == STARTED:
                continue
            slot = self.running.pop((job, name), None)
            if slot is None:
                continue
            if code == ENDED_WELL:
                self.over.append(name)
            elif code == GAVE_BACK:
                self.given_back.append((job, slot))
            elif code == UNTOLD:
                self.vanished.append((job, slot))
            else:
                self._said("fault", job=job, slot=name, why=f"its worker ended with {code}")
                self.vanished.append((job, slot))


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
        return policy_from(self.lock).ttl

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
        """As the init of a container: orphans of killed workers come to us."""
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
