"""The guard's PID namespaces: each has an init that lives while supervisor and guard both do.

When init dies the kernel kills every process of the namespace, and keeps init as a zombie until the
last of them is reaped. CMD is a child of the supervisor and not of init.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from incumbent.supervise.kernel import (
    die_with_parent,
    name_process,
    new_pid_namespace,
    own_proc,
    readable,
)

__all__ = ["Init", "Inits", "keep_only"]

_PROBE_TIMEOUT = 2.0


@dataclass(slots=True)
class Init:
    """One namespace; `fd` is the pidfd of its init, -1 once it was reaped."""

    pid: int
    fd: int

    def kill(self) -> None:
        """KILL it, and with it everything in its namespace."""
        # The number of a closed descriptor may belong to another file, or to another init.
        if self.fd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)


class Inits:
    """All namespaces of this guard: the next, the present one, and those that are dying."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor
        self._home = os.open("/proc/self/ns/pid", os.O_RDONLY)
        # Nobody writes to this pipe. Its end tells an init that the guard is gone.
        self._life, self._held = os.pipe()
        self._all: dict[int, Init] = {}
        self._spare: Init | None = None

    @property
    def fds(self) -> list[int]:
        """Descriptors that are readable when an init is dead."""
        return list(self._all)

    def prepare(self) -> None:
        """Make the next one ahead. Raises OSError with the reason if there can be none."""
        if self._spare is None or self._spare.fd < 0 or readable(self._spare.fd):
            self._spare = self._make()

    def next(self) -> Init:
        """The one that `prepare` made. Raises OSError."""
        self.prepare()
        init, self._spare = self._spare, None
        if init is None:
            raise OSError("no namespace was prepared")
        return init

    def reap(self) -> None:
        """Forget dead ones, and leave no zombie."""
        for fd, init in list(self._all.items()):
            if readable(fd):
                with suppress(ChildProcessError):
                    os.waitpid(init.pid, os.WNOHANG)
                del self._all[fd]
                init.fd = -1
                os.close(fd)

    def close(self, within: float) -> None:
        """Kill all, and wait for their end for at most `within` seconds."""
        for init in self._all.values():
            init.kill()
        for fd in list(self._all):
            readable(fd, within)
        self.reap()

    def _make(self) -> Init:
        report, write = os.pipe()
        die = die_with_parent()
        with new_pid_namespace(self._home):
            pid = os.fork()
            if pid == 0:
                _be_init((self._life, self._supervisor), write, die)
        os.close(write)
        init = Init(pid, os.pidfd_open(pid))
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
            die()
        # With SIGCHLD ignored the kernel reaps the orphans.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        name_process("incumbent-init")
        keep_only((*lives, report))
        try:
            # CMD will do the same: a namespace that refuses it is of no use.
            own_proc()()
            os.write(report, b"ok")
        except OSError as error:
            os.write(report, str(error.strerror or error).encode())
        os.close(report)
        # Either end is enough: a frozen guard does not see that the supervisor is dead.
        poll = select.poll()
        for fd in lives:
            poll.register(fd, select.POLLIN)
        poll.poll()
    finally:
        os._exit(0)


def keep_only(fds: tuple[int, ...]) -> None:
    """Close all descriptors but `fds`, with nothing at the standard ones: pipes must end."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        if standard not in fds:
            os.dup2(null, standard)
    with suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if fd > 2 and fd not in fds:
                with suppress(OSError):
                    os.close(fd)
