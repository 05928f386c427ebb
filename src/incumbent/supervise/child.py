"""CMD: the process, in a process group of its own, born under the guard."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence

from incumbent.supervise.launch import Launch
from incumbent.supervise.signals import Terminal
from incumbent.supervise.tree import Tree

__all__ = ["CannotStart", "Child"]

_log = logging.getLogger("incumbent")

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CannotStart(Exception):
    """CMD was not started; `code` is what a shell would exit with."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError) or _only_out_of_reach(command, error)
        problem = "not found" if missing else (error.strerror or "cannot be executed").lower()
        super().__init__(f"{command}: {problem}")
        self.code = _NOT_FOUND if missing else _NOT_EXECUTABLE


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
