"""The guard: a process without network, files or threads that kills the tree when time is up.

It is a fork of the supervisor. It keeps one socket and a pidfd of the supervisor, and nothing else.

It makes PID namespaces in advance. Each has an init that lives while both supervisor and guard do.
When init dies, the kernel kills every process of the namespace, and keeps init as a zombie until
the last of them is reaped. CMD is a child of the supervisor, not of init.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from incumbent import clock
from incumbent.supervise.kernel import (
    DescriptorWaiter,
    descendants,
    die_with_parent,
    marked,
    name_process,
    own_proc,
    pid_namespace,
    readable,
    send,
)
from incumbent.supervise.messages import MARK, Kind, Message, mark_of, receive
from incumbent.supervise.plan import WatchedTerm, begun, covers, ended, judge, proved

# A tree that forks as fast as it is killed must not hold the guard for ever.
_ROUNDS = 100
_PAUSE = 0.002
_EMPTY = 3
"""Rounds in a row that must find no process: a daemon leaves its parents by two forks."""
_SEE_OFF = 0.2
"""The most seconds that the guard, before it exits, waits for the last namespaces to end."""
_PROBE_TIMEOUT = 2.0
"""The most seconds for the init of a new namespace to start."""


def be_guard(
    channel: int, supervisor: int, supervisor_pid: int, secret: str, *, namespaces: bool
) -> NoReturn:
    """Become the guard, in the child of a fork.

    `supervisor` is a pidfd; `namespaces`: whether to try PID namespaces.
    """
    guard: _GuardProcess | None = None
    code = 1
    try:
        _detach((channel, supervisor))
        guard = _GuardProcess(channel, supervisor, supervisor_pid, secret)
        guard.run(namespaces=namespaces)
        code = 0
    finally:
        # Kill also after a defect of ours, because without a guard nothing may run.
        if code and guard is not None:
            guard.kill()
        os._exit(code)


def _detach(fds: tuple[int, ...]) -> None:
    # First: a signal that comes now must not write into the supervisor's pipe, which both have.
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        if signum < signal.SIGRTMIN and signum not in _DEFECTS:
            signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Garbage collection would copy the pages that are shared with the supervisor.
    gc.disable()
    # Out of the supervisor's group: a KILL or STOP to all of that must not reach it.
    os.setsid()
    os.chdir("/")
    _keep_only(fds)
    name_process("incumbent-guard")


_DEFECTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class _GuardProcess:
    def __init__(self, channel: int, supervisor: int, supervisor_pid: int, secret: str) -> None:
        self._socket = socket.socket(fileno=channel)
        # Both ways: reading ends when nothing is there, and a full socket must not keep it from its
        # deadline.
        self._socket.setblocking(False)
        self._channel = channel
        self._supervisor = supervisor
        self._supervisor_pid = supervisor_pid
        self._secret = secret
        self._waiter = DescriptorWaiter()
        self._watch = WatchedTerm()
        self._isolation = "pgroup"
        self._group = 0
        self._inits: _Inits | None = None
        self._init: _Init | None = None
        self._socket_path = ""

    def run(self, *, namespaces: bool) -> None:
        self._send(Message(Kind.HELLO, text=self._prepare(namespaces=namespaces)))
        while True:
            inits = self._inits.fds if self._inits else []
            # The pidfd beside the channel: the process that waits to be CMD holds the channel too,
            # so that its end of file alone would not show the supervisor's end.
            self._waiter.wait((self._channel, self._supervisor, *inits), self._watch.kill_at)
            # Messages are read first: after a freeze the latest proof may still be in the queue.
            connected = self._receive_all()
            supervised = connected and not readable(self._supervisor)
            verdict = judge(self._watch, clock.now(), supervised=supervised)
            # Before it leaves: after the end of the supervisor this process is all that can kill.
            if verdict.kills:
                self.kill()
            if verdict.leaves:
                self._leave()
                return
            if self._inits is not None:
                self._inits.reap()

    def _leave(self) -> None:
        # Not every PID 1 reaps orphans, so we reap our own children.
        if self._inits is not None:
            self._inits.close(_SEE_OFF)
        if self._socket_path:
            with suppress(OSError):
                os.unlink(self._socket_path)  # noqa: PTH108
            with suppress(OSError):
                os.rmdir(os.path.dirname(self._socket_path))  # noqa: PTH106, PTH120

    def _prepare(self, *, namespaces: bool) -> str:
        """Make the first PID namespace; returns the reason if that is impossible, or ""."""
        if not namespaces:
            return "not wanted"
        try:
            self._inits = _Inits(self._supervisor)
            self._inits.prepare()
        except OSError as error:
            return error.strerror or str(error) or "refused"
        return ""

    # -- messages --------------------------------------------------------------------------------

    def _send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        # A supervisor that does not get the answer starts no command; its pidfd shows its end.
        with suppress(OSError):
            socket.send_fds(self._socket, [message.packed()], fds)

    def _receive_all(self) -> bool:
        """Handle all messages; False if the supervisor has closed the socket."""
        while True:
            try:
                message = receive(self._channel)
            except BlockingIOError:
                return True
            if message is None:
                return False
            self._handle(message)

    def _handle(self, message: Message) -> None:
        match message.kind:
            case Kind.NEW:
                self._begin(message)
            case Kind.PROOF:
                now = clock.now()
                self._watch = proved(self._watch, message.term, message.seconds, now)
            case Kind.END if message.term == self._watch.term:
                self._end()
            case Kind.BORN if covers(self._watch, message.term, clock.now()):
                self._group = message.pid
                self._send(Message(Kind.ARMED, message.term))
            case Kind.FOLDER:
                self._socket_path = message.text
            case _:
                pass

    def _begin(self, message: Message) -> None:
        # The term before had no END: nothing of it may live beside the new one.
        if self._watch.armed:
            self.kill()
        # The group is known once CMD is BORN; the last term's number may be another's by now.
        self._isolation, self._group = message.isolation, 0
        if message.isolation != "pidns":
            self._watch = begun(message.term, message.seconds)
            self._send(Message(Kind.READY, message.term))
            return
        if self._inits is None:
            return
        try:
            self._init = self._inits.next()
            namespace = os.open(f"/proc/{self._init.pid}/ns/pid", os.O_RDONLY)
        except OSError:
            # Without an answer the supervisor starts nothing, and reports the fault.
            return
        self._watch = begun(message.term, message.seconds)
        self._send(Message(Kind.READY, message.term, self._init.pid), (self._init.fd, namespace))
        os.close(namespace)

    def _end(self) -> None:
        if self._isolation == "pidns" and self._init is not None:
            # The supervisor saw an empty namespace, or gave it up, so the guard ends it too.
            self._init.kill()
        self._init, self._group = None, 0
        self._watch = ended(self._watch, self._watch.term)

    # -- killing ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill every process of the present term."""
        term = self._watch.term
        # Disarmed, else each turn of the loop would kill again; only a later proof arms it anew.
        self._watch = begun(term, self._watch.ttl)
        if self._isolation == "pidns":
            if self._init is not None:
                self._init.kill()
        elif self._isolation == "container":
            # This spares ourselves and PID 1, the supervisor, whose end ends the container.
            send((-1,), signal.SIGKILL)
        else:
            self._kill_group(mark_of(self._secret, term).encode())

    def _kill_group(self, mark: bytes) -> None:
        # The group first: it is one system call, and no fork in it can escape.
        if self._group > 0:
            send((-self._group,), signal.SIGKILL)
        empty = 0
        for _ in range(_ROUNDS):
            # The next round finds a process that is forked meanwhile, and also the child of a
            # process that forked after the list was made and ended before it was examined.
            left: set[int] = set()
            if self._group and not readable(self._supervisor):
                left |= set(descendants(self._supervisor_pid, but=(os.getpid(),)))
            # By the environment that it was started with: a daemon has left its group and its
            # parents.
            left |= set(marked(MARK.encode() + b"=" + mark))
            empty = 0 if left else empty + 1
            if empty == _EMPTY:
                return
            send(left, signal.SIGKILL)
            time.sleep(_PAUSE)


# -- PID namespaces ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Init:
    """The init of a namespace; `fd` is its pidfd, -1 once it was reaped."""

    pid: int
    fd: int

    def kill(self) -> None:
        """Send it KILL, which ends everything in its namespace too."""
        # The number of a closed descriptor may belong to another file, or to another init.
        if self.fd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)


class _Inits:
    """All namespaces of this guard: the next, the present one, and the dying ones."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor
        self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        # No process writes to this pipe. Its end of file tells an init that the guard is gone.
        self._life, self._held = os.pipe()
        self._all: dict[int, _Init] = {}
        self._spare: _Init | None = None

    @property
    def fds(self) -> list[int]:
        """The pidfds of the inits, each readable once its init is dead."""
        return list(self._all)

    def prepare(self) -> None:
        """Make the next namespace in advance. Raises OSError with the reason if it cannot."""
        self._spare = self.next()

    def next(self) -> _Init:
        """The namespace that `prepare` made, or a new one if that has ended. Raises OSError."""
        # Each namespace serves one term: its end is the proof that nothing of the term is left.
        init, self._spare = self._spare, None
        return self._make() if init is None or init.fd < 0 or readable(init.fd) else init

    def reap(self) -> None:
        """Forget dead inits, and reap them."""
        for fd, init in list(self._all.items()):
            if readable(fd):
                with suppress(ChildProcessError):
                    os.waitpid(init.pid, os.WNOHANG)
                del self._all[fd]
                init.fd = -1
                os.close(fd)

    def close(self, within: float) -> None:
        """Kill all namespaces, and wait for the end of each for at most `within` seconds."""
        for init in self._all.values():
            init.kill()
        for fd in list(self._all):
            readable(fd, within)
        self.reap()

    def _make(self) -> _Init:
        report, write = os.pipe()
        die = die_with_parent()
        with pid_namespace(self._own_namespace):
            # The first fork after unshare(2) is the init of the new namespace, so nothing else may
            # fork here.
            pid = os.fork()
            if pid == 0:
                _be_init((self._life, self._supervisor), write, die)
        # Ours is closed before the pipe is read: then it ends if init dies without a word.
        os.close(write)
        init = _Init(pid, os.pidfd_open(pid))
        self._all[init.fd] = init
        try:
            answer = os.read(report, 512) if readable(report, _PROBE_TIMEOUT) else b"no answer"
        finally:
            os.close(report)
        if answer != b"ok":
            init.kill()
            raise OSError(answer.decode(errors="replace") or "its init ended")
        return init


def _be_init(lives: tuple[int, int], report: int, die: Callable[[], object] | None) -> NoReturn:
    try:
        if die is not None:
            # Before anything that can fail or wait: from here on it ends with the guard.
            die()
        # With SIGCHLD ignored the kernel reaps the orphans.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        name_process("incumbent-init")
        _keep_only((*lives, report))
        try:
            # CMD will do the same, so a namespace in which this fails is of no use.
            own_proc()()
            os.write(report, b"ok")
        except OSError as error:
            os.write(report, str(error.strerror or error).encode())
        os.close(report)
        # The end of either is enough: a frozen guard does not see that the supervisor is dead.
        poll = select.poll()
        for fd in lives:
            poll.register(fd, select.POLLIN)
        poll.poll()
    finally:
        os._exit(0)


def _keep_only(fds: tuple[int, ...]) -> None:
    """Close all descriptors but `fds`, so that pipes end; the standard ones become /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        if standard not in fds:
            os.dup2(null, standard)
    with suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if fd > 2 and fd not in fds:
                with suppress(OSError):
                    os.close(fd)
