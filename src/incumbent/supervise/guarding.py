"""The supervisor's side of the guard: start it, send it each proof, notice its death.

Every wait for the guard is short: a frozen guard must not freeze the supervisor.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from incumbent import clock
from incumbent.errors import ConfigError
from incumbent.supervise.guard import be_guard
from incumbent.supervise.kernel import become_subreaper, children, readable
from incumbent.supervise.messages import ISOLATIONS, Kind, Message

_log = logging.getLogger("incumbent")

_ANSWER_WITHIN: Final = 1.0
# Longer, because the guard makes its first namespace before it answers.
_HELLO_WITHIN: Final = 5.0
# Longer than the guard waits for the end of its namespaces.
_LEAVE_WITHIN: Final = 0.5

_ESCAPE: Final = (
    "no PID namespace (%s): a daemon that CMD starts with an environment of its own can outlive a"
    " killed supervisor; --isolate pgroup says that this is known"
)
_NO_NAMESPACE: Final = (
    "the guard's namespace did not arrive: no file descriptor is free; raise their limit (ulimit"
    " -n)"
)


class GuardFault(Exception):
    """The guard does not answer or is dead, so that no command may run."""


class Guard:
    """The guard process `pid` at the other end of `channel`. Not on Linux: no process, no channel.

    `isolation`: pidns, container or pgroup. `secret`: part of the mark on its commands. `fd`:
    readable once the guard is dead, or -1.
    """

    def __init__(
        self, isolation: str, pid: int = 0, channel: socket.socket | None = None, secret: str = ""
    ) -> None:
        self.isolation = isolation
        self.pid = pid
        self.secret = secret
        self.fd = os.pidfd_open(pid) if pid else -1
        self.channel = channel
        self.own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if pid else -1
        # Taken once the guard exists, and before a command does: what is here now is none of a
        # command's.
        self.spared = set(children() or ()) | {pid}
        """Children of ours that belong to no command: the guard, and earlier children."""
        self._terms = 0

    def alive(self, within: float = 0.0) -> bool:
        """Whether the guard lives, so that it can kill; `within`: seconds to wait for its death."""
        return self.fd < 0 or not readable(self.fd, within)

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that a process needs to talk to the guard."""
        return () if self.channel is None else (self.channel.fileno(),)

    def send(self, message: Message) -> None:
        """Send a message, from any thread; never blocks. Raises OSError."""
        # A local variable, because another thread may close the guard meanwhile.
        channel = self.channel
        if channel is not None:
            os.write(channel.fileno(), message.packed())

    def begin(self, ttl: float) -> tuple[int, int, list[int]]:
        """Begin a term of at most `ttl` seconds from proof to proof. Raises GuardFault.

        A term may begin before the lease is held: nothing runs before the first proof. Returns the
        term's number, the pid of its namespace's init, and [pidfd of init, namespace]; or 0 and [].
        """
        self._terms += 1
        if self.channel is None:
            return self._terms, 0, []
        if self.isolation != "pidns" and os.getpid() != 1:
            # Before CMD exists: orphans go to the subreaper of the instant at which their parent
            # ends.
            become_subreaper()
        try:
            self.send(Message(Kind.NEW, self._terms, seconds=ttl, isolation=self.isolation))
            answer, fds = _receive(self.channel, Kind.READY, self._terms)
        except OSError as error:
            raise GuardFault(f"the guard cannot be told of a new term: {error}") from error
        if len(fds) != (2 if self.isolation == "pidns" else 0):
            # The kernel drops those for which no number is free, and CMD must not run outside.
            for fd in fds:
                os.close(fd)
            with suppress(OSError):
                self.send(Message(Kind.END, self._terms))
            raise GuardFault(_NO_NAMESPACE)
        return self._terms, answer.pid, fds

    def arm(self, term: int) -> None:
        """In the process that becomes CMD: return only once the guard has a deadline for it."""
        if self.channel is not None:
            self.send(Message(Kind.BORN, term, os.getpid()))
            _receive(self.channel, Kind.ARMED, term)

    def remove_later(self, path: str) -> None:
        """Have the guard remove the socket `path` and its folder if we are killed; "" for none."""
        with suppress(OSError):
            self.send(Message(Kind.FOLDER, text=path))

    def close(self) -> None:
        """End the guard, which first kills all that it still watches."""
        if self.channel is not None:
            self.channel.close()
            if not readable(self.fd, _LEAVE_WITHIN):
                # It is frozen. Its inits see the end of its pipe, and end with their namespaces.
                # The number is still its own, because it was not waited for.
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            os.close(self.fd)
            os.close(self.own_namespace)
            self.channel = None


def _receive(
    channel: socket.socket, kind: Kind, term: int = 0, within: float = _ANSWER_WITHIN
) -> tuple[Message, list[int]]:
    """The guard's answer of this kind, with its descriptors. Raises GuardFault or OSError."""
    until = clock.now() + within
    while readable(channel.fileno(), until - clock.now()):
        data, fds, _, _ = socket.recv_fds(channel, 512, 2)
        for fd in fds:
            # recv_fds of Python 3.11 drops MSG_CMSG_CLOEXEC, so CMD would inherit these.
            os.set_inheritable(fd, False)
        if not data:
            raise GuardFault("the guard is gone")
        message = Message.parsed(data)
        if message.kind is kind and message.term == term:
            return message, fds
        for fd in fds:
            # Too late an answer to an earlier question: its descriptors are of that term.
            os.close(fd)
    raise GuardFault("the guard does not answer")


# -- the start -----------------------------------------------------------------------------------


@contextmanager
def start_guard(isolate: str = "auto") -> Iterator[Guard]:
    """The guard of this process, as long as the context lasts.

    This forks: call it in the main thread, before another thread is started or a store is opened.
    Raises ConfigError if the system does not have `isolate` ("auto" or one of ISOLATIONS).
    """
    if isolate not in ("auto", *ISOLATIONS):
        raise ConfigError(f"isolate={isolate!r}: auto, {', '.join(ISOLATIONS)}", name="isolate")
    guard = _fork_guard(isolate) if sys.platform == "linux" else _without(isolate)
    try:
        yield guard
    finally:
        guard.close()


def _without(isolate: str) -> Guard:
    if isolate not in ("auto", "pgroup"):
        raise ConfigError(f"isolate={isolate}: only on Linux", name="isolate")
    if isolate == "auto":
        _log.warning("no guard on this system: a command outlives a killed or frozen supervisor")
    return Guard("pgroup")


def _fork_guard(isolate: str) -> Guard:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    secret, own_pid = os.urandom(8).hex(), os.getpid()
    own_fd = os.pidfd_open(own_pid)
    # Else a collection here would write to the pages that the guard shares, and copy them.
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        wanted = isolate in ("auto", "pidns")
        be_guard(its.detach(), own_fd, own_pid, secret, namespaces=wanted)
    its.close()
    os.close(own_fd)
    guard = Guard("pgroup", pid, ours, secret)
    try:
        refused = _receive(ours, Kind.HELLO, within=_HELLO_WITHIN)[0].text
        # The guard has tried it: whether a namespace can be made shows only by making one.
        guard.isolation = _choose(isolate, refused)
    except BaseException:
        guard.close()
        raise
    return guard


def _choose(isolate: str, refused: str) -> str:
    """The isolation to use. `refused`: why there is no PID namespace; empty if there is one."""
    if isolate == "pidns" and refused:
        raise ConfigError(f"isolate=pidns cannot be had here: {refused}", name="isolate")
    if isolate == "container" and os.getpid() != 1:
        raise ConfigError("isolate=container is for PID 1, which we are not", name="isolate")
    if isolate != "auto":
        return isolate
    if not refused:
        return "pidns"
    if os.getpid() == 1:
        return "container"
    _log.warning(_ESCAPE, refused)
    return "pgroup"
