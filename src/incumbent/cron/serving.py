"""`incumbent cron FILE`: one instance, from its start until it is drained.

Each command that was granted to it is run by a worker of its own, which the zygote forks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Final

from incumbent import clock
from incumbent.cron.attempts import ENDED_WELL, GAVE_BACK, UNTOLD, Outcomes
from incumbent.cron.claims import Claimer
from incumbent.cron.events import Emit, Events
from incumbent.cron.execute import CannotLaunch
from incumbent.cron.instance import Instance
from incumbent.cron.ledger import Run
from incumbent.cron.schedule import FixedTimes
from incumbent.cron.slots import Slot
from incumbent.cron.spec import JobSpec
from incumbent.cron.worker import STARTED, Fleet, Task
from incumbent.cron.zygote import Notify, StandBy, Stop, Zygote, ZygoteGone
from incumbent.errors import ConfigError
from incumbent.model import Refused
from incumbent.protocol.held import Held
from incumbent.protocol.link import new_link
from incumbent.supervise.signals import Signals

__all__ = ["CommandLauncher", "serve_jobs"]


_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
_FAULT: Final = 125
_NEVER: Final = FixedTimes(())


class CommandLauncher:
    """A Launcher, and a Source for the loop: `outcomes` has how each run ended."""

    def __init__(self, claimer: Claimer, zygote: Zygote, emit: Emit) -> None:
        self._claimer = claimer
        self._zygote = zygote
        self._emit = emit
        self.fd = zygote.fd
        self.gone = False
        self._stand_by = StandBy(0, 0)
        self.running: dict[tuple[str, str], Slot] = {}
        self.starting: set[tuple[str, str]] = set()
        """Those of them whose command does not run yet."""
        self.outcomes = Outcomes()

    def claim(self, spec: JobSpec, slot: Slot) -> Held | Refused:
        return self._claimer.claim(spec, slot)

    def launch(self, spec: JobSpec, slot: Slot, grant: Held) -> None:
        if self.gone:
            self._claimer.give_back(grant)
            raise CannotLaunch("the process that starts commands is gone")
        # A worker has no use for the schedule, and some are long.
        task = Task(replace(spec, schedule=_NEVER), slot, self._claimer.part_with(grant))
        try:
            self._zygote.send(task)
        except ZygoteGone as error:
            # Nobody believes in it any more: it runs out, and its witnesses say so.
            self.gone = True
            raise CannotLaunch(str(error)) from error
        self.running[spec.name, slot.name] = slot
        self.starting.add((spec.name, slot.name))

    def failed(self, spec: JobSpec, run: Run) -> None:
        if spec.on_failure is not None:
            self._send(Notify(replace(spec, schedule=_NEVER), run))

    def stand_by(self, ready: int, kept: int) -> None:
        if (wish := StandBy(ready, kept)) != self._stand_by:
            self._stand_by = wish
            self._send(wish)

    def stop_all(self) -> None:
        """TERM to every run."""
        self._send(Stop())

    def _send(self, message: Notify | StandBy | Stop) -> None:
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
            if code not in (ENDED_WELL, GAVE_BACK, UNTOLD):
                self._emit("fault", job=job, slot=name, why=f"its worker ended with {code}")
            self.outcomes.add(job, slot, code)


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
    zygote = Zygote(fleet, events)
    try:
        with Signals() as signals:
            link = new_link(fleet.url)
            try:
                claimer = Claimer(link, fleet.namespace, fleet.lock)
                launcher = CommandLauncher(claimer, zygote, events)
                instance = Instance(
                    specs,
                    link,
                    fleet.namespace,
                    fleet.holder,
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
                self._instance.see_to(self._launcher.outcomes, self._fleet.ttl)
                self._launcher.stand_by(*self._instance.stand_by())
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

    # -- signals, as a Source ------------------------------------------------------------------

    def ready(self) -> None:
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
