"""The guard: a process without network, files or threads that kills the tree when time is up.

It is a fork of the supervisor, which leaves it a socket, a pidfd of itself, and nothing else.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from contextlib import suppress
from typing import NoReturn

from incumbent import clock
from incumbent.supervise.deadline import Watch, begun, covers, ended, judge, proved
from incumbent.supervise.inits import Init, Inits, keep_only
from incumbent.supervise.kernel import Waiter, readable
from incumbent.supervise.namespaces import name_process
from incumbent.supervise.processes import descendants, marked, send
from incumbent.supervise.wire import Kind, Message, receive

__all__ = ["MARK", "be_guard", "mark_of"]

MARK = "INCUMBENT_LEASE_MARK"
"""The variable by which a descendant is known that left its group and lost its parents."""

_ROUNDS = 100
_PAUSE = 0.002
_EMPTY = 3
"""Rounds in a row that find nobody: a daemon leaves its parents by two forks."""
_SEE_OFF = 0.2
"""Seconds for the last namespaces to end before the guard leaves."""


def mark_of(secret: str, term: int) -> str:
    """The value of MARK for one term of one guard."""
    return f"{secret}-{term}"


def be_guard(
    channel: int, supervisor: int, supervisor_pid: int, secret: str, *, namespaces: bool
) -> NoReturn:
    """Become the guard, in the child of a fork.

    `supervisor` is a pidfd; `namespaces`: whether to find out if there can be PID namespaces.
    """
    guard: _Guard | None = None
    code = 1
    try:
        _detach((channel, supervisor))
        guard = _Guard(channel, supervisor, supervisor_pid, secret)
        guard.run(namespaces=namespaces)
        code = 0
    finally:
        # Also for a defect of ours: who does not guard must not let anything run.
        if code and guard is not None:
            guard.kill()
        os._exit(code)


def _detach(fds: tuple[int, ...]) -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        if signum < signal.SIGRTMIN and signum not in _DEFECTS:
            signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Collecting would copy the pages that are shared with the supervisor.
    gc.disable()
    os.setsid()
    os.chdir("/")
    keep_only(fds)
    name_process("incumbent-guard")


_DEFECTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class _Guard:
    def __init__(self, channel: int, supervisor: int, supervisor_pid: int, secret: str) -> None:
        self._socket = socket.socket(fileno=channel)
        self._socket.setblocking(False)
        self._channel = channel
        self._supervisor = supervisor
        self._supervisor_pid = supervisor_pid
        self._secret = secret
        self._waiter = Waiter()
        self._watch = Watch()
        self._isolation = "pgroup"
        self._group = 0
        self._inits: Inits | None = None
        self._init: Init | None = None
        self._litter = ""

    def run(self, *, namespaces: bool) -> None:
        self._hello(namespaces=namespaces)
        while True:
            inits = self._inits.fds if self._inits else []
            self._waiter.wait((self._channel, self._supervisor, *inits), self._watch.kill_at)
            # All that was said comes first: after a freeze the latest proof may be in the queue.
            connected = self._drain()
            supervised = connected and not readable(self._supervisor)
            verdict = judge(self._watch, clock.now(), supervised=supervised)
            if verdict.kills:
                self.kill()
            if verdict.leaves:
                self._leave()
                return
            if self._inits is not None:
                self._inits.reap()

    def _leave(self) -> None:
        # Not every PID 1 reaps: what is ours to reap is not left to it.
        if self._inits is not None:
            self._inits.close(_SEE_OFF)
        if self._litter:
            with suppress(OSError):
                os.unlink(self._litter)  # noqa: PTH108
            with suppress(OSError):
                os.rmdir(os.path.dirname(self._litter))  # noqa: PTH106, PTH120

    def _hello(self, *, namespaces: bool) -> None:
        if not namespaces:
            self._say(Message(Kind.HELLO, text="not wanted"))
            return
        try:
            self._inits = Inits(self._supervisor)
            self._inits.prepare()
        except OSError as error:
            self._say(Message(Kind.HELLO, text=error.strerror or str(error) or "refused"))
        else:
            self._say(Message(Kind.HELLO))

    def _say(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        try:
            socket.send_fds(self._socket, [message.packed()], fds)
        except OSError:
            # Who does not listen does not start a command either; the pidfd says the rest.
            return

    # -- what it is told -----------------------------------------------------------------------

    def _drain(self) -> bool:
        """False when nobody will say anything any more."""
        while True:
            try:
                message = receive(self._channel)
            except BlockingIOError:
                return True
            if message is None:
                return False
            self._hear(message)

    def _hear(self, message: Message) -> None:
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
                self._say(Message(Kind.ARMED, message.term))
            case Kind.FOLDER:
                self._litter = message.text
            case _:
                pass

    def _begin(self, message: Message) -> None:
        if self._watch.armed:
            self.kill()
        self._isolation, self._group = message.isolation, 0
        if message.isolation != "pidns":
            self._watch = begun(message.term, message.seconds)
            self._say(Message(Kind.READY, message.term))
            return
        try:
            self._init = self._next_init()
            namespace = os.open(f"/proc/{self._init.pid}/ns/pid", os.O_RDONLY)
        except OSError:
            # No answer: the supervisor starts nothing and says why.
            return
        self._watch = begun(message.term, message.seconds)
        self._say(Message(Kind.READY, message.term, self._init.pid), (self._init.fd, namespace))
        os.close(namespace)

    def _next_init(self) -> Init:
        if self._inits is None:
            raise OSError("no PID namespace")
        return self._inits.next()

    def _end(self) -> None:
        if self._isolation == "pidns" and self._init is not None:
            # The supervisor saw it empty, or gave it up: then it must not live on here either.
            self._init.kill()
        self._init, self._group = None, 0
        self._watch = ended(self._watch, self._watch.term)

    # -- what it does ----------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill everything of the present term."""
        term = self._watch.term
        self._watch = begun(term, self._watch.ttl)
        if self._isolation == "pidns":
            if self._init is not None:
                self._init.kill()
        elif self._isolation == "container":
            # Everything but ourselves and PID 1, which is the supervisor: its end is everyone's.
            send((-1,), signal.SIGKILL)
        else:
            self._kill_group(mark_of(self._secret, term).encode())

    def _kill_group(self, mark: bytes) -> None:
        if self._group > 0:
            send((-self._group,), signal.SIGKILL)
        empty = 0
        for _ in range(_ROUNDS):
            # Who forks meanwhile is found in the next round; so is the child of one that forked
            # after the list was made, and was gone before it was looked at.
            left = self._descendants() | set(marked(MARK.encode() + b"=" + mark))
            empty = 0 if left else empty + 1
            if empty == _EMPTY:
                return
            send(left, signal.SIGKILL)
            time.sleep(_PAUSE)

    def _descendants(self) -> set[int]:
        if self._group == 0 or readable(self._supervisor):
            return set()
        return set(descendants(self._supervisor_pid, but=(os.getpid(),)))
