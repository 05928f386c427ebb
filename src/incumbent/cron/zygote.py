"""The process that forks runners: it never has a thread or a connection, so that a fork is safe.

The instance tells it what was granted; it has a runner do each, and says how that ended. When the
instance is gone, the runners get TERM: what they run ends in order, under their own leases.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NoReturn, TypeAlias

from incumbent.cron.events import Events
from incumbent.cron.ledger import Run
from incumbent.cron.packets import packed, unpacked
from incumbent.cron.pool import Pool, Runner
from incumbent.cron.runner import be_runner
from incumbent.cron.running import Task, facts_for, run_on_failure
from incumbent.cron.stage import Place
from incumbent.supervise.kernel import libc, name_process

__all__ = ["Notify", "StandBy", "Stop", "Zygote", "ZygoteGone"]

_PR_SET_PDEATHSIG: Final = 1
_FAULT: Final = 125
_LEFT_ALONE: Final = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
# As Python has it: a reader of our events that goes away must not take a run along.
_IGNORED_BY_PYTHON: Final = {signal.SIGPIPE, signal.SIGXFSZ}
_TO_END: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class Stop:
    """Have all runners stop what they run."""


@dataclass(frozen=True, slots=True)
class StandBy:
    """Have so many runners ready for what is due soon; of those that are idle keep so many."""

    ready: int
    kept: int


class Notify:
    """Run a job's on_failure command for a run that somebody else was lost with."""

    def __init__(
        self, job: str, run: Run, command: tuple[str, ...], env: dict[str, str], cwd: str | None
    ) -> None:
        self.job, self.run, self.command, self.env, self.cwd = job, run, command, env, cwd


Message: TypeAlias = "Task | Notify | StandBy | Stop"


class ZygoteGone(Exception):
    """Nothing can be started any more."""


class Zygote:
    """The instance's side. To be made in the main thread before there is any other."""

    def __init__(self, place: Place, events: Events) -> None:
        ours, its = socket.socketpair()
        _warm_up(place.url)
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _be_zygote(its, place, events)
        its.close()
        self._socket = ours
        self.fd = ours.fileno()
        self._came = b""

    def send(self, message: Message) -> None:
        """Have it done. Raises ZygoteGone."""
        try:
            self._socket.sendall(packed(message))
        except OSError as error:
            raise ZygoteGone("the process that starts commands is gone") from error

    def ended(self) -> list[tuple[str, str, int]]:
        """Runs that are over, or STARTED, since the last call: job, slot, code.

        Raises ZygoteGone.
        """
        data = self._socket.recv(65_536)
        if not data:
            raise ZygoteGone("the process that starts commands is gone")
        found, self._came = unpacked(self._came + data)
        return found

    def close(self) -> None:
        """It stops its runners, waits for them, and goes."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


_LOADED_EARLY: Final = (
    *("incumbent.supervise.guard", "incumbent.supervise.kernel"),
    # What a first connection loads: the look-up of a name encodes it.
    *("encodings.idna", "ipaddress", "selectors", "random"),
)


def _warm_up(url: str) -> None:
    """Load what every runner needs, once: their forks share it."""
    from incumbent.stores.registry import open_engine

    for module in _LOADED_EARLY:
        import_module(module)
    libc()
    open_engine(url).store()


# -- the process -----------------------------------------------------------------------------------


def _be_zygote(channel: socket.socket, place: Place, events: Events) -> NoReturn:
    code = _FAULT
    try:
        # The terminal is nobody's among many: ^C reaches the instance, which drains.
        os.setsid()
        name_process("incumbent-zygote")
        for signum in signal.valid_signals() - _LEFT_ALONE:
            if signum < signal.SIGRTMIN:
                signal.signal(signum, signal.SIG_IGN)
        _Forking(channel, place, events).run()
        code = 0
    finally:
        os._exit(code)


class _Forking:
    def __init__(self, channel: socket.socket, place: Place, events: Events) -> None:
        self._channel = channel
        self._place = place
        self._events = events
        self._came = b""
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._pool = Pool(self._fork_runner, self._say, self._poll)
        self._connected = True
        self._wake, self._write = os.pipe()
        for fd in (self._wake, self._write):
            os.set_blocking(fd, False)
        self._poll.register(self._wake, select.POLLIN)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Until the instance is gone and every runner with it."""
        channel, patience = self._channel.fileno(), None
        while self._connected or len(self._pool):
            ready = {fd for fd, _ in self._poll.poll(patience)}
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._pool.reap()
            for fd in ready - {channel, self._wake}:
                self._pool.hear(fd)
            if channel in ready and not self._hear():
                self._poll.unregister(channel)
                self._connected = False
                self._pool.stop()
            patience = self._pool.prepare() if self._connected else None

    def _hear(self) -> bool:
        try:
            data = self._channel.recv(1 << 20)
        except OSError:
            return False
        if not data:
            return False
        messages, self._came = unpacked(self._came + data)
        for message in messages:
            self._do(message)
        return True

    def _do(self, message: Message) -> None:
        match message:
            case Task():
                self._pool.do(message)
            case StandBy():
                self._pool.stand_by(message.ready, message.kept)
            case Notify():
                self._fork_notify(message)
            case _:
                self._pool.stop()

    def _fork_runner(self, task: Task | None) -> Runner | None:
        ours, its = socket.socketpair()
        with its:
            pid = self._fork(
                task.job if task else "",
                lambda events: be_runner(self._place, its, task, events),
                closing=(ours,),
            )
        if pid == 0:
            ours.close()
            return None
        return Runner(pid, ours, (task.job, task.slot) if task else None, comes_up=task is None)

    def _fork_notify(self, message: Notify) -> None:
        def work(events: Events) -> None:
            events = events.knowing(job=message.job, slot=message.run.slot)
            more = facts_for(message.job, message.run)
            run_on_failure(message.command, {**message.env, **more}, events, message.cwd)

        if pid := self._fork(message.job, work):
            self._pool.others.add(pid)

    def _fork(
        self,
        job: str,
        work: Callable[[Events], None],
        closing: tuple[socket.socket, ...] = (),
    ) -> int:
        """The child's number, which ends with its `work`; 0 (and said so) if there can be none."""
        library, parent = libc(), os.getpid()
        # A child ignores what we ignore until it says otherwise: what it is sent by then must wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, _TO_END)
        try:
            pid = os.fork()
        except OSError as error:
            self._events("fork", job=job or None, why=str(error))
            pid = -1
        if pid == 0:
            if library is not None:
                library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            self._become(job, work, closing, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_END)
        return max(0, pid)

    def _become(
        self,
        job: str,
        work: Callable[[Events], None],
        closing: tuple[socket.socket, ...],
        parent: int,
    ) -> NoReturn:
        code = _FAULT
        try:
            signal.set_wakeup_fd(-1)
            kept = _LEFT_ALONE - {signal.SIGCHLD} | _IGNORED_BY_PYTHON
            for signum in signal.valid_signals() - kept:
                if signum < signal.SIGRTMIN:
                    signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_END)
            for fd in (self._wake, self._write):
                os.close(fd)
            # What others hear of must end with the zygote, not with us.
            for channel in (self._channel, *self._pool.channels, *closing):
                channel.close()
            os.setsid()
            if os.getppid() == parent:
                work(self._events)
                code = 0
        except Exception as error:  # noqa: BLE001 - the last place, whatever it was
            self._events("fault", job=job or None, why=f"{type(error).__name__}: {error}")
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _say(self, job: str, slot: str, code: int) -> None:
        if self._connected:
            with suppress(OSError):
                self._channel.sendall(packed((job, slot, code)))
