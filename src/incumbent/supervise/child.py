"""CMD's tree: CMD and all that it started, as far as the isolation lets us see and end them.

- PID namespace: all its processes but its init. Orphans become children of init. The tree is empty
  once CMD has ended and init is dead or has no children.
- PID 1 of a container, or a subreaper: our descendants. Orphans become our children. The tree is
  empty once we have no children.
- Not Linux: the process group.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from incumbent.supervise.codes import CANNOT_START
from incumbent.supervise.kernel import (
    below,
    children,
    descendants,
    namespace_members,
    readable,
    send,
)
from incumbent.supervise.launch import PreparedCommand
from incumbent.supervise.messages import MARK, mark_of
from incumbent.supervise.signals import Terminal

_log = logging.getLogger("incumbent")

_KERNEL_WITHIN: Final = 0.25
"""The most seconds that the kernel gets to end an empty namespace."""


class CannotStart(Exception):
    """CMD was not started; `code` is the exit code of a shell in that case."""

    def __init__(self, command: str, error: OSError) -> None:
        found = _find(command)
        missing = not found and isinstance(error, FileNotFoundError | PermissionError)
        if missing:
            problem = "not found" + (_QUOTED if " " in command else "")
        elif isinstance(error, FileNotFoundError):
            problem = f"its interpreter {_interpreter(found)} is not found"
        else:
            problem = (error.strerror or "cannot be executed").lower()
        super().__init__(f"{command}: {problem}")
        self.code = CANNOT_START[missing]


_QUOTED: Final = (
    "; it is one word with blanks in it: leave out the quotes, or write sh -c before it for a shell"
)


def _find(command: str) -> str:
    """The file that a shell would execute, or ""."""
    # Not Path.exists, which raises for a folder that may not be searched.
    if os.sep in command:
        return command if os.path.lexists(command) else ""
    paths = (f"{folder}/{command}" for folder in os.get_exec_path())
    return next((path for path in paths if os.path.exists(path)), "")  # noqa: PTH110


def _interpreter(script: str) -> str:
    """The interpreter in a script's first line; for a program, words for the unnamed loader."""
    with suppress(OSError), open(script, "rb") as file:  # noqa: PTH123
        line = file.readline(256)
        if line.startswith(b"#!"):
            return line[2:].decode(errors="replace").strip()
    return "or loader"


class Child:
    """The process that `ready` becomes, its tree, and the terminal that they have meanwhile.

    Raises CannotStart, or GuardFault if CMD would have run unguarded; after either, nothing runs
    once `ready` is closed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        terminal: Terminal | None,
        ready: PreparedCommand,
    ) -> None:
        self._term = ready
        self._guard = ready.guard
        self._guarded = ready.guard.channel is not None
        self._inode = os.fstat(ready.namespace).st_ino if ready.namespace >= 0 else 0
        self._terminal = terminal
        self.pid = ready.pid
        """The pid of CMD, and of its group."""
        self.status: int | None = None
        """CMD's exit code, or 128 + n for signal n; None until it ends."""
        self.stopped = False
        self._empty = False
        try:
            mark = {MARK: mark_of(ready.guard.secret, ready.term)}
            ready.become(command, {**environment, **mark}, terminal)
        except BaseException as error:
            # The process may have taken the terminal already, or does so until it is gone.
            ready.close()
            if terminal is not None:
                terminal.take_back()
            if isinstance(error, OSError):
                raise CannotStart(command[0], error) from error
            raise

    def poll(self) -> None:
        """Notice that CMD has ended, was stopped, or was continued."""
        while self.status is None:
            # One change a call, so it is asked until there is none: SIGCHLD comes once for several.
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
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
            # The shell does not see that CMD stopped, so we take the keyboard.
            self._terminal.take_back()
            _log.warning("stopped, and the lease is kept: ^Z again resumes it, ^C ends it")

    def resume(self) -> None:
        """Continue a stopped group, and give it the terminal."""
        if self._terminal is not None:
            self._terminal.give(self.pid)
        self.signal_group(signal.SIGCONT)

    def close(self) -> None:
        """End the term and take the terminal back. Remaining processes belong to no command."""
        if self._terminal is not None:
            self._terminal.take_back()
        if self._term.init < 0 and self._guarded:
            # Before the guard forgets the term: what is left belongs to no later command.
            self._guard.spared |= self._our_children() or set()
        self._term.end_term()

    # -- the tree --------------------------------------------------------------------------------

    def members(self) -> list[int] | None:
        """The tree's living processes, including CMD; None if the system does not list them."""
        if not self._guarded:
            return None
        if self._inode:
            return [pid for pid in namespace_members(self._inode) if pid != self._term.init_pid]
        return descendants(os.getpid(), but=self._guard.spared)

    def tree_lives(self) -> bool:
        """Whether any process of the tree is left, including CMD."""
        if self.status is None:
            return True
        # Once empty, empty for good: nothing can be forked into it, and its numbers may be used
        # again.
        self._empty = self._empty or self._nothing_left()
        return not self._empty

    def _nothing_left(self) -> bool:
        if self._term.init >= 0:
            return self._namespace_ended()
        if not self._guarded:
            return self._group_ended()
        # Reaped before they are counted: the list of children has zombies too.
        self.reap()
        left = self._our_children()
        # Without that list, two scans: an orphan that moves to us during one may be missing there.
        return not left if left is not None else not (self.members() or self.members())

    def _namespace_ended(self) -> bool:
        if readable(self._term.init):
            return True
        orphans = children(self._term.init_pid)
        if orphans is not None:
            return not orphans
        if self.members():
            return False
        # The scan may be out of date; but once init ends, the kernel guarantees an empty namespace.
        self._kill_init()
        return readable(self._term.init, _KERNEL_WITHIN)

    def _group_ended(self) -> bool:
        try:
            # It fails only when no process is in the group, and zombies count: CMD was waited for
            # before.
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def _our_children(self) -> set[int] | None:
        found = children()
        return None if found is None else set(found) - self._guard.spared - {self.pid}

    def reap(self) -> None:
        """Reap orphans that became our children, and leave children that belong to no command."""
        if self._term.init < 0 and self._guarded:
            for pid in self._our_children() or ():
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    # -- signals ---------------------------------------------------------------------------------

    def signal_group(self, signum: int) -> None:
        """Signal CMD and the processes in its group, as a terminal does."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def signal_tree(self, *signums: int) -> None:
        """Send the signals, in this order, to CMD and every process that it started."""
        # Listed before the first signal: a process that ends leaves its children to another parent.
        rest = self._outside_the_group(self._started())
        for signum in signums:
            self.signal_group(signum)
            send(rest, signum)

    def kill(self) -> None:
        """Send KILL to the whole tree; a namespace dies with its init."""
        if self._term.init >= 0:
            self._kill_init()
            return
        self.signal_group(signal.SIGKILL)
        send(self._outside_the_group(self.members()), signal.SIGKILL)

    def _started(self) -> list[int] | None:
        """`members` without CMD, if possible without reading every process of the host."""
        if not self._guarded:
            return None
        try:
            # If CMD was waited for, its pid may belong to another process by now.
            found = below(self.pid) if self.status is None else []
            # The new parent of orphans is read last, so that processes that move there are found.
            if self._term.init >= 0:
                return found + below(self._term.init_pid)
            for orphan in self._our_children() or ():
                found += [orphan, *below(orphan)]
        except OSError:
            return self.members()
        return found

    def _outside_the_group(self, pids: Iterable[int] | None) -> list[int]:
        return [pid for pid in pids or () if not self._in_group(pid)]

    def _in_group(self, pid: int) -> bool:
        try:
            return os.getpgid(pid) == self.pid
        except ProcessLookupError:
            return True

    def _kill_init(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._term.init, signal.SIGKILL)
