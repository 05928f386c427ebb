"""The supervisor's side of the guard: starts it, tells it each proof, and notices when it is gone.

Nothing here waits for the guard for longer than a moment: a frozen guard must not freeze us.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final

from incumbent import clock
from incumbent.errors import ConfigError
from incumbent.supervise.kernel import readable
from incumbent.supervise.processes import children
from incumbent.supervise.wire import ISOLATIONS, Kind, Message, receive

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Cover", "Guard", "GuardFault", "start_guard"]

_log = logging.getLogger("incumbent")

_ANSWER_WITHIN: Final = 1.0
_HELLO_WITHIN: Final = 5.0
_LEAVE_WITHIN: Final = 0.5

_ESCAPE: Final = (
    "no PID namespace (%s): a daemon that CMD starts with an environment of its own can outlive a"
    " killed supervisor; --isolate pgroup says that this is known"
)


class GuardFault(Exception):
    """The guard does not do its part, so that no command may run."""


class Guard:
    """See the module. Without a guard process (not on Linux) it promises nothing and says so.

    `isolation`: pidns, container or pgroup. `fd`: readable once the guard is dead, or -1.
    """

    def __init__(self, isolation: str, pid: int = 0, channel: socket.socket | None = None) -> None:
        self.isolation = isolation
        self.pid = pid
        self.secret = os.urandom(8).hex()
        self.fd = os.pidfd_open(pid) if pid else -1
        self.channel = channel
        self.home = os.open("/proc/self/ns/pid", os.O_RDONLY) if pid else -1
        self.spared = set(children() or ()) | {pid}
        """Children of ours that belong to no command: the guard, and who was there before."""
        self._terms = 0

    def alive(self, within: float = 0.0) -> bool:
        """Whether it can still kill; `within`: seconds to look for its death."""
        return self.fd < 0 or not readable(self.fd, within)

    def cover(self, ttl: float, *, leave: bool = False) -> Cover:
        """Begin a term of at most `ttl` seconds from proof to proof; GuardFault if it cannot.

        Nothing may run before the first proof, so that it can be begun before the lease is held.
        `leave`: what is to outlive the term cannot be in a namespace, which ends with its init.
        """
        self._terms += 1
        isolation = "pgroup" if leave and self.isolation == "pidns" else self.isolation
        return Cover(self, self._terms, ttl, isolation)

    def litter(self, path: str) -> None:
        """A socket, alone in its folder, that is removed if we are killed; one at a time."""
        if self.channel is not None:
            with suppress(OSError):
                os.write(self.channel.fileno(), Message(Kind.FOLDER, text=path).packed())

    def close(self) -> None:
        """The guard leaves; what it still watches it kills first."""
        if self.channel is not None:
            self.channel.close()
            if not readable(self.fd, _LEAVE_WITHIN):
                os.kill(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            os.close(self.fd)
            os.close(self.home)
            self.channel = None


class Cover:
    """One term under the guard. `init`: pidfd of the namespace's init, -1 without one."""

    def __init__(self, guard: Guard, term: int, ttl: float, isolation: str) -> None:
        self.guard = guard
        self.term = term
        self.isolation = isolation
        self.init = self.namespace = -1
        self.init_pid = 0
        if guard.channel is not None:
            self._begin(guard.channel, ttl)

    def _begin(self, channel: socket.socket, ttl: float) -> None:
        if self.isolation != "pidns":
            self._subreap()
        try:
            self._tell(Message(Kind.NEW, self.term, 0, ttl, self.isolation))
            said, fds = _answer(channel, Kind.READY, self.term)
        except OSError as error:
            raise GuardFault(f"the guard cannot be told of a new term: {error}") from error
        self.init_pid = said.pid
        if fds:
            self.init, self.namespace = fds

    def _subreap(self) -> None:
        from incumbent.supervise.namespaces import subreap

        if os.getpid() != 1:
            subreap()

    def _tell(self, message: Message) -> None:
        channel = self.guard.channel
        if channel is not None:
            os.write(channel.fileno(), message.packed())

    def prove(self, kill_at: float) -> None:
        """From any thread, and never blocking: the tree may live until `kill_at`."""
        # A guard that takes no more messages keeps to its last deadline.
        with suppress(OSError, ValueError):
            self._tell(Message(Kind.PROOF, self.term, 0, kill_at))

    @property
    def broken(self) -> bool:
        """Whether its namespace ended meanwhile: nothing can be started in it."""
        return self.init >= 0 and readable(self.init)

    @property
    def inode(self) -> int:
        """What names the PID namespace; 0 without one."""
        return os.fstat(self.namespace).st_ino if self.namespace >= 0 else 0

    def entering(self) -> AbstractContextManager[None]:
        """Within it the next fork is born where the guard can kill it."""
        if self.namespace < 0:
            return nullcontext()
        from incumbent.supervise.namespaces import entering

        return entering(self.namespace, self.guard.home)

    def settle(self) -> Callable[[], None]:
        """What the process calls that will be the command: it sees what its isolation shows."""
        if self.namespace < 0:
            return lambda: None
        from incumbent.supervise.namespaces import own_proc

        return own_proc()

    @property
    def fds(self) -> tuple[int, ...]:
        """What that process needs until its exec."""
        return () if self.guard.channel is None else (self.guard.channel.fileno(),)

    def before_exec(self) -> Callable[[], None]:
        """What it calls before its exec: it goes on only once the guard is armed."""
        channel = self.guard.channel
        if channel is None:
            return lambda: None
        fd = channel.fileno()

        def call() -> None:
            os.write(fd, Message(Kind.BORN, self.term, os.getpid()).packed())
            _await_armed(fd, self.term)

        return call

    def mark(self) -> dict[str, str]:
        """What the command's environment needs, so that its descendants can be told."""
        from incumbent.supervise.guard import MARK, mark_of

        return {MARK: mark_of(self.guard.secret, self.term)}

    def end(self) -> None:
        """Nothing of the command is left, or it is left alone: the guard forgets it."""
        if self.guard.channel is not None:
            with suppress(OSError):
                self._tell(Message(Kind.END, self.term))
        for fd in (self.init, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.init = self.namespace = -1


def _await_armed(fd: int, term: int) -> None:
    until = clock.now() + _ANSWER_WITHIN
    while readable(fd, max(0.0, until - clock.now())):
        said = receive(fd)
        if said is None:
            break
        if said.kind is Kind.ARMED and said.term == term:
            return
    raise TimeoutError("the guard is not armed")


def _answer(
    channel: socket.socket, kind: Kind, term: int = 0, within: float = _ANSWER_WITHIN
) -> tuple[Message, list[int]]:
    until = clock.now() + within
    while readable(channel.fileno(), max(0.0, until - clock.now())):
        data, fds, _, _ = socket.recv_fds(channel, 512, 2)
        for fd in fds:
            # recv_fds of Python 3.11 drops flags, MSG_CMSG_CLOEXEC too: CMD would have them.
            os.set_inheritable(fd, False)
        if not data:
            raise GuardFault("the guard is gone")
        said = Message.parsed(data)
        if said.kind is kind and said.term == term:
            return said, fds
        for fd in fds:
            os.close(fd)
    raise GuardFault("the guard does not answer")


# -- the start -----------------------------------------------------------------------------------


@contextmanager
def start_guard(isolate: str = "auto") -> Iterator[Guard]:
    """The guard of this process, for as long as the context lasts.

    To be called in the main thread before there is any other, and before a store is opened: it
    forks. Raises ConfigError where `isolate` ("auto" or one of ISOLATIONS) cannot be had.
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
    # Here, so that the guard finds it loaded and shares its memory with us.
    from incumbent.supervise.guard import be_guard

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    secret, own_pid = os.urandom(8).hex(), os.getpid()
    own_fd = os.pidfd_open(own_pid)
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        wanted = isolate in ("auto", "pidns")
        be_guard(its.detach(), own_fd, own_pid, secret, namespaces=wanted)
    its.close()
    os.close(own_fd)
    guard = Guard("pgroup", pid, ours)
    guard.secret = secret
    try:
        refused = _answer(ours, Kind.HELLO, within=_HELLO_WITHIN)[0].text
        guard.isolation = _choose(isolate, refused)
    except BaseException:
        guard.close()
        raise
    return guard


def _choose(isolate: str, refused: str) -> str:
    """`refused`: why there is no PID namespace; empty if there is one."""
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
