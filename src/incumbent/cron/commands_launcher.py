"""Starts what was granted to this instance: each command in a runner of its own, by the zygote."""

from __future__ import annotations

from dataclasses import dataclass

from incumbent.cron.claims import Claimer
from incumbent.cron.events import Said
from incumbent.cron.execute import CannotLaunch
from incumbent.cron.judge import Slot
from incumbent.cron.ledger import Run
from incumbent.cron.running import ENDED_WELL, GAVE_BACK, STARTED, UNTOLD, Task
from incumbent.cron.spec import JobSpec
from incumbent.cron.zygote import Notify, StandBy, Stop, Zygote, ZygoteGone
from incumbent.model import Refused
from incumbent.protocol.held import Held

__all__ = ["CommandLauncher", "Settings"]


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
                self._said("fault", job=job, slot=name, why=f"its runner ended with {code}")
                self.vanished.append((job, slot))
