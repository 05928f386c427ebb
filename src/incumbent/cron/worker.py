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
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Final

from incumbent import clock
from incumbent.cron.events import Events
from incumbent.cron.fleet import CONTROL
from incumbent.cron.ledger import OUTPUT_MOST, Run, State
from incumbent.cron.runs import (
    ENDED_WELL,
    GAVE_BACK,
    Attempts,
    End,
    Task,
    adopt,
    code_of,
    stopped,
)
from incumbent.cron.spec import JobSpec
from incumbent.errors import ConfigError, NotAcquired, StoreError
from incumbent.locks import Lease, give_back
from incumbent.model import Key
from incumbent.options import LockSettings, policy_from
from incumbent.protocol.link import Link, new_link
from incumbent.supervise.child import CannotStart
from incumbent.supervise.guarding import Guard, GuardFault, start_guard
from incumbent.supervise.kernel import Waiter
from incumbent.supervise.launch import WITHHELD, Ready, without_service
from incumbent.supervise.plan import Course, Phase
from incumbent.supervise.run import Command, Ending, supervise
from incumbent.supervise.signals import Signals

_AT_ONCE = 65_536
_LONGEST_LINE = 2048


class Output:
    """Reads the command's standard output and error, served by its supervision.

    `most`: bytes that are kept. `on_line` hears every line; it must neither block nor raise.
    """

    def __init__(self, most: int = 0, on_line: Callable[[str], None] = lambda _: None) -> None:
        self.fd, self._writing = os.pipe()
        os.set_blocking(self.fd, False)
        self._most = most
        self._on_line = on_line
        self._tail = b""
        self._line = b""

    def serve(self, most: int, on_line: Callable[[str], None]) -> None:
        """From now on for this run: see the class."""
        self._most, self._on_line = most, on_line

    def become_stdout(self) -> None:
        """From now on what this process and its children write comes here."""
        for fd in (1, 2):
            os.dup2(self._writing, fd)
        os.close(self._writing)
        self._writing = -1

    def ready(self) -> None:
        """Read one portion: a command that floods must not keep others waiting."""
        self._take()

    def _take(self) -> bool:
        try:
            data = os.read(self.fd, _AT_ONCE)
        except BlockingIOError:
            return False
        if self._most:
            self._tail = (self._tail + data)[-self._most :]
        self._pass_on(data)
        return True

    def drain(self) -> None:
        """Take all that is there, within reason, once the command has ended."""
        for _ in range(16):
            if not self._take():
                break
        if self._line:
            self._pass_on(b"\n")

    def close(self) -> None:
        """Nobody writes any more; nothing is read."""
        for fd in (self.fd, self._writing):
            if fd >= 0:
                os.close(fd)

    def tail(self) -> str:
        """The end of what was written; what is no UTF-8 is replaced."""
        return self._tail.decode("utf-8", "replace").strip("\n\ufffd")

    def clear(self) -> None:
        """Another attempt begins."""
        self._tail = b""

    def _pass_on(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        while len(self._line) > _LONGEST_LINE:
            lines.append(self._line[:_LONGEST_LINE])
            self._line = self._line[_LONGEST_LINE:]
        for line in lines:
            self._on_line(line[:_LONGEST_LINE].decode("utf-8", "replace"))


PREPARED: Final = 255
LEAVES: Final = 254
"""After a task: it takes no more."""
_REST: Final = 10.0
"""Seconds after a task until it prepares: a burst comes first, and a worker too many leaves."""
_STALE: Final = 60.0
"""Seconds after which it prepares anew: the mounts that the command will see are of that moment."""
_TASKS_MOST: Final = 200
"""Tasks of one process, so that what grows in it does not grow for ever."""
_WARM_WITHIN: Final = 2.0
STARTED: Final = 253
"""Said of a run that is on record as running: what is heavy of its start is over."""
_STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_RUN_VARIABLE: Final = "INCUMBENT_RUN_"
_ON_FAILURE_WITHIN: Final = 60.0
MAX_RUNS: Final = 100
"""Runs of commands at a time of one instance: a thousand jobs at midnight must not fell a host."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What instances of one fleet agree on, and this one's part in it.

    `drain`: seconds. `max_runs`: at a time, here.
    """

    url: str
    namespace: str
    holder: str
    lock: LockSettings
    isolate: str = "auto"
    share_store: bool = False
    drain: float = 25.0
    max_runs: int = MAX_RUNS

    @property
    def ttl(self) -> float:
        """Seconds from proof to proof."""
        return policy_from(self.lock).ttl


# -- between the instance, its zygote and its workers: pickles with their length ------------------

_HEAD: Final = Struct("=I")


def packed(message: Any) -> bytes:
    """As bytes of a stream."""
    body = pickle.dumps(message)
    return _HEAD.pack(len(body)) + body


class Inbox:
    """What the other end of a socket sends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._came = b""

    def receive(self) -> list[Any]:
        """The messages that are whole now, maybe none. Raises EOFError if no more will come."""
        try:
            came = self._channel.recv(1 << 20)
        except OSError as error:
            raise EOFError from error
        if not came:
            raise EOFError
        data, found = self._came + came, []
        while len(data) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(data)
            if len(data) < _HEAD.size + length:
                break
            # From a process of ours, over a socket that no other process has.
            found.append(pickle.loads(data[_HEAD.size : _HEAD.size + length]))  # noqa: S301
            data = data[_HEAD.size + length :]
        self._came = data
        return found


# -- the process -----------------------------------------------------------------------------------


def be_worker(fleet: Fleet, channel: socket.socket, first: Task | None, events: Events) -> None:
    """Do `first`, then the tasks from `channel`, until it is closed or a signal comes."""
    _give_stdin(None)
    with (
        start_guard(fleet.isolate) as guard,
        Signals() as signals,
        closing(new_link(fleet.url)) as link,
    ):
        worker = _Worker(fleet, channel, link, guard, signals, events)
        try:
            worker.run(first)
        finally:
            worker.clear()


class _Worker:
    """Does one task after the other; a part of what a task needs is made before it comes.

    `stopped`: a signal to leave came. `worn`: a task left something that the next one must not
    find. Standard output and error are a task's own pipe from `output` until `clear`.
    """

    def __init__(
        self,
        fleet: Fleet,
        channel: socket.socket,
        link: Link,
        guard: Guard,
        signals: Signals,
        events: Events,
    ) -> None:
        self.fleet = fleet
        self.guard = guard
        self.signals = signals
        self.stopped = self.worn = False
        self._link = link
        self._standard = (os.dup(1), os.dup(2))
        self._events = events.knowing(self._standard[0])
        self._channel = channel
        self._inbox = Inbox(channel)
        self._output: Output | None = None
        self._ready: Ready | None = None

    def say(self, *codes: int) -> None:
        """To the zygote."""
        with suppress(OSError):
            self._channel.sendall(bytes(codes))

    def run(self, first: Task | None) -> None:
        """Until there is no next task, or none may follow."""
        if first is None:
            # The first request of a process takes twenty times as long as the second.
            with suppress(StoreError):
                key = Key(self.fleet.namespace, CONTROL)
                self._link.store.read(key, clock.now() + _WARM_WITHIN)
        task = first or self._next_task(0.0)
        done = 0
        while task is not None:
            code = self._do(task)
            self.clear()
            done += 1
            if done >= _TASKS_MOST or self.stopped or self.worn or not self.guard.alive():
                self.say(code, LEAVES)
                return
            self.say(code)
            task = self._next_task(_REST)

    def _do(self, task: Task) -> int:
        """Run it to its end; the code says whether the slot was given back."""
        events = self._events.knowing(job=task.spec.name)
        try:
            lease = adopt(self._link, task.wanted, task.claim, task.unsure)
        except (NotAcquired, StoreError) as error:
            events("given_back", slot=task.slot.name, why=str(error))
            return GAVE_BACK
        return _CommandRun(task, lease, self, events.knowing(term=lease.fencing_token)).run()

    def _next_task(self, rest: float) -> Task | None:
        """None if there will be none; `rest`: seconds after which to prepare."""
        fds = [self._channel.fileno(), self.signals.fd]
        fds += [self.guard.fd] if self.guard.fd >= 0 else []
        prepare_at = clock.now() + rest
        with closing(Waiter()) as waiter, suppress(GuardFault, ConfigError, OSError, EOFError):
            while True:
                ready = waiter.wait(fds, prepare_at)
                if _STOPPING & set(self.signals.take()) or not self.guard.alive():
                    return None
                if self._channel.fileno() in ready:
                    while not (found := self._inbox.receive()):
                        pass
                    task: Task = found[0]
                    return task
                if clock.now() >= prepare_at:
                    self.clear()
                    # All that needs neither task nor lease.
                    self.output()
                    self._ready = Ready(self.guard, self.fleet.ttl)
                    self.say(PREPARED)
                    prepare_at = clock.now() + _STALE
        return None

    # -- what a task needs -----------------------------------------------------------------------

    def output(self) -> Output:
        """Where the command writes."""
        if self._output is None:
            self._output = Output()
            self._output.become_stdout()
        return self._output

    def take_ready(self) -> Ready | None:
        """What was prepared, for one attempt, which closes it."""
        ready, self._ready = self._ready, None
        return ready

    def change(self, cwd: str | None, stdin: str | None) -> None:
        """Be where the task is to run, and have what it reads. Raises OSError."""
        if cwd is not None or stdin is not None:
            self.worn = True
            self._drop()
        if cwd is not None:
            os.chdir(cwd)
        if stdin is not None:
            _give_stdin(stdin)

    def clear(self) -> None:
        """The task is over: nothing of it is for the next one."""
        self._drop()
        if self._output is not None:
            for number, ours in enumerate(self._standard, 1):
                os.dup2(ours, number)
            self._output.close()
            self._output = None

    def _drop(self) -> None:
        if (ready := self.take_ready()) is not None:
            ready.close()


def _give_stdin(text: str | None) -> None:
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


# -- one run ---------------------------------------------------------------------------------------


class _CommandRun:
    def __init__(self, task: Task, lease: Lease, worker: _Worker, events: Events) -> None:
        self._spec = task.spec
        self._slot = task.slot.name
        self._lease = lease
        self._worker = worker
        self._events = events
        self._output = worker.output()
        self._output.serve(min(task.spec.keep_output, OUTPUT_MOST), self._pass_on)
        self._survived = False
        self._attempts = Attempts(lease, task.spec, task.slot, events)

    def run(self) -> int:
        if not self._worker.guard.alive():
            # One that stood by may have lost it since: another worker has its own.
            return self._attempts.leave("the guard is gone")
        if (code := self._attempts.begin()) is not None:
            if code == ENDED_WELL:
                self._events("skipped", slot=self._slot, why="it has had its turn already")
            return code
        ended = self._attempts.run_attempts(self._attempt, self._pause)
        if ended is not None and self._failed_for_good(ended):
            self._on_failure(ended)
        if not self._survived:
            give_back(self._lease)
        self._attempts.prune()
        return code_of(ended)

    def _failed_for_good(self, ended: Run) -> bool:
        if ended.state is State.LOST:
            # Stopped with its instance: whoever finds it on record retries it, as the job says.
            return ended.attempt > self._spec.retries
        return ended.state in (State.FAILED, State.TIMED_OUT)

    def _pass_on(self, line: str) -> None:
        self._events("output", slot=self._slot, line=line)

    def _report(self, course: Course) -> None:
        if course.phase is Phase.RUNNING:
            self._worker.say(STARTED)

    # -- one attempt -------------------------------------------------------------------------

    def _attempt(self) -> End:
        spec, output = self._spec, self._output
        output.clear()
        try:
            self._worker.change(spec.cwd, spec.stdin)
            ending = self._supervise(spec.argv or (), {})
        except OSError as error:
            where = f"cwd={spec.cwd}" if spec.cwd else "it could not begin"
            why = f"{where}: {(error.strerror or str(error)).lower()}"
            return End(State.FAILED, why=why, final=True)
        except CannotStart as error:
            return End(State.FAILED, error.code, str(error))
        except (GuardFault, ConfigError) as error:
            return End(State.FAILED, None, str(error), final=True)
        output.drain()
        return self._verdict(ending)

    def _supervise(self, words: Sequence[str], more: Mapping[str, str]) -> Ending:
        fleet = self._worker.fleet
        environ = {**os.environ, **self._spec.env, **more}
        share_store = fleet.url if fleet.share_store else None
        ending = supervise(
            self._lease,
            Command(words, share_store, environ, self._slot),
            self._worker.signals,
            self._worker.guard,
            stop_on=_STOPPING,
            listeners={self._output.fd: self._output.ready},
            keep=True,
            ready=self._worker.take_ready(),
            report=self._report,
        )
        self._worker.stopped |= bool(ending.leaving)
        return ending

    def _verdict(self, ending: Ending) -> End:
        output = self._output.tail()
        if ending.survivors:
            self._survived = self._worker.worn = True
            pids = ", ".join(map(str, ending.survivors))
            why = f"not even KILL ended {pids}; the lease is not given back"
            return End(State.FAILED, ending.status, why, output, final=True)
        if ending.cause:
            end = stopped(ending.cause, ending.seconds)
            return replace(end, code=ending.status, output=output)
        if ending.status in self._spec.success_codes:
            return End(State.OK, ending.status, output=output)
        return End(State.FAILED, ending.status, f"exit {ending.status}", output)

    def _pause(self, seconds: float) -> bool:
        """Between attempts; a signal to stop, or the end of the lease, ends it."""
        until, worker = clock.now() + seconds, self._worker
        with closing(Waiter()) as waiter:
            while not worker.stopped and self._lease.valid:
                if (now := clock.now()) >= until:
                    return True
                waiter.wait((worker.signals.fd,), min(until, now + 1.0))
                worker.stopped |= bool(_STOPPING & set(worker.signals.take()))
        return False

    def _on_failure(self, ended: Run) -> None:
        """At most once, for the end is on record in our name; under the lease while it lasts."""
        command = self._spec.on_failure
        if command is None:
            return
        if not self._lease.valid:
            run_on_failure(self._spec, ended, self._events)
            return
        try:
            status = self._supervise(command, _facts_of(self._spec, ended)).status
        except (CannotStart, GuardFault, ConfigError) as error:
            self._events("on_failure", slot=ended.slot, why=str(error))
        else:
            self._output.drain()
            self._events("on_failure", slot=ended.slot, code=status)


def _facts_of(spec: JobSpec, ended: Run) -> dict[str, str]:
    """What an on_failure command finds in its environment."""
    facts = {
        "JOB": spec.name,
        "SLOT": ended.slot,
        "STATE": str(ended.state),
        "CODE": "" if ended.code is None else str(ended.code),
        "WHY": ended.why,
    }
    return {_RUN_VARIABLE + key: value for key, value in facts.items()}


def run_on_failure(spec: JobSpec, ended: Run, events: Events) -> None:
    """Where there is no lease any more that it could run under: for a minute at most."""
    ours = without_service(os.environ)
    environment = {**ours, **spec.env, **_facts_of(spec, ended), "INCUMBENT_STORE": WITHHELD}
    try:
        done = subprocess.run(
            spec.on_failure or (),
            env=environment,
            cwd=spec.cwd,
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
