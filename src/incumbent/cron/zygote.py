"""The process that forks runners: it never has a thread or a connection, so that a fork is safe.

The instance tells it what was granted; it forks a runner for each, reaps them and says so. When the
instance is gone, the runners get TERM: what they run ends in order, under their own leases.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, NoReturn, TypeAlias

from incumbent.cron.events import Events
from incumbent.cron.ledger import Run
from incumbent.cron.running import Task, be_runner, facts_for, run_on_failure
from incumbent.supervise.kernel import libc
from incumbent.supervise.namespaces import name_process

__all__ = ["Notify", "Stop", "Zygote", "ZygoteGone"]

_HEAD: Final = struct.Struct("=I")
_PR_SET_PDEATHSIG: Final = 1
_FAULT: Final = 125
_LEFT_ALONE: Final = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
# As Python has it: a reader of our events that goes away must not take a run along.
_IGNORED_BY_PYTHON: Final = {signal.SIGPIPE, signal.SIGXFSZ}


class Stop:
    """Have all runners stop what they run."""


class Notify:
    """Run a job's on_failure command for a run that somebody else was lost with."""

    def __init__(self, job: str, run: Run, command: tuple[str, ...], env: dict[str, str]) -> None:
        self.job, self.run, self.command, self.env = job, run, command, env


Message: TypeAlias = "Task | Notify | Stop"


class ZygoteGone(Exception):
    """Nothing can be started any more."""


class Zygote:
    """The instance's side. To be made in the main thread before there is any other."""

    def __init__(self, url: str, events: Events) -> None:
        ours, its = socket.socketpair()
        _warm_up(url)
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _be_zygote(its, events)
        its.close()
        self._socket = ours
        self.fd = ours.fileno()
        self._came = b""

    def send(self, message: Message) -> None:
        """Have it done. Raises ZygoteGone."""
        try:
            self._socket.sendall(_packed(message))
        except OSError as error:
            raise ZygoteGone("the process that starts commands is gone") from error

    def ended(self) -> list[tuple[str, str, int]]:
        """Runs that are over since the last call: job, slot, exit code. Raises ZygoteGone."""
        data = self._socket.recv(65_536)
        if not data:
            raise ZygoteGone("the process that starts commands is gone")
        found, self._came = _unpacked(self._came + data)
        return found

    def close(self) -> None:
        """It stops its runners, waits for them, and goes."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


_LOADED_EARLY: Final = (
    *("incumbent.supervise.guard", "incumbent.supervise.inits", "incumbent.supervise.namespaces"),
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


def _packed(message: Any) -> bytes:
    body = pickle.dumps(message)
    return _HEAD.pack(len(body)) + body


def _unpacked(data: bytes) -> tuple[list[Any], bytes]:
    found = []
    while len(data) >= _HEAD.size:
        (length,) = _HEAD.unpack_from(data)
        if len(data) < _HEAD.size + length:
            break
        # From a process of ours, over a socket that nobody else has.
        found.append(pickle.loads(data[_HEAD.size : _HEAD.size + length]))  # noqa: S301
        data = data[_HEAD.size + length :]
    return found, data


# -- the process -----------------------------------------------------------------------------------


def _be_zygote(channel: socket.socket, events: Events) -> NoReturn:
    code = _FAULT
    try:
        # The terminal is nobody's among many: ^C reaches the instance, which drains.
        os.setsid()
        name_process("incumbent-zygote")
        for signum in signal.valid_signals() - _LEFT_ALONE:
            if signum < signal.SIGRTMIN:
                signal.signal(signum, signal.SIG_IGN)
        _Forking(channel, events).run()
        code = 0
    finally:
        os._exit(code)


class _Forking:
    def __init__(self, channel: socket.socket, events: Events) -> None:
        self._channel = channel
        self._events = events
        self._came = b""
        self._runners: dict[int, tuple[str, str]] = {}
        self._wake, self._write = os.pipe()
        for fd in (self._wake, self._write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Until the instance is gone and every runner with it."""
        connected = True
        while connected or self._runners:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            if connected:
                poll.register(self._channel, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            self._reap(connected=connected)
            if connected and self._channel.fileno() in ready and not self._hear():
                connected = False
                self._stop()

    def _hear(self) -> bool:
        try:
            data = self._channel.recv(1 << 20)
        except OSError:
            return False
        if not data:
            return False
        messages, self._came = _unpacked(self._came + data)
        for message in messages:
            if isinstance(message, Stop):
                self._stop()
            else:
                self._fork(message)
        return True

    def _stop(self) -> None:
        for pid in self._runners:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _fork(self, message: Task | Notify) -> None:
        slot = message.slot if isinstance(message, Task) else ""
        job = message.job
        library, parent = libc(), os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._events("fork", job=job, slot=slot, why=str(error))
            self._say(job, slot, _FAULT)
            return
        if pid == 0:
            if library is not None:
                library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            self._become(message, parent)
        self._runners[pid] = (job, slot)

    def _become(self, message: Task | Notify, parent: int) -> NoReturn:
        code = _FAULT
        try:
            signal.set_wakeup_fd(-1)
            kept = _LEFT_ALONE - {signal.SIGCHLD} | _IGNORED_BY_PYTHON
            for signum in signal.valid_signals() - kept:
                if signum < signal.SIGRTMIN:
                    signal.signal(signum, signal.SIG_DFL)
            for fd in (self._wake, self._write):
                os.close(fd)
            self._channel.close()
            os.setsid()
            if os.getppid() == parent:
                code = self._work(message)
        except Exception as error:  # noqa: BLE001 - the last place, whatever it was
            self._events("fault", job=message.job, why=f"{type(error).__name__}: {error}")
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _work(self, message: Task | Notify) -> int:
        if isinstance(message, Task):
            return be_runner(message, self._events)
        events = self._events.knowing(job=message.job, slot=message.run.slot)
        more = facts_for(message.job, message.run)
        run_on_failure(message.command, {**message.env, **more}, events)
        return 0

    def _reap(self, *, connected: bool) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        while self._runners:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._runners:
                job, slot = self._runners.pop(pid)
                if connected:
                    self._say(job, slot, os.waitstatus_to_exitcode(status))

    def _say(self, job: str, slot: str, code: int) -> None:
        with suppress(OSError):
            self._channel.sendall(_packed((job, slot, code)))
