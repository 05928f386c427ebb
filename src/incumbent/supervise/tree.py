"""Everything that a command started, as far as its isolation lets the supervisor see and end it.

- PID namespace: all of its processes but its init. Orphans become children of init. The tree is
  empty once CMD has ended and init has no children, or is dead.
- PID 1 of a container, or a subreaper: our descendants. Orphans become our children. The tree is
  empty once we have no children.
- Not Linux: the process group.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

from incumbent.supervise.guarding import Cover
from incumbent.supervise.kernel import readable
from incumbent.supervise.processes import (
    below,
    children,
    descendants,
    group_members,
    namespace_members,
    send,
)

__all__ = ["Tree"]

_KERNEL_WITHIN: Final = 0.25
"""Seconds for the kernel to end an empty namespace."""


class Tree:
    """The processes of one term. `pid`: CMD, and its group."""

    def __init__(self, pid: int, cover: Cover) -> None:
        self._pid = pid
        self._cover = cover
        self._inode = cover.inode
        self._empty = False

    def members(self) -> list[int] | None:
        """The living, CMD included; None where the system does not list them."""
        if self._inode:
            found = namespace_members(self._inode)
            return [pid for pid in found if pid != self._cover.init_pid]
        if self._cover.guard.channel is None:
            return group_members(self._pid)
        return descendants(os.getpid(), but=self._cover.guard.spared)

    def lives(self, *, child: bool) -> bool:
        """Whether anything is left; `child`: CMD is."""
        if child:
            return True
        if not self._empty:
            self._empty = self._nothing_left()
        return not self._empty

    def _nothing_left(self) -> bool:
        if self._cover.init >= 0:
            return self._namespace_ended()
        if self._cover.guard.channel is None:
            return self._group_ended()
        self._reap()
        left = self._our_children()
        return not left if left is not None else not (self.members() or self.members())

    def _namespace_ended(self) -> bool:
        if readable(self._cover.init):
            return True
        orphans = children(self._cover.init_pid)
        if orphans is not None:
            return not orphans
        if self.members():
            return False
        # A scan may be out of date; if init ends, the kernel guarantees an empty namespace.
        self._kill_init()
        return readable(self._cover.init, _KERNEL_WITHIN)

    def _group_ended(self) -> bool:
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.members() == []

    def _our_children(self) -> set[int] | None:
        found = children()
        return None if found is None else set(found) - self._cover.guard.spared - {self._pid}

    def _reap(self) -> None:
        """Reap orphans that became our children, and no child of other code in this process."""
        for pid in self._our_children() or ():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def reap(self) -> None:
        """Leave no zombie of the command's daemons."""
        if self._cover.init < 0 and self._cover.guard.channel is not None:
            self._reap()

    def signal_group(self, signum: int) -> None:
        """Signal CMD and what stayed in its group, as a terminal does."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signum)

    def kill(self) -> None:
        """KILL everything; a namespace dies with its init."""
        if self._cover.init >= 0:
            self._kill_init()
            return
        self.signal_group(signal.SIGKILL)
        send(self._outside_the_group(self.members()), signal.SIGKILL)

    def signal(self, *signums: int, child: bool) -> None:
        """Signal everything that CMD started, in this order; `child`: CMD was not waited for."""
        rest = self._outside_the_group(self._started(child=child))
        for signum in signums:
            self.signal_group(signum)
            send(rest, signum)

    def _started(self, *, child: bool) -> list[int] | None:
        """`members` without CMD, found without reading every process of the host if possible."""
        if self._cover.guard.channel is None:
            return self.members()
        try:
            # The pid of a CMD that was waited for may belong to another process by now.
            found = below(self._pid) if child else []
            # The new parent of orphans comes last, so that those that move there are still found.
            if self._cover.init >= 0:
                return found + below(self._cover.init_pid)
            for orphan in self._our_children() or ():
                found += [orphan, *below(orphan)]
        except OSError:
            return self.members()
        return found

    def _outside_the_group(self, pids: list[int] | None) -> list[int]:
        return [pid for pid in pids or () if not self._in_group(pid)]

    def _in_group(self, pid: int) -> bool:
        try:
            return os.getpgid(pid) == self._pid
        except ProcessLookupError:
            return True

    def _kill_init(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._cover.init, signal.SIGKILL)

    def close(self) -> None:
        """End the term. What is left from now on belongs to no command."""
        if self._cover.init < 0 and self._cover.guard.channel is not None:
            self._cover.guard.spared |= self._our_children() or set()
        self._cover.end()
