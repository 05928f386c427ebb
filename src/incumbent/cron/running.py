"""One run of a command, in a process of its own that adopts the lease: `be_runner`.

zygote --- runner (the supervisor of `supervise`) --- CMD --- its children
             |
           guard
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.cron.attempts import Attempts, End, stopped
from incumbent.cron.book import Book
from incumbent.cron.claims import Grant, adopted
from incumbent.cron.events import Events
from incumbent.cron.ledger import OUTPUT_MOST, Run, State
from incumbent.cron.output import Output
from incumbent.errors import ConfigError, NotAcquired, StoreError
from incumbent.links import new_link
from incumbent.supervise.child import CannotStart
from incumbent.supervise.environment import WITHHELD, child_environment
from incumbent.supervise.guarding import Guard, GuardFault, start_guard
from incumbent.supervise.holding import give_back, ttl_of
from incumbent.supervise.kernel import Waiter
from incumbent.supervise.ready import Ready
from incumbent.supervise.run import Ending, supervise
from incumbent.supervise.signals import Signals
from incumbent.sync import Lease

__all__ = ["ENDED_WELL", "GAVE_BACK", "Task", "be_runner", "facts_for", "run_on_failure"]

ENDED_WELL: Final = 0
GAVE_BACK: Final = 75
"""Exit code of a runner that could not begin: the slot is anybody's again."""
_STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
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
    url: str
    env: Mapping[str, str]
    isolate: str = "auto"
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
    show_output: bool = True


def be_runner(task: Task, events: Events) -> int:
    """Run it to its end; the exit code says whether the slot was given back."""
    # Standard output is a pipe of ours from here on; events go where they went before.
    events = events.knowing(os.dup(1), job=task.job)
    _give_stdin(task.stdin)
    with start_guard(task.isolate) as guard, Signals() as signals:
        link = new_link(task.url)
        try:
            try:
                lease = adopted(link, task.grant)
            except (NotAcquired, StoreError) as error:
                events("given_back", slot=task.slot, why=str(error))
                return GAVE_BACK
            events = events.knowing(term=lease.fencing_token)
            return _Runner(task, lease, guard, signals, events).run()
        finally:
            link.close()


def _give_stdin(text: str | None) -> None:
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


class _Runner:
    def __init__(
        self, task: Task, lease: Lease, guard: Guard, signals: Signals, events: Events
    ) -> None:
        self._task = task
        self._lease = lease
        self._guard = guard
        self._signals = signals
        self._events = events
        self._output = _output_of(task, events)
        self._survived = False
        self._book = Book(lease._link.port, lease._held.wanted.key)
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

    def run(self) -> int:
        try:
            if not self._attempts.begin():
                self._events("skipped", slot=self._task.slot, why="it is on record already")
                give_back(self._lease)
                return ENDED_WELL
        except StoreError as error:
            give_back(self._lease, undo_slot=True)
            self._events("given_back", slot=self._task.slot, why=str(error))
            return GAVE_BACK
        late = round(clock.wall() - self._task.due, 3)
        self._events("started", slot=self._task.slot, attempt=self._task.attempt, late=late)
        ended = self._attempts.go_through(self._attempt, self._pause)
        if ended is not None and ended.state in (State.FAILED, State.TIMED_OUT):
            self._on_failure(ended)
        if not self._survived:
            give_back(self._lease)
        self._attempts.prune(random.SystemRandom().random())
        return ENDED_WELL

    # -- one attempt -------------------------------------------------------------------------

    def _attempt(self) -> End:
        task, output = self._task, self._output
        output.clear()
        try:
            if task.cwd is not None:
                os.chdir(task.cwd)
            ending = self._supervise(task.command, {})
        except OSError as error:
            why = f"cwd={task.cwd}: {(error.strerror or str(error)).lower()}"
            return End(State.FAILED, why=why, final=True)
        except CannotStart as error:
            return End(State.FAILED, error.code, str(error))
        except (GuardFault, ConfigError) as error:
            return End(State.FAILED, None, str(error), final=True)
        output.drain()
        return self._verdict(ending)

    def _supervise(self, command: Sequence[str], more: Mapping[str, str]) -> Ending:
        with Ready(self._guard, ttl_of(self._lease)) as ready:
            ready.socket.lease = self._lease
            environment = child_environment(
                {**os.environ, **self._task.env, **more},
                name=self._lease.name,
                holder=self._lease.holder,
                term=self._lease.fencing_token,
                slot=self._task.slot,
                share_store=self._task.url if self._task.share_store else None,
                socket=ready.socket.path,
            )
            return supervise(
                self._lease,
                command,
                environment,
                self._signals,
                self._guard,
                stop_on=_STOPPING,
                listeners=(ready.socket, self._output),
                keep=True,
                launch=ready.launch,
            )

    def _verdict(self, ending: Ending) -> End:
        output = self._output.tail()
        if ending.survivors:
            self._survived = True
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
                waiter.wait((self._signals.fd,), min(until, now + 1.0))
                if _STOPPING & set(self._signals.take()) or not self._lease.valid:
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
            run_on_failure(command, {**self._task.env, **more}, self._events)
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


def run_on_failure(command: Sequence[str], more: Mapping[str, str], events: Events) -> None:
    """Where there is no lease any more that it could run under: for a minute at most."""
    environment = {**os.environ, **more, "INCUMBENT_STORE": WITHHELD}
    try:
        status = subprocess.run(
            command, env=environment, timeout=_ON_FAILURE_WITHIN, check=False
        ).returncode
    except (OSError, subprocess.SubprocessError) as error:
        events("on_failure", why=str(error))
    else:
        events("on_failure", code=status)


def _output_of(task: Task, events: Events) -> Output:
    def told(line: str) -> None:
        if task.show_output:
            events("output", slot=task.slot, line=line)

    output = Output(min(task.output_bytes, OUTPUT_MOST), told)
    output.become_stdout()
    return output
