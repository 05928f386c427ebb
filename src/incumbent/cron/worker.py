"""A worker: a process that runs one command after another, for as long as the zygote keeps it.

zygote --- worker (the supervisor of `supervise`) --- CMD --- its children
             |
           guard

Before a task comes, the worker prepares what it can: a guard, a connection, and after some idle
seconds the process that becomes the command, in its namespace. It sends single bytes to the zygote:
a task has begun, how a task ended, the worker is prepared, the worker leaves.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Final

from incumbent import clock
from incumbent.cron.events import Events
from incumbent.cron.fleet import CONTROL
from incumbent.cron.ledger import OUTPUT_MOST, SlotRecord, SlotState
from incumbent.cron.output import Output, showing
from incumbent.cron.runs import (
    ALREADY_RECORDED,
    GAVE_BACK,
    LEAVES,
    NOT_BEGUN,
    PREPARED,
    STARTED,
    AttemptEnd,
    Attempts,
    Task,
    adopt,
    code_of,
    stopped,
)
from incumbent.cron.spec import JobSpec
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError, NotAcquired, StoreError
from incumbent.locks.leases import Lease, release_unless_lost
from incumbent.locks.options import LockSettings, policy_from
from incumbent.model import Key
from incumbent.runtime.link import Link, new_link
from incumbent.supervise.child import CannotStart
from incumbent.supervise.guarding import Guard, GuardFault, start_guard
from incumbent.supervise.kernel import DescriptorWaiter, readable
from incumbent.supervise.launch import PreparedCommand, child_environment
from incumbent.supervise.plan import Phase, Progress
from incumbent.supervise.run import Command, Ending, supervise
from incumbent.supervise.signals import Signals

_REST: Final = 10.0
"""Seconds from a task until a worker prepares: a burst comes first, a surplus worker leaves."""
_STALE: Final = 60.0
"""Seconds after which a worker prepares anew: the command will see the mounts of that moment."""
_TASKS_MOST: Final = 200
"""The most tasks of one process, so that its memory does not grow for ever."""
# A store that is away must not hold up a worker: its first task asks again.
_WARM_WITHIN: Final = 2.0
_STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
HELD_BACK: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that a process of the zygote blocks until it has its handlers."""
_RUN_VARIABLE: Final = "INCUMBENT_RUN_"
_ON_FAILURE_WITHIN: Final = 60.0
MAX_RUNS: Final = 100
"""The most commands of one instance at a time: 1000 jobs at midnight must not fell a host."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings on which the instances of a fleet agree, and those of this instance.

    `drain`: seconds. `max_runs`: the most runs at a time in this instance.
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
        """The ttl of the leases in seconds."""
        return policy_from(self.lock).ttl

    @property
    def shared_store(self) -> str | None:
        """The URL of the store, if commands may use it."""
        return self.url if self.share_store else None


# -- messages of instance, zygote and workers: pickles with their length --------------------------

_HEAD: Final = Struct("=I")


def packed(message: Any) -> bytes:
    """The message as bytes of a stream."""
    body = pickle.dumps(message)
    return _HEAD.pack(len(body)) + body


class Inbox:
    """The messages that the other end of a socket sends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._came = b""

    def receive(self) -> list[Any]:
        """Read once; return the complete messages, maybe none. Raises EOFError at the end."""
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
            # The sender is a process of ours, over a socket that no other process has.
            found.append(pickle.loads(data[_HEAD.size : _HEAD.size + length]))  # noqa: S301
            data = data[_HEAD.size + length :]
        self._came = data
        return found


# -- the process -----------------------------------------------------------------------------------


def run_worker(
    fleet: WorkerSettings,
    channel: socket.socket,
    first: Task | None,
    events: Events,
    instance: Sequence[int] = (),
) -> None:
    """Run `first`, then the tasks from `channel`, until that is closed or a signal comes.

    `instance`: the pidfd of the instance, where the system has pidfds.
    """
    _give_stdin(None)
    with ExitStack() as all_of_it:
        try:
            guard = all_of_it.enter_context(start_guard(fleet.isolate))
            signals = all_of_it.enter_context(Signals())
            link = all_of_it.enter_context(closing(new_link(fleet.url)))
        except (OSError, GuardFault):
            # Both at once: between two messages the zygote could hand it another task.
            if first is not None:
                channel.sendall(bytes((NOT_BEGUN, LEAVES)))
            raise
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        worker = _TaskRunner(fleet, channel, link, guard, signals, events, instance)
        try:
            worker.run(first)
        finally:
            worker.clear()


class _TaskRunner:
    """Runs one task after another; prepares a part of what a task needs before it comes.

    `stopped`: it leaves, and begins no task. `worn`: a task left something that the next one must
    not find. From `output` until `clear`, standard output and error are a task's own pipe.
    """

    def __init__(
        self,
        fleet: WorkerSettings,
        channel: socket.socket,
        link: Link,
        guard: Guard,
        signals: Signals,
        events: Events,
        instance: Sequence[int],
    ) -> None:
        self.fleet = fleet
        self._instance = instance
        self.guard = guard
        self.signals = signals
        self.stopped = self.worn = False
        self._link = link
        self._standard = (os.dup(1), os.dup(2))
        self._events = events.with_facts(self._standard[0])
        self._channel = channel
        self._inbox = Inbox(channel)
        self._output: Output | None = None
        self._ready: PreparedCommand | None = None

    def instance_died(self) -> bool:
        """Whether the instance has ended: one that only stops waits for its workers."""
        return any(map(readable, self._instance))

    def send_codes(self, *codes: int) -> None:
        """Send codes to the zygote."""
        with suppress(OSError):
            self._channel.sendall(bytes(codes))

    def run(self, first: Task | None) -> None:
        """Run tasks until there is no next one, or none may follow."""
        if first is None:
            # Connect now: the first request of a process takes twenty times as long as the second.
            with suppress(StoreError):
                key = Key(self.fleet.namespace, CONTROL)
                self._link.store.read(key, clock.now() + _WARM_WITHIN)
        task = first or self._next_task(0.0)
        done = 0
        while task is not None:
            code = self._run_task(task)
            self.clear()
            done += 1
            if done >= _TASKS_MOST or self.stopped or self.worn or not self.guard.alive():
                # At once: between two messages the zygote could hand it another task.
                self.send_codes(code, LEAVES)
                return
            self.send_codes(code)
            task = self._next_task(_REST)

    def _run_task(self, task: Task) -> int:
        """Run the task to its end; the code says how it ended, or that it was given back."""
        events = self._events.with_facts(job=task.spec.name)
        try:
            lease = adopt(self._link, task.wanted, task.claim, task.takes_in_doubt)
        except (NotAcquired, StoreError) as error:
            events("given_back", slot=task.slot.name, why=str(error))
            return GAVE_BACK
        return _CommandRun(task, lease, self, events.with_facts(term=lease.fencing_token)).run()

    def _next_task(self, rest: float) -> Task | None:
        """Wait for a task; None if there will be none. `rest`: seconds after which to prepare.

        A task that comes while the worker leaves is to be given back: then it is `stopped`.
        """
        fds = [self._channel.fileno(), self.signals.fd]
        fds += [self.guard.fd] if self.guard.fd >= 0 else []
        prepare_at = clock.now() + rest
        with (
            closing(DescriptorWaiter()) as waiter,
            suppress(GuardFault, ConfigError, OSError, EOFError),
        ):
            while True:
                ready = waiter.wait(fds, prepare_at)
                # Before the channel is read: a task that came with the signal must not begin.
                if self.stops() or not self.guard.alive():
                    break
                if self._channel.fileno() in ready:
                    return self._received()
                if clock.now() >= prepare_at:
                    self.clear()
                    # Prepare all that needs neither task nor lease.
                    self.output()
                    self._ready = PreparedCommand(self.guard, self.fleet.ttl)
                    self.send_codes(PREPARED)
                    prepare_at = clock.now() + _STALE
        self.stopped = True
        with suppress(OSError, EOFError):
            # From here on the zygote cannot send another: what came before is given back.
            self._channel.shutdown(socket.SHUT_RD)
            return self._received()
        return None

    def _received(self) -> Task:
        # A large task comes in pieces.
        while not (found := self._inbox.receive()):
            pass
        task: Task = found[0]
        return task

    def stops(self) -> bool:
        """Whether a signal to leave came, until now."""
        self.stopped |= bool(_STOPPING & set(self.signals.take()))
        return self.stopped

    # -- what a task needs -----------------------------------------------------------------------

    def output(self) -> Output:
        """The pipe to which the command writes."""
        if self._output is None:
            self._output = Output(self._standard[0])
            self._output.become_stdout()
        return self._output

    def take_ready(self) -> PreparedCommand | None:
        """Hand the prepared process over to one attempt, which closes it; None if there is none."""
        ready, self._ready = self._ready, None
        return ready

    def set_up(self, cwd: str | None, stdin: str | None) -> None:
        """Change to the task's folder, and open its standard input. Raises OSError."""
        if cwd is not None or stdin is not None:
            # The folder and standard input of a process cannot be given back.
            self.worn = True
            self._drop_prepared()
        if cwd is not None:
            os.chdir(cwd)
        if stdin is not None:
            _give_stdin(stdin)

    def clear(self) -> None:
        """Remove what is left of a task, so that the next one does not find it."""
        self._drop_prepared()
        if self._output is not None:
            for number, ours in enumerate(self._standard, 1):
                # Put back before the pipe is closed: a line of ours in between would be lost.
                os.dup2(ours, number)
            self.worn |= not self._output.close()
            self._output = None

    def _drop_prepared(self) -> None:
        if (ready := self.take_ready()) is not None:
            ready.close()


def _give_stdin(text: str | None) -> None:
    """Let this process and its children read `text` as standard input, or nothing (None)."""
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
    def __init__(self, task: Task, lease: Lease, worker: _TaskRunner, events: Events) -> None:
        self._spec = task.spec
        self._slot = task.slot.name
        self._lease = lease
        self._worker = worker
        self._output = worker.output()
        self._output.pass_on(min(task.spec.keep_output, OUTPUT_MOST), events, self._slot)
        self._events = events.written_by(self._output.put)
        self._survived = False
        self._attempts = Attempts(lease, task.spec, task.slot, self._events)

    def run(self) -> int:
        if not self._worker.guard.alive():
            # A worker that stood by may have lost its guard: another worker has its own.
            return self._attempts.release_unused("the guard is gone")
        if self._worker.stops():
            return self._attempts.release_unused("its worker leaves")
        # On record before anything runs: two workers that both believe in the slot find one record.
        if (code := self._attempts.begin()) is not None:
            if code == ALREADY_RECORDED:
                self._events("skipped", slot=self._slot, why="it has had its turn already")
            return code
        with showing(self._output.tail, self._attempts.show_output):
            ended = self._attempts.run_attempts(self._attempt, self._pause)
        if ended is not None:
            # After the end is on record, which has the output: no reader finds it in neither place.
            self._attempts.hide_output()
            if ended.state is SlotState.LOST:
                # Stopped with its instance: one that finds the record retries it, if it may.
                over = ended.attempt > self._spec.retries
            else:
                over = ended.state in (SlotState.FAILED, SlotState.TIMED_OUT)
            if over:
                self._on_failure(ended)
        # What outlived KILL may still write: then only the ttl ends the lease.
        if not self._survived:
            release_unless_lost(self._lease)
        self._attempts.prune()
        return code_of(ended)

    def _report(self, progress: Progress) -> None:
        if progress.phase is Phase.RUNNING:
            self._worker.send_codes(STARTED)

    # -- one attempt -------------------------------------------------------------------------

    def _attempt(self) -> AttemptEnd:
        spec, output = self._spec, self._output
        output.clear()
        try:
            self._worker.set_up(spec.cwd, spec.stdin)
            ending = self._supervise()
        except OSError as error:
            where = f"cwd={spec.cwd}" if spec.cwd else "it could not begin"
            why = f"{where}: {(error.strerror or str(error)).lower()}"
            return AttemptEnd(SlotState.FAILED, why=why, final=True)
        except CannotStart as error:
            return AttemptEnd(SlotState.FAILED, error.code, str(error))
        except (GuardFault, ConfigError) as error:
            return AttemptEnd(SlotState.FAILED, None, str(error), final=True)
        # The command has ended, but its last lines may still be in the pipe: the record needs them.
        output.drain()
        return self._end_of(ending)

    def _supervise(self) -> Ending:
        fleet, spec = self._worker.fleet, self._spec
        environ = {**os.environ, **spec.env}
        ending = supervise(
            self._lease,
            Command(spec.argv or (), fleet.shared_store, environ, self._slot),
            self._worker.signals,
            self._worker.guard,
            stop_on=_STOPPING,
            keep=True,
            ready=self._worker.take_ready(),
            report=self._report,
        )
        self._worker.stopped |= bool(ending.leaving)
        return ending

    def _end_of(self, ending: Ending) -> AttemptEnd:
        output = self._output.tail()
        if ending.survivors:
            self._survived = self._worker.worn = True
            pids = ", ".join(map(str, ending.survivors))
            why = f"not even KILL ended {pids}; the lease is not given back"
            return AttemptEnd(SlotState.FAILED, ending.status, why, output, final=True)
        if ending.cause:
            died = self._worker.instance_died()
            notice = self._lease.belief.notice
            end = stopped(ending.cause, ending.seconds, notice, instance_died=died)
            return replace(end, code=ending.status, output=output)
        if ending.status in self._spec.success_codes:
            return AttemptEnd(SlotState.OK, ending.status, output=output)
        return AttemptEnd(SlotState.FAILED, ending.status, f"exit {ending.status}", output)

    def _pause(self, seconds: float) -> bool:
        """Wait between attempts; False if a signal to stop or the end of the lease came first."""
        until, worker = clock.now() + seconds, self._worker
        with closing(DescriptorWaiter()) as waiter:
            while not worker.stops() and self._lease.valid:
                if (now := clock.now()) >= until:
                    return True
                waiter.wait((worker.signals.fd,), min(until, now + 1.0))
        return False

    def _on_failure(self, ended: SlotRecord) -> None:
        """Run on_failure: we recorded the end. The lease is kept meanwhile, if it lasts."""
        if self._spec.on_failure is not None:
            # Processes that it leaves must not seem to be those of the next command.
            self._worker.worn = True
            store = self._worker.fleet.shared_store
            run_on_failure(self._spec, ended, store, self._output, self._events)


# -- on_failure ------------------------------------------------------------------------------------


def run_on_failure(
    spec: JobSpec, ended: SlotRecord, share_store: str | None, output: Output, events: Events
) -> None:
    """Run on_failure to its end, for a minute at most: no lease stops it, as none may be left.

    Our standard output is `output`.
    """
    environ = {**os.environ, **spec.env, **_facts_of(spec, ended)}
    try:
        child = subprocess.Popen(
            spec.on_failure or (),
            env=child_environment(environ, share_store, {}),
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        events("on_failure", slot=ended.slot, why=str(error))
        return
    why = None
    try:
        child.wait(_ON_FAILURE_WITHIN)
    except subprocess.TimeoutExpired:
        why = f"stopped after {say_seconds(_ON_FAILURE_WITHIN)}"
        # The whole session: its leader alone would leave its children with our pipe open. Not
        # waited for yet, so the number is its own.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    output.drain()
    events("on_failure", slot=ended.slot, code=child.returncode, why=why)


def handle_lost_run(fleet: WorkerSettings, spec: JobSpec, run: SlotRecord, events: Events) -> None:
    """Be the process that runs on_failure for a run that was lost with another instance."""
    # It ends in its time: TERM is for runs under a lease. A handler is not inherited by a command.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    standard = os.dup(1)
    with closing(Output(standard)) as output:
        output.become_stdout()
        events = events.with_facts(standard, job=spec.name)
        output.pass_on(0, events, run.slot)
        run_on_failure(spec, run, fleet.shared_store, output, events.written_by(output.put))


def _facts_of(spec: JobSpec, ended: SlotRecord) -> dict[str, str]:
    """The variables in the environment of an on_failure command."""
    facts = {
        "JOB": spec.name,
        "SLOT": ended.slot,
        "STATE": str(ended.state),
        "CODE": "" if ended.code is None else str(ended.code),
        "WHY": ended.why,
    }
    return {_RUN_VARIABLE + key: value for key, value in facts.items()}
