"""The process that forks workers: it never has a thread or a connection, so that a fork is safe.

The instance sends it the granted tasks. It gives each to a worker, and reports how the task ended.
When the instance is gone, the workers get TERM: they stop their commands while their leases hold.

    instance --- tasks --> zygote --- fork, tasks --> workers --- commands
             <-- codes ---        <-- codes ---------

Workers that stand by for slots due soon are forked one after the other, so that a task that is due
now never waits for more than one fork.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import ceil
from typing import Final, NoReturn, TypeAlias

from incumbent import clock
from incumbent.cron.events import Events
from incumbent.cron.ledger import SlotRecord
from incumbent.cron.runs import FAULT, LEAVES, NOT_BEGUN, PREPARED, STARTED, Task
from incumbent.cron.spec import JobSpec
from incumbent.cron.worker import (
    HELD_BACK,
    Inbox,
    WorkerSettings,
    handle_lost_run,
    packed,
    run_worker,
)
from incumbent.supervise.kernel import die_with_parent, libc, name_process, pidfds

_LEFT_ALONE: Final = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
# Python ignores these: a run must not end because a reader of our events goes away.
_IGNORED_BY_PYTHON: Final = {signal.SIGPIPE, signal.SIGXFSZ}


class Stop:
    """A message: stop all runs."""


@dataclass(frozen=True, slots=True)
class StandBy:
    """A message: have `ready` workers for slots due soon, and keep `kept` of the idle ones."""

    ready: int
    kept: int


@dataclass(frozen=True, slots=True)
class RunOnFailure:
    """A message: run a job's on_failure command, for a run that was lost with another instance."""

    spec: JobSpec
    run: SlotRecord


Message: TypeAlias = "Task | RunOnFailure | StandBy | Stop"


class Zygote:
    """The instance's handle of the zygote; made in the main thread, before there is any other.

    `gone`: the zygote ended, so nothing can be started any more.
    """

    def __init__(self, fleet: WorkerSettings, events: Events) -> None:
        ours, its = socket.socketpair()
        # Before the freeze and the fork: what is loaded now is shared, and a fork's child need not
        # load it. No connection is made, which two processes would share.
        _warm_up(fleet.url)
        # The collector would write to the pages that forks share, and so copy them.
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _run_zygote(its, fleet, events)
        # Our end only: the zygote's must end when the zygote does.
        its.close()
        self._socket = ours
        self.fd = ours.fileno()
        self.gone = False
        self._inbox = Inbox(ours)

    def send(self, message: Message) -> None:
        """Send a message; sets `gone` if that fails."""
        try:
            self._socket.sendall(packed(message))
        except OSError:
            self.gone = True

    def reports(self) -> list[tuple[str, str, int]]:
        """The runs that ended, or STARTED, since the last call: job, slot, code."""
        try:
            return self._inbox.receive()
        except EOFError:
            self.gone = True
            return []

    def close(self) -> None:
        """Let the zygote stop its workers, wait for them, and end."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


_LOADED_EARLY: Final = (
    *("incumbent.supervise.guard", "incumbent.supervise.kernel"),
    # A first connection loads these: the look-up of a host name encodes it.
    *("encodings.idna", "ipaddress", "selectors", "random"),
)


def _warm_up(url: str) -> None:
    """Load the modules that every worker needs, once: forks share them."""
    from incumbent.stores.url import open_engine

    for module in _LOADED_EARLY:
        import_module(module)
    libc()
    open_engine(url).store()


# -- the process -----------------------------------------------------------------------------------


def _run_zygote(channel: socket.socket, fleet: WorkerSettings, events: Events) -> NoReturn:
    code = FAULT
    try:
        # Leave the terminal: ^C must reach only the instance, which drains.
        os.setsid()
        name_process("incumbent-zygote")
        for signum in signal.valid_signals() - _LEFT_ALONE:
            if signum < signal.SIGRTMIN:
                signal.signal(signum, signal.SIG_IGN)
        _ZygoteLoop(channel, fleet, events).run()
        code = 0
    finally:
        os._exit(code)


class _ZygoteLoop:
    def __init__(self, channel: socket.socket, fleet: WorkerSettings, events: Events) -> None:
        self._channel = channel
        self._inbox = Inbox(channel)
        self._fleet = fleet
        self._events = events
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._pool = WorkerPool(self._fork_worker, self._pass_on, self._poll)
        self._connected = True
        self._unsent = bytearray()
        # By pidfd, taken while it surely lives: when somebody asks, its pid may be another's.
        self._instance = pidfds([os.getppid()])
        self._wake, self._write = os.pipe()
        for fd in (self._wake, self._write):
            os.set_blocking(fd, False)
        self._poll.register(self._wake, select.POLLIN)
        # The signal only wakes the poll: `run` reaps, and never in the middle of a fork.
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the instance and every worker are gone."""
        channel, timeout = self._channel.fileno(), None
        while self._connected or len(self._pool):
            ready = dict(self._poll.poll(timeout))
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                # The pipe is emptied before: a child that ends from here on wakes the next poll.
                self._pool.reap()
            for fd in ready.keys() - {channel, self._wake}:
                self._pool.receive(fd)
            # Last: a message may fork a worker, whose channel may get the number of one that was
            # closed above, and that `ready` still has.
            if ready.get(channel, 0) & select.POLLOUT:
                self._send_reports()
            if ready.get(channel, 0) & ~select.POLLOUT:
                try:
                    for message in self._inbox.receive():
                        self._handle_message(message)
                except EOFError:
                    # Its end of file would wake every poll from here on.
                    self._poll.unregister(channel)
                    self._connected = False
                    self._pool.stop()
            timeout = self._pool.prepare() if self._connected else None

    def _handle_message(self, message: Message) -> None:
        match message:
            case Task():
                self._pool.run_task(message)
            case StandBy():
                self._pool.stand_by(message.ready, message.kept)
            case RunOnFailure(spec, run):
                work = partial(handle_lost_run, self._fleet, spec, run, self._events)
                if (pid := self._fork(spec.name, work)) is not None:
                    self._pool.not_workers.add(pid)
            case _:
                self._pool.stop()

    def _fork_worker(self, task: Task | None) -> Worker | None:
        ours, its = socket.socketpair()
        # Our copy of the worker's end is closed before this returns: else we would never see the
        # channel end with the worker.
        with its:
            work = partial(run_worker, self._fleet, its, task, self._events, self._instance)
            pid = self._fork(task.spec.name if task else "", work, ours)
        if pid is None:
            ours.close()
            return None
        return Worker(pid, ours, task.key if task else None, preparing=task is None)

    def _fork(self, job: str, work: Callable[[], None], *closing: socket.socket) -> int | None:
        """Fork a child that does `work` and ends; its pid, or None (and an event) if that fails."""
        die = die_with_parent(signal.SIGTERM)
        # A new child ignores the signals that we ignore: signals must wait until it has handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        try:
            pid = os.fork()
        except OSError as error:
            self._events("fork", job=job or None, why=str(error))
            pid = -1
        if pid == 0:
            if die is not None:
                die()
            self._run_child(job, work, closing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        return pid if pid > 0 else None

    def _run_child(
        self, job: str, work: Callable[[], None], closing: Iterable[socket.socket]
    ) -> NoReturn:
        code = FAULT
        try:
            # First: a signal in this child must not wake the zygote, whose pipe it still has.
            signal.set_wakeup_fd(-1)
            kept = _LEFT_ALONE - {signal.SIGCHLD} | _IGNORED_BY_PYTHON
            for signum in signal.valid_signals() - kept:
                if signum < signal.SIGRTMIN:
                    signal.signal(signum, signal.SIG_DFL)
            for fd in (self._wake, self._write):
                os.close(fd)
            # These channels must end with the zygote, not with this child.
            for channel in (self._channel, *self._pool.channels, *closing):
                channel.close()
            os.setsid()
            work()
            code = 0
        except Exception as error:  # noqa: BLE001 - the last place to report it, whatever it is
            self._events("fault", job=job or None, why=f"{type(error).__name__}: {error}")
        finally:
            # os._exit flushes nothing, and runs no clean-up that belongs to the zygote.
            sys.stderr.flush()
            os._exit(code)

    def _pass_on(self, job: str, slot_name: str, code: int) -> None:
        self._unsent += packed((job, slot_name, code))
        self._send_reports()

    def _send_reports(self) -> None:
        """Send what the instance takes now; it may be sending to us, and read nothing meanwhile."""
        if self._connected:
            try:
                del self._unsent[: self._channel.send(self._unsent, socket.MSG_DONTWAIT)]
            except BlockingIOError:
                pass
            except OSError:
                # It is gone, as the end of its channel is about to tell.
                self._unsent.clear()
            more = select.POLLOUT if self._unsent else 0
            self._poll.modify(self._channel, select.POLLIN | more)


_AGAIN_AFTER: Final = 10.0
"""Seconds from a worker's failure to prepare itself until the next one is forked."""
_LARGEST_SENT: Final = 65_536
"""Bytes that a socket takes without blocking; a larger task goes to a new worker by its fork."""
_SHORT: Final = 5.0
"""Seconds from the start of a task in which its worker is expected to be idle again."""


@dataclass(slots=True)
class Worker:
    """A worker. `task`: job and slot of what it runs, None if idle.

    `preparing`: it was forked to stand by, and is not prepared yet.
    """

    pid: int
    channel: socket.socket
    task: tuple[str, str] | None
    preparing: bool
    since: float = field(default_factory=clock.now)
    """The instant at which it began its task."""
    prepared: bool = False


Fork = Callable[[Task | None], Worker | None]
"""A function that forks a worker, with a task or idle; None (and an event) if fork failed."""
Report = Callable[[str, str, int], None]
"""A function that receives the start and the end of a task: job, slot, code."""


class WorkerPool:
    """The workers: see the module. `poll` watches their channels."""

    def __init__(self, fork: Fork, report: Report, poll: select.poll) -> None:
        self._fork = fork
        self._report = report
        self._poll = poll
        self._by_fd: dict[int, Worker] = {}
        self._by_pid: dict[int, Worker] = {}
        self.not_workers: set[int] = set()
        """Processes that are not workers; they are reaped and stopped like workers."""
        self._ready = self._kept = 0
        self._no_fork_before = 0.0

    def __len__(self) -> int:
        return len(self._by_pid) + len(self.not_workers)

    @property
    def channels(self) -> list[socket.socket]:
        """The channels of the workers, for a child, which must not keep them open."""
        return [worker.channel for worker in self._by_fd.values()]

    # -- requests of the instance ----------------------------------------------------------------

    def run_task(self, task: Task) -> None:
        """Have a task run at once: by a prepared worker, else by an idle one, else by a new one."""
        data = packed(task)
        fits = len(data) <= _LARGEST_SENT
        for worker in sorted(self._idle() if fits else (), key=lambda worker: not worker.prepared):
            if self._send_task(worker, data):
                # Only after all of it was taken: a worker that got no task may be replaced by
                # another.
                worker.task, worker.since = task.key, clock.now()
                worker.prepared = worker.preparing = False
                return
        if self._start(task) is None:
            self._report(*task.key, NOT_BEGUN)

    def stand_by(self, ready: int, kept: int) -> None:
        """Fork until `ready` workers are idle; dismiss the idle ones beyond `kept`."""
        self._ready, self._kept = ready, kept
        idle = sorted(self._idle(), key=lambda worker: worker.prepared)
        for worker in idle[: max(0, len(idle) - kept)]:
            self._dismiss(worker)

    def prepare(self) -> int | None:
        """Fork the next worker that is to stand by, unless one is about to be ready.

        Returns the milliseconds after which to call it again even without a message, or None.
        """
        idle, now = self._idle(), clock.now()
        busy = [worker for worker in self._by_fd.values() if worker.task is not None]
        # A burst's workers are idle again soon: forking others for the next slots would be in vain.
        back_soon = sum(now - worker.since < _SHORT for worker in busy)
        if len(idle) + back_soon >= self._ready or any(worker.preparing for worker in idle):
            return None
        if now >= self._no_fork_before:
            if self._start(None) is not None:
                return None
            self._no_fork_before = now + _AGAIN_AFTER
        return ceil((self._no_fork_before - now) * 1000)

    def stop(self) -> None:
        """Send TERM to every worker."""
        for pid in (*self._by_pid, *self.not_workers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _idle(self) -> list[Worker]:
        return [worker for worker in self._by_fd.values() if worker.task is None]

    def _start(self, task: Task | None) -> Worker | None:
        worker = self._fork(task)
        if worker is not None:
            self._by_pid[worker.pid] = worker
            self._by_fd[worker.channel.fileno()] = worker
            self._poll.register(worker.channel, select.POLLIN)
        return worker

    def _send_task(self, worker: Worker, data: bytes) -> bool:
        try:
            # Never blocks: one worker that does not read must not delay the others' tasks.
            if worker.channel.send(data, socket.MSG_DONTWAIT) == len(data):
                return True
        except OSError:
            pass
        # The worker does not read, or got half of a task.
        self._dismiss(worker)
        with suppress(ProcessLookupError):
            # It has no task, and half of one must never begin. Not reaped yet, it still has its
            # number.
            os.kill(worker.pid, signal.SIGKILL)
        return False

    def _dismiss(self, worker: Worker) -> None:
        """Close a worker's channel, which tells it to leave; it counts until it is reaped."""
        if self._by_fd.pop(worker.channel.fileno(), None) is not None:
            self._poll.unregister(worker.channel)
            worker.channel.close()

    # -- messages of the workers -------------------------------------------------------------------

    def receive(self, fd: int) -> None:
        """Read the codes from a readable channel."""
        worker = self._by_fd.get(fd)
        if worker is None:
            return
        try:
            # All at once: between two parts a worker that leaves could be handed another task.
            codes = worker.channel.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            codes = b""
        if not codes:
            self._delay_next_fork(worker)
            self._dismiss(worker)
        for code in codes:
            self._handle_code(worker, code)

    def _handle_code(self, worker: Worker, code: int) -> None:
        if code == PREPARED:
            worker.prepared, worker.preparing = True, False
        elif code == LEAVES:
            self._dismiss(worker)
        elif code == STARTED:
            if worker.task is not None:
                self._report(*worker.task, STARTED)
        elif worker.task is not None:
            task, worker.task = worker.task, None
            self._report(*task, code)
            if len(self._idle()) > self._kept:
                self._dismiss(worker)

    def reap(self) -> None:
        """Collect the processes that have ended."""
        while len(self):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.not_workers.discard(pid)
            if (worker := self._by_pid.get(pid)) is not None:
                self._after_exit(worker, os.waitstatus_to_exitcode(status))

    def _after_exit(self, worker: Worker, code: int) -> None:
        if (fd := worker.channel.fileno()) >= 0:
            # Read its last codes.
            self.receive(fd)
        if worker.task is not None:
            self._report(*worker.task, code or FAULT)
        self._delay_next_fork(worker)
        self._dismiss(worker)
        del self._by_pid[worker.pid]

    def _delay_next_fork(self, worker: Worker) -> None:
        """Delay the next fork if a worker ended before it was prepared: the next may fail too."""
        if worker.preparing and worker.channel.fileno() >= 0:
            self._no_fork_before = clock.now() + _AGAIN_AFTER
