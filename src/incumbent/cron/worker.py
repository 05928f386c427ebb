"""A worker: a process that runs one command after the other, for as long as the zygote keeps it.

zygote --- worker (the supervisor of `supervise`) --- CMD --- its children
             |
           guard

What needs no task is there before it comes: a guard, a connection, and after a moment of rest the
process that becomes the command, in its namespace. To the zygote it says bytes: that a task has
begun, how it ended, that it is prepared, that it leaves.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from incumbent import clock
from incumbent.cron.attempts import Attempts, End, stopped
from incumbent.cron.claims import Grant, adopted
from incumbent.cron.control import CONTROL
from incumbent.cron.events import Events
from incumbent.cron.ledger import OUTPUT_MOST, Ledger, Run, State
from incumbent.cron.output import Output
from incumbent.errors import ConfigError, NotAcquired, StoreError
from incumbent.locks import Lease, give_back
from incumbent.model import Key
from incumbent.protocol.link import Link, new_link
from incumbent.supervise.answers import WITHHELD, child_environment
from incumbent.supervise.child import CannotStart, Ready
from incumbent.supervise.guarding import Guard, GuardFault, start_guard
from incumbent.supervise.kernel import Waiter
from incumbent.supervise.plan import Course, Phase
from incumbent.supervise.run import Ending, supervise
from incumbent.supervise.signals import Signals

__all__ = [
    "ENDED_WELL",
    "GAVE_BACK",
    "LEAVES",
    "PREPARED",
    "STARTED",
    "STOPPING",
    "UNTOLD",
    "Place",
    "Stage",
    "Task",
    "be_worker",
    "facts_for",
    "give_stdin",
    "packed",
    "run_on_failure",
    "run_task",
    "unpacked",
]

_HEAD: Final = Struct("=I")


def packed(message: Any) -> bytes:
    """As bytes of a stream."""
    body = pickle.dumps(message)
    return _HEAD.pack(len(body)) + body


def unpacked(data: bytes) -> tuple[list[Any], bytes]:
    """The whole messages at its beginning, and the rest."""
    found = []
    while len(data) >= _HEAD.size:
        (length,) = _HEAD.unpack_from(data)
        if len(data) < _HEAD.size + length:
            break
        # From a process of ours, over a socket that nobody else has.
        found.append(pickle.loads(data[_HEAD.size : _HEAD.size + length]))  # noqa: S301
        data = data[_HEAD.size + length :]
    return found, data


@dataclass(frozen=True, slots=True)
class Place:
    """What all runs of an instance have in common. `ttl`: seconds from proof to proof."""

    url: str
    namespace: str
    isolate: str
    ttl: float


class Stage:
    """What a worker has for one task after the other; a part of it can be had before the task.

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


ENDED_WELL: Final = 0
STARTED: Final = 253
"""Said of a run that is on record as running: what is heavy of its start is over."""
GAVE_BACK: Final = 75
"""Exit code of a worker that could not begin: the slot is anybody's again."""
UNTOLD: Final = 76
"""Of one whose lease was lost before its end was on record: whoever looks puts it there."""
STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_RUN_VARIABLE: Final = "INCUMBENT_RUN_"
_ON_FAILURE_WITHIN: Final = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """All that a worker needs to know; it is sent to the zygote as it is."""

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
    return _CommandRun(task, lease, stage, events).run()


class _CommandRun:
    def __init__(self, task: Task, lease: Lease, stage: Stage, events: Events) -> None:
        self._task = task
        self._lease = lease
        self._stage = stage
        self._events = events
        self._output = stage.output()
        self._output.serve(min(task.output_bytes, OUTPUT_MOST), self._told)
        self._survived = False
        self._ledger = Ledger(lease.belief.link.port, lease.belief.key)
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
            self._ledger,
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
                # One that stood by may have lost it since: another worker has its own.
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


def be_worker(place: Place, channel: socket.socket, first: Task | None, events: Events) -> None:
    """Do `first`, then what comes from `channel`, until that ends or a signal says so."""
    give_stdin(None)
    with start_guard(place.isolate) as guard, Signals() as signals:
        link = new_link(place.url)
        say = _Saying(channel)
        stage = Stage(place, link, guard, signals, events, lambda: say(STARTED))
        try:
            if first is None:
                _connect(link, place.namespace)
            _Worker(stage, channel, say).run(first)
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


class _Worker:
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
