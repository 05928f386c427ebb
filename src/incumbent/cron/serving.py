"""`incumbent cron FILE`: one instance, from its start until it is drained.

Each granted command is run by a worker process, which the zygote forks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final

from incumbent import clock
from incumbent.cron.events import Emit, Events
from incumbent.cron.executor import CannotLaunch
from incumbent.cron.instance import Instance
from incumbent.cron.ledger import SlotRecord
from incumbent.cron.news import JobNews
from incumbent.cron.runs import (
    ALREADY_RECORDED,
    FAULT,
    GAVE_BACK,
    NOT_BEGUN,
    NOT_RECORDED,
    STARTED,
    STATE_OF,
    Claimer,
    Runs,
    without_schedule,
)
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.cron.worker import WorkerSettings
from incumbent.cron.zygote import RunOnFailure, StandBy, Stop, Zygote
from incumbent.errors import ConfigError
from incumbent.model import Refused
from incumbent.notify.receivers import Receiver
from incumbent.protocol.claim import Claim
from incumbent.runtime.link import new_link
from incumbent.serve.situation import Situation
from incumbent.supervise.signals import Signals, has_terminal

_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
"""SIGHUP only if the terminal was closed; else it means: read the jobs again."""
# Seconds in which a signal that comes again is the same request: `timeout` of coreutils sends TERM
# to its child and then to the whole group.
_SAME_REQUEST: Final = 0.5


class CommandLauncher:
    """A Launcher of commands; `runs` has the runs that it launched."""

    def __init__(self, claimer: Claimer, zygote: Zygote, emit: Emit, ttl: float = 0.0) -> None:
        self._claimer = claimer
        self._zygote = zygote
        self._emit = emit
        self._stand_by = StandBy(0, 0)
        self._claims: dict[tuple[str, str], Claim] = {}
        """The claims of runs of which nothing was heard yet."""
        self.runs: Runs[JobSlot] = Runs(ttl)

    @property
    def gone(self) -> bool:
        """Whether nothing can be launched any more."""
        return self._zygote.gone

    def claim(self, spec: JobSpec, slot: JobSlot) -> Claim | Refused:
        return self._claimer.claim(spec, slot)

    def launch(self, spec: JobSpec, slot: JobSlot, grant: Claim) -> None:
        if self.gone:
            self._claimer.release(grant)
            raise CannotLaunch("the process that starts commands is gone")
        self._zygote.send(self._claimer.task_of(spec, slot, grant))
        if self.gone:
            # No process counts as the lease's holder: the lease ends, and other instances see that.
            raise CannotLaunch("the process that starts commands died", given_back=False)
        # After the sending, and in time all the same: this thread reads the reports.
        self._claims[spec.name, slot.name] = grant
        self.runs.running[spec.name, slot.name] = slot
        self.runs.starting.add((spec.name, slot.name))

    def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
        if spec.on_failure is not None:
            self._zygote.send(RunOnFailure(without_schedule(spec), run))

    def stand_by(self, ready: int, kept: int) -> None:
        if (wish := StandBy(ready, kept)) != self._stand_by:
            self._stand_by = wish
            self._zygote.send(wish)

    def stop_all(self) -> None:
        """Send TERM to every run."""
        self._zygote.send(Stop())

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `read_reports` has something to read."""
        return self._zygote.fd

    def read_reports(self) -> None:
        """Note the runs that have begun or ended."""
        for job, name, code in self._zygote.reports():
            # Any report ends the start: a worker that died has none to come.
            self.runs.starting.discard((job, name))
            claim = self._claims.pop((job, name), None)
            if code == STARTED:
                self.runs.begin(job, name)
            if code == STARTED or (slot := self.runs.running.pop((job, name), None)) is None:
                continue
            if code == NOT_BEGUN and claim is not None:
                # Owed, and not sent here: that might block.
                port = self._claimer.link.port
                port.owe(claim.debt(port.now(), undo_slot=True))
                self._emit("given_back", job=job, slot=name, why="no process can be started for it")
            if code not in (GAVE_BACK, NOT_BEGUN, ALREADY_RECORDED, NOT_RECORDED, *STATE_OF):
                self._emit("fault", job=job, slot=name, why=f"its worker ended with {code}")
            self.runs.ended.append((job, slot, GAVE_BACK if code == NOT_BEGUN else code))


def serve_jobs(
    specs: Iterable[JobSpec],
    fleet: WorkerSettings,
    reread: Callable[[], tuple[JobSpec, ...]],
    events: Events,
    health: Callable[[Situation], AbstractContextManager[None]] = lambda _: nullcontext(),
    webhook: Receiver | None = None,
) -> int:
    """Run until TERM; return the exit code. Call it in the main thread, before there is any other.

    `reread` reads the jobs again after HUP; it raises ConfigError if they cannot be used. `health`
    publishes the situation. `webhook`: for jobs that name no receiver of their own. Raises
    StoreError if the store refuses us for good at the start.
    """
    situation = Situation(fleet.namespace, fleet.holder, ttl=fleet.ttl)
    # The zygote is a fork: make it before any thread, and before any connection, which it would
    # keep open.
    with (
        closing(Zygote(fleet, events)) as zygote,
        Signals() as signals,
        closing(new_link(fleet.url)) as link,
        health(situation),
        closing(JobNews(link, fleet.namespace, fleet.holder, events, webhook)) as news,
    ):
        claimer = Claimer(link, fleet.namespace, fleet.lock)
        launcher = CommandLauncher(claimer, zygote, events, fleet.ttl)
        instance = Instance(
            specs,
            link,
            fleet.namespace,
            fleet.holder,
            launcher,
            events,
            launcher.runs,
            fleet.max_runs,
            situation,
            news,
        )
        for spec in instance.specs:
            # Made in vain, so that what the store cannot do is said before the first slot.
            claimer.wanted(spec)
        return _Serving(instance, launcher, signals, fleet.drain, reread, events).run()


@dataclass(slots=True)
class _Serving:
    """The loop, and the effects of signals."""

    instance: Instance
    launcher: CommandLauncher
    signals: Signals
    drain: float
    reread: Callable[[], tuple[JobSpec, ...]]
    events: Events
    kill_at: float = inf
    asked_at: float = inf
    code: int | None = None
    on_terminal: bool = field(default_factory=has_terminal)

    def run(self) -> int:
        instance, launcher = self.instance, self.launcher
        listeners = {self.signals.fd: self._handle_signals, launcher.fd: launcher.read_reports}
        try:
            while not launcher.gone and (self.code is None or launcher.runs.running):
                instance.step(listeners)
                launcher.stand_by(*instance.stand_by())
                _reap_orphans()
                if clock.now() >= self.kill_at:
                    # Once: a worker passes each further TERM on to a command that ends already.
                    self.kill_at = inf
                    launcher.stop_all()
        finally:
            instance.close()
        if launcher.gone:
            # Commands can no longer be started here: other instances start them.
            self.events("fault", why="the process that starts commands is gone")
            self.code = FAULT
        self.events("stopped")
        return self.code or 0

    def _handle_signals(self) -> None:
        for signum in self.signals.take():
            if signum == signal.SIGHUP and (not self.on_terminal or has_terminal()):
                try:
                    self.instance.reload(self.reread())
                except ConfigError as error:
                    self.events("reload_failed", why=f"{error}; the jobs stay as they were")
            elif signum in _ENDING:
                self._begin_drain(signum)

    def _begin_drain(self, signum: int) -> None:
        running = len(self.launcher.runs.running)
        name = signal.Signals(signum).name
        if self.code is not None:
            if clock.now() - self.asked_at < _SAME_REQUEST:
                return
            self.events("stopping", why=f"{name} again", running=running)
            self.launcher.stop_all()
            return
        self.code = 0 if signum == signal.SIGTERM else 128 + signum
        self.asked_at = clock.now()
        self.events("stopping", why=name, running=running)
        self.instance.stop()
        self.kill_at = clock.now() + self.drain


def _reap_orphans() -> None:
    """As the init of a container, reap the orphans of killed workers: they come to us."""
    if os.getpid() == 1:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
