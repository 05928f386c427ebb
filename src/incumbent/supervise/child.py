"""CMD in a process group of its own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from incumbent.supervise.kernel import die_with_parent, group_members
from incumbent.supervise.terminal import Terminal

__all__ = ["CannotStart", "Child"]

_log = logging.getLogger("incumbent")

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CannotStart(Exception):
    """CMD was not started; `code` is what a shell would exit with."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError) or _only_out_of_reach(command, error)
        said = "not found" if missing else (error.strerror or "cannot be executed").lower()
        super().__init__(f"{command}: {said}")
        self.code = _NOT_FOUND if missing else _NOT_EXECUTABLE


def _only_out_of_reach(command: str, error: OSError) -> bool:
    """Whether "permission denied" is about a folder of PATH and not about CMD, as shells see it."""
    if not isinstance(error, PermissionError) or os.sep in command:
        return False
    # Not Path.exists, which raises for a folder that may not be searched.
    return not any(os.path.exists(f"{folder}/{command}") for folder in os.get_exec_path())  # noqa: PTH110


class Child:
    """The process, its group, and the terminal that they have meanwhile."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], terminal: Terminal | None
    ) -> None:
        self._terminal = terminal
        self._process = _start(command, environment, terminal)
        self.pid = self._process.pid
        self.status: int | None = None
        """Its exit code, or 128 + n for signal n, once it ended."""
        self.stopped = False

    def look(self) -> None:
        """Notice that it ended, was stopped, or goes on."""
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
            # Popen must not wait for it a second time.
            self._process.returncode = code

    def _has_stopped(self) -> None:
        self.stopped = True
        if self._terminal is not None:
            # Who would answer at the keyboard otherwise? The shell does not see CMD stop.
            self._terminal.take_back()
            _log.warning("stopped, and the lease is kept: ^Z again resumes it, ^C ends it")

    def group_lives(self) -> bool:
        """Whether anything of its group is left, CMD included."""
        return self.status is None or (self._group_exists() and self.members() != [])

    def _group_exists(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def members(self) -> list[int] | None:
        """The living of its group, where the system lists them."""
        return group_members(self.pid)

    def signal(self, signum: int) -> None:
        """Send a signal to the group; who is gone, or another user's, does not get it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def resume(self) -> None:
        """Have a stopped group go on, with its terminal."""
        if self._terminal is not None:
            self._terminal.give(self.pid)
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Nothing of it is left, or it is left alone: the terminal is ours again."""
        if self._terminal is not None:
            self._terminal.take_back()
        # So that Popen does not warn of a process that outlives even KILL.
        if self._process.returncode is None:
            self._process.returncode = 0


def _start(
    command: Sequence[str], environment: Mapping[str, str], terminal: Terminal | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=environment,
            process_group=0,
            # Descriptors that our caller left open are meant for CMD; ours close at exec.
            close_fds=False,
            # Between fork and exec in a process with threads: it only makes system calls.
            preexec_fn=_before_exec(terminal),  # noqa: PLW1509
        )
    except OSError as error:
        raise CannotStart(command[0], error) from error


def _before_exec(terminal: Terminal | None) -> Callable[[], None]:
    die = die_with_parent()

    def call() -> None:
        if die is not None:
            die()
        if terminal is not None:
            # Here, not in the parent: CMD must not read before the terminal is its own.
            terminal.give(os.getpid())

    return call
