"""CMD: a process that waits to become it, and what it is from then on.

The process is forked before the election, for a fork takes longest of all. It is born under the
guard, in its namespace and a process group of its own. It becomes CMD only after it got the command
*and* the guard confirmed a deadline. It ends with its supervisor.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn, Self

from incumbent import clock
from incumbent.supervise.answers import LeaseSocket
from incumbent.supervise.codes import CANNOT_START
from incumbent.supervise.guarding import Cover, Guard, GuardFault
from incumbent.supervise.kernel import die_with_parent, readable, writable
from incumbent.supervise.signals import Terminal
from incumbent.supervise.tree import Tree

__all__ = ["CannotStart", "Child", "Launch", "Ready", "new_launch"]

_log = logging.getLogger("incumbent")

_WITHIN: Final = 3.0
"""Seconds from sending the command to the exec; the guard's answer may take one of them."""
_UNGUARDED: Final = 255
"""In place of an errno: the guard did not answer."""
_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them; CMD gets them as every other program does."""


class CannotStart(Exception):
    """CMD was not started; `code` is what a shell would exit with."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError) or _only_out_of_reach(command, error)
        problem = "not found" if missing else (error.strerror or "cannot be executed").lower()
        super().__init__(f"{command}: {problem}")
        self.code = CANNOT_START[missing]


def _only_out_of_reach(command: str, error: OSError) -> bool:
    """Whether "permission denied" is about a folder of PATH and not about CMD, as shells see it."""
    if not isinstance(error, PermissionError) or os.sep in command:
        return False
    # Not Path.exists, which raises for a folder that may not be searched.
    return not any(os.path.exists(f"{folder}/{command}") for folder in os.get_exec_path())  # noqa: PTH110


class Child:
    """The process, the tree below it, and the terminal that they have meanwhile.

    `launch` becomes CMD. Raises CannotStart, or GuardFault if CMD would have run unguarded; then
    nothing ran.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        terminal: Terminal | None,
        launch: Launch,
    ) -> None:
        self._terminal = terminal
        try:
            launch.become(command, {**environment, **launch.cover.mark()}, terminal)
        except OSError as error:
            raise CannotStart(command[0], error) from error
        self.pid = launch.pid
        self.tree = Tree(self.pid, launch.cover)
        self.status: int | None = None
        """Its exit code, or 128 + n for signal n, once it ended."""
        self.stopped = False

    def look(self) -> None:
        """Notice that CMD has ended, was stopped, or goes on."""
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            self._learn(status)

    def _learn(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._has_stopped()
        elif os.WIFCONTINUED(status):
            self.stopped = False
        else:
            code = os.waitstatus_to_exitcode(status)
            self.status = code if code >= 0 else 128 - code

    def _has_stopped(self) -> None:
        self.stopped = True
        if self._terminal is not None:
            # The shell does not see that CMD stopped, so that we answer at the keyboard.
            self._terminal.take_back()
            _log.warning("stopped, and the lease is kept: ^Z again resumes it, ^C ends it")

    def tree_lives(self) -> bool:
        """Whether anything of its tree is left, CMD included."""
        return self.tree.lives(child=self.status is None)

    def signal_tree(self, *signums: int) -> None:
        """Signal CMD and everything that it started, in this order."""
        self.tree.signal(*signums, child=self.status is None)

    def resume(self) -> None:
        """Continue a stopped group, with its terminal."""
        if self._terminal is not None:
            self._terminal.give(self.pid)
        self.tree.signal_group(signal.SIGCONT)

    def close(self) -> None:
        """End the term: take the terminal back, and ignore what is left."""
        if self._terminal is not None:
            self._terminal.take_back()
        self.tree.close()


# -- before it is CMD ----------------------------------------------------------------------------


class Launch:
    """One such process, under `cover`. Raises GuardFault if it cannot be forked."""

    def __init__(self, cover: Cover) -> None:
        self.cover = cover
        self._ended = False
        go, self._go = os.pipe()
        self._report, report = os.pipe()
        os.set_blocking(self._go, False)
        try:
            self.pid = _fork(cover, go, report)
        except OSError as error:
            self._close()
            # For example because the init of its namespace is dead.
            raise GuardFault(f"the command could not be forked: {error}") from error
        finally:
            os.close(go)
            os.close(report)

    @property
    def broken(self) -> bool:
        """Whether nothing can be started with it any more."""
        return self.cover.broken or self._ended or readable(self._report)

    def become(
        self, command: Sequence[str], environment: Mapping[str, str], terminal: Terminal | None
    ) -> None:
        """Return once it is CMD. Raises OSError as exec does, or GuardFault; then nothing ran."""
        until = clock.now() + _WITHIN
        order = json.dumps([list(command), dict(environment), terminal is not None])
        try:
            self._send(order.encode(), until)
            if not readable(self._report, until - clock.now()):
                raise GuardFault("the command does not come up")
            report = os.read(self._report, 1)
        except BaseException:
            self.end()
            raise
        if not report:
            self._close()
            return
        self.end()
        if report[0] == _UNGUARDED:
            raise GuardFault("the command could not be put under the guard")
        raise OSError(report[0], os.strerror(report[0]))

    def _send(self, order: bytes, until: float) -> None:
        while order:
            if not writable(self._go, until - clock.now()):
                raise GuardFault("the command does not come up")
            try:
                order = order[os.write(self._go, order) :]
            except BrokenPipeError:
                return  # It has ended, after its report if there is one.
        os.close(self._go)
        self._go = -1

    def end(self) -> None:
        """End the process; nothing of CMD has begun."""
        if self._ended:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._close()

    def _close(self) -> None:
        self._ended = True
        for fd in (self._go, self._report):
            if fd >= 0:
                os.close(fd)
        self._go = self._report = -1


def new_launch(guard: Guard, ttl: float) -> Launch:
    """One for a term of at most `ttl` seconds from proof to proof. Raises GuardFault."""
    cover = guard.cover(ttl)
    try:
        return Launch(cover)
    except BaseException:
        cover.end()
        raise


class Ready:
    """What a candidate prepares for its next term: a socket, and a process under the guard.

    `ttl`: see `Guard.cover`. Raises ConfigError if there is no folder for the socket, GuardFault if
    the guard does not answer.
    """

    def __init__(self, guard: Guard, ttl: float) -> None:
        self._guard = guard
        self.socket = LeaseSocket()
        # From here on it is removed even if we are killed.
        guard.remove_later(self.socket.path)
        try:
            self.launch = new_launch(guard, ttl)
        except BaseException:
            self._close_socket()
            raise

    def close(self) -> None:
        """End what was prepared, after the term or without one."""
        self.launch.end()
        self.launch.cover.end()
        self._close_socket()

    def _close_socket(self) -> None:
        self.socket.close()
        self._guard.remove_later("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fork(cover: Cover, go: int, report: int) -> int:
    # Everything is looked up here, so that the child only makes system calls until its exec.
    die, mount_proc, guarded = die_with_parent(), cover.mount_proc(), cover.before_exec()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings(), cover.entering():
            # About threads, which the child neither has nor waits for.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                _child(die, mount_proc, guarded, cover.fds, go, report, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Here as well as in the child: the group must exist before anybody signals it.
    with suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def _child(
    die: Callable[[], object] | None,
    mount_proc: Callable[[], None],
    guarded: Callable[[], None],
    kept: tuple[int, ...],
    go: int,
    report: int,
    mask: set[int],
) -> NoReturn:
    code = _UNGUARDED
    try:
        gc.disable()
        if die is not None:
            die()
        os.setpgid(0, 0)
        _as_others_start(mask)
        # The connections of the supervisor must end when it closes them.
        _close_ours({go, report, *kept})
        mount_proc()
        command, environment, at_terminal = _receive(go)
        # Before the terminal changes hands: a command that may not run must not get it.
        guarded()
        if at_terminal:
            # Here, not in the parent: CMD must not read before the terminal is its own.
            Terminal().give(os.getpid())
        code = errno.ENOEXEC
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        if code != _UNGUARDED:
            code = error.errno or code
    finally:
        with suppress(OSError):
            os.write(report, bytes([code]))
        os._exit(1)


def _receive(go: int) -> tuple[list[str], dict[str, str], bool]:
    order = b"".join(iter(lambda: os.read(go, 65536), b""))
    if not order:
        os._exit(0)  # The supervisor is gone, or does not need us.
    command, environment, at_terminal = json.loads(order)
    return command, environment, at_terminal


def _as_others_start(mask: set[int]) -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        if signum in _RESTORED or callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _close_ours(kept: set[int]) -> None:
    """Close the descriptors that exec would close; the inheritable ones are meant for CMD."""
    for fd in _open_fds():
        if fd not in kept:
            with suppress(OSError):
                if not os.get_inheritable(fd):
                    os.close(fd)


def _open_fds() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return [int(fd) for fd in os.listdir(folder)]  # noqa: PTH208
    return []
