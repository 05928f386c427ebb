"""One run of a command, by a process that adopts the lease: `run_task`.

zygote --- runner (the supervisor of `supervise`) --- CMD --- its children
             |
           guard
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.cron.attempts import Attempts, End, stopped
from incumbent.cron.book import Book
from incumbent.cron.claims import Grant, adopted
from incumbent.cron.events import Events
from incumbent.cron.ledger import OUTPUT_MOST, Run, State
from incumbent.cron.stage import Stage
from incumbent.errors import ConfigError, NotAcquired, StoreError
from incumbent.locks import Lease, give_back
from incumbent.supervise.answers import WITHHELD, child_environment
from incumbent.supervise.child import CannotStart
from incumbent.supervise.guarding import GuardFault
from incumbent.supervise.kernel import Waiter
from incumbent.supervise.plan import Course, Phase
from incumbent.supervise.run import Ending, supervise

__all__ = [
    "ENDED_WELL",
    "GAVE_BACK",
    "STARTED",
    "STOPPING",
    "UNTOLD",
    "Task",
    "facts_for",
    "run_on_failure",
    "run_task",
]

ENDED_WELL: Final = 0
STARTED: Final = 253
"""Said of a run that is on record as running: what is heavy of its start is over."""
GAVE_BACK: Final = 75
"""Exit code of a runner that could not begin: the slot is anybody's again."""
UNTOLD: Final = 76
"""Of one whose lease was lost before its end was on record: whoever looks puts it there."""
STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_RUN_VARIABLE: Final = "INCUMBENT_RUN_"
_ON_FAILURE_WITHIN: Final = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """All that a runner needs to know; it is sent to the zygote as it is."""

    job: str
    slot: str
    due: float
    attempt: int
    instance: str
    command: tuple[str, ...]
    grant: Grant
    env: Mapping[str, str]
    share_store: bool = False
    stdin: str | None = None
    cwd: str | None = None
    retries: int = 0
    retry_backoff: float = 10.0
    success_codes: frozenset[int] = frozenset({0})
    output_bytes: int = 4096
    on_failure: tuple[str, ...] | None = None
    keep_runs: int = 100
    keep_for: float = 30 * 86_400.0


def run_task(task: Task, stage: Stage) -> int:
    """Run it to its end; the code says whether the slot was given back."""
    events = stage.events.knowing(job=task.job)
    try:
        lease = adopted(stage.link, task.grant)
    except (NotAcquired, StoreError) as error:
        events("given_back", slot=task.slot, why=str(error))
        return GAVE_BACK
    events = events.knowing(term=lease.fencing_token)
    return _Running(task, lease, stage, events).run()


class _Running:
    def __init__(self, task: Task, lease: Lease, stage: Stage, events: Events) -> None:
        self._task = task
        self._lease = lease
        self._stage = stage
        self._events = events
        self._output = stage.output()
        self._output.serve(min(task.output_bytes, OUTPUT_MOST), self._told)
        self._survived = False
        self._book = Book(lease.belief.link.port, lease.belief.key)
        run = Run(
            task.slot,
            State.RUNNING,
            task.due,
            task.instance,
            lease.fencing_token,
            clock.wall(),
            attempt=task.attempt,
        )
        self._attempts = Attempts(
            lease,
            self._book,
            run,
            events,
            task.retries,
            task.retry_backoff,
            task.keep_runs,
            task.keep_for,
        )

    def _told_course(self, course: Course) -> None:
        if course.phase is Phase.RUNNING:
            self._stage.started()

    def _told(self, line: str) -> None:
        self._events("output", slot=self._task.slot, line=line)

    def run(self) -> int:
        try:
            if not self._stage.guard.alive():
                # One that stood by may have lost it since: another runner has its own.
                return self._give_back("the guard is gone")
            if not self._attempts.begin():
                self._events("skipped", slot=self._task.slot, why="it has had its turn already")
                # Nothing ran: at_least_for closes nothing.
                give_back(self._lease, undo_slot=True)
                return ENDED_WELL
        except StoreError as error:
            return self._give_back(str(error))
        late = round(clock.wall() - self._task.due, 3)
        self._events("started", slot=self._task.slot, attempt=self._task.attempt, late=late)
        ended = self._attempts.go_through(self._attempt, self._pause)
        if ended is not None and self._failed_for_good(ended):
            self._on_failure(ended)
        if not self._survived:
            give_back(self._lease)
        self._attempts.prune(random.SystemRandom().random())
        return ENDED_WELL if ended is not None else UNTOLD

    def _failed_for_good(self, ended: Run) -> bool:
        if ended.state is State.LOST:
            # Stopped with its instance: whoever finds it on record retries it, as the job says.
            return ended.attempt > self._task.retries
        return ended.state in (State.FAILED, State.TIMED_OUT)

    def _give_back(self, why: str) -> int:
        give_back(self._lease, undo_slot=True)
        self._events("given_back", slot=self._task.slot, why=why)
        return GAVE_BACK

    # -- one attempt -------------------------------------------------------------------------

    def _attempt(self) -> End:
        task, output = self._task, self._output
        output.clear()
        try:
            self._stage.change(task.cwd, task.stdin)
            ending = self._supervise(task.command, {})
        except OSError as error:
            where = f"cwd={task.cwd}" if task.cwd else "it could not begin"
            why = f"{where}: {(error.strerror or str(error)).lower()}"
            return End(State.FAILED, why=why, final=True)
        except CannotStart as error:
            return End(State.FAILED, error.code, str(error))
        except (GuardFault, ConfigError) as error:
            return End(State.FAILED, None, str(error), final=True)
        output.drain()
        return self._verdict(ending)

    def _supervise(self, command: Sequence[str], more: Mapping[str, str]) -> Ending:
        with self._stage.ready(self._lease.belief.policy.ttl) as ready:
            ready.socket.lease = self._lease
            environment = child_environment(
                {**os.environ, **self._task.env, **more},
                name=self._lease.name,
                holder=self._lease.holder,
                term=self._lease.fencing_token,
                slot=self._task.slot,
                share_store=self._stage.url if self._task.share_store else None,
                socket=ready.socket.path,
            )
            ending = supervise(
                self._lease,
                command,
                environment,
                self._stage.signals,
                self._stage.guard,
                stop_on=STOPPING,
                listeners=(ready.socket, self._output),
                keep=True,
                launch=ready.launch,
                report=self._told_course,
            )
            self._stage.stopped |= bool(ending.leaving)
            return ending

    def _verdict(self, ending: Ending) -> End:
        output = self._output.tail()
        if ending.survivors:
            self._survived = self._stage.worn = True
            pids = ", ".join(map(str, ending.survivors))
            why = f"not even KILL ended {pids}; the lease is not given back"
            return End(State.FAILED, ending.status, why, output, final=True)
        if ending.cause:
            end = stopped(ending.cause, ending.seconds)
            return End(end.state, ending.status, end.why, output, final=True)
        if ending.status in self._task.success_codes:
            return End(State.OK, ending.status, output=output)
        return End(State.FAILED, ending.status, f"exit {ending.status}", output)

    def _pause(self, seconds: float) -> bool:
        """Between attempts; a signal to stop, or the end of the lease, ends it."""
        until = clock.now() + seconds
        waiter = Waiter()
        try:
            while (now := clock.now()) < until:
                waiter.wait((self._stage.signals.fd,), min(until, now + 1.0))
                if STOPPING & set(self._stage.signals.take()):
                    self._stage.stopped = True
                    return False
                if not self._lease.valid:
                    return False
        finally:
            waiter.close()
        return True

    def _on_failure(self, ended: Run) -> None:
        """At most once, for the end is on record in our name; under the lease while it lasts."""
        command = self._task.on_failure
        if command is None:
            return
        more = facts_for(self._task.job, ended)
        if not self._lease.valid:
            run_on_failure(command, {**self._task.env, **more}, self._events, self._task.cwd)
            return
        try:
            status = self._supervise(command, more).status
        except (CannotStart, GuardFault, ConfigError) as error:
            self._events("on_failure", slot=ended.slot, why=str(error))
        else:
            self._output.drain()
            self._events("on_failure", slot=ended.slot, code=status)


def facts_for(job: str, ended: Run) -> dict[str, str]:
    """What an on_failure command finds in its environment."""
    said = {
        "JOB": job,
        "SLOT": ended.slot,
        "STATE": str(ended.state),
        "CODE": "" if ended.code is None else str(ended.code),
        "WHY": ended.why,
    }
    return {_RUN_VARIABLE + key: value for key, value in said.items()}


def run_on_failure(
    command: Sequence[str], more: Mapping[str, str], events: Events, cwd: str | None = None
) -> None:
    """Where there is no lease any more that it could run under: for a minute at most."""
    environment = {**os.environ, **more, "INCUMBENT_STORE": WITHHELD}
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            # Standard output is for events.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ON_FAILURE_WITHIN,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        events("on_failure", why=str(error))
    else:
        for line in done.stdout[-OUTPUT_MOST:].decode("utf-8", "replace").splitlines():
            events("output", line=line)
        events("on_failure", code=done.returncode)
