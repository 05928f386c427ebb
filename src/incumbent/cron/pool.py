"""The zygote's runners: which do what, which stand by for what is due soon.

Runners that stand by are forked one after the other, so that what is to be run now never waits for
more than one of them.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil

from incumbent import clock
from incumbent.cron.packets import packed
from incumbent.cron.runner import LEAVES, PREPARED
from incumbent.cron.running import STARTED, Task

__all__ = ["Pool", "Runner"]

_FAULT = 125
_AGAIN_AFTER = 10.0
"""Seconds after one that could not prepare itself."""
_HANDED_MOST = 65_536
"""Bytes that a socket takes at once from whoever must not wait; a new runner has them at birth."""
_SHORT = 5.0
"""Seconds of a task for which its runner is expected back."""


@dataclass(slots=True)
class Runner:
    """One of them. `task`: job and slot of what it does, None if nothing; `comes_up`: not yet."""

    pid: int
    channel: socket.socket
    task: tuple[str, str] | None
    comes_up: bool
    since: float = field(default_factory=clock.now)
    """When it began with its task."""
    prepared: bool = False
    leaves: bool = False


Fork = Callable[[Task | None], Runner | None]
"""Forks a runner that begins with a task; None (and said so) if the system refuses."""
Said = Callable[[str, str, int], None]
"""Hears that a task has begun, and how it ended: job, slot, code."""


class Pool:
    """See the module; `poll` is told of the runners' channels."""

    def __init__(self, fork: Fork, said: Said, poll: select.poll) -> None:
        self._fork = fork
        self._said = said
        self._poll = poll
        self._by_fd: dict[int, Runner] = {}
        self._by_pid: dict[int, Runner] = {}
        self.others: set[int] = set()
        """Processes that are no runners, to be reaped and stopped as those."""
        self._ready = self._kept = 0
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._by_pid) + len(self.others)

    @property
    def channels(self) -> list[socket.socket]:
        """For a child, which must not keep them open."""
        return [it.channel for it in self._by_fd.values()]

    # -- what the instance wants -----------------------------------------------------------------

    def do(self, task: Task) -> None:
        """At once: by who is prepared, else by who is idle, else by a new one."""
        data = packed(task)
        fits = len(data) <= _HANDED_MOST
        for runner in sorted(self._idle() if fits else (), key=lambda it: not it.prepared):
            if self._hand(runner, data):
                runner.task, runner.since = (task.job, task.slot), clock.now()
                runner.prepared = runner.comes_up = False
                return
        if self._start(task) is None:
            self._said(task.job, task.slot, _FAULT)

    def stand_by(self, ready: int, kept: int) -> None:
        """Fork until so many are idle; those of the idle that are more than `kept` leave."""
        self._ready, self._kept = ready, kept
        idle = sorted(self._idle(), key=lambda it: it.prepared)
        for runner in idle[: max(0, len(idle) - kept)]:
            self._dismiss(runner)

    def prepare(self) -> int | None:
        """Fork the next one that is to stand by, unless one is about to be ready.

        Returns after how many milliseconds to come again though nothing is heard, if ever.
        """
        idle, now = self._idle(), clock.now()
        back_soon = sum(it.task is not None and now - it.since < _SHORT for it in self._all())
        if len(idle) + back_soon >= self._ready or any(it.comes_up for it in idle):
            return None
        if now >= self._not_before:
            if self._start(None) is not None:
                return None
            self._not_before = now + _AGAIN_AFTER
        return ceil((self._not_before - now) * 1000)

    def stop(self) -> None:
        """TERM to every runner."""
        for pid in (*self._by_pid, *self.others):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _all(self) -> list[Runner]:
        return [it for it in self._by_fd.values() if not it.leaves]

    def _idle(self) -> list[Runner]:
        return [it for it in self._all() if it.task is None]

    def _start(self, task: Task | None) -> Runner | None:
        runner = self._fork(task)
        if runner is not None:
            self._by_pid[runner.pid] = runner
            self._by_fd[runner.channel.fileno()] = runner
            self._poll.register(runner.channel, select.POLLIN)
        return runner

    def _hand(self, runner: Runner, data: bytes) -> bool:
        try:
            if runner.channel.send(data, socket.MSG_DONTWAIT) == len(data):
                return True
        except OSError:
            pass
        # It does not read, or has half of a task.
        self._dismiss(runner)
        with suppress(ProcessLookupError):
            os.kill(runner.pid, signal.SIGKILL)
        return False

    def _dismiss(self, runner: Runner) -> None:
        """Its end of the channel tells it; it is known until it was reaped."""
        runner.leaves = True
        if self._by_fd.pop(runner.channel.fileno(), None) is not None:
            self._poll.unregister(runner.channel)
            runner.channel.close()

    # -- what the runners say ----------------------------------------------------------------------

    def hear(self, fd: int) -> None:
        """A channel is readable."""
        runner = self._by_fd.get(fd)
        if runner is None:
            return
        try:
            said = runner.channel.recv(16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._count_failure(runner)
            self._dismiss(runner)
        for code in said:
            self._take(runner, code)

    def _take(self, runner: Runner, code: int) -> None:
        if code == PREPARED:
            runner.prepared, runner.comes_up = True, False
        elif code == LEAVES:
            self._dismiss(runner)
        elif code == STARTED:
            if runner.task is not None:
                self._said(*runner.task, STARTED)
        elif runner.task is not None:
            task, runner.task = runner.task, None
            self._said(*task, code)
            if len(self._idle()) > self._kept:
                self._dismiss(runner)

    def reap(self) -> None:
        """See who ended."""
        while len(self):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.others.discard(pid)
            if (runner := self._by_pid.get(pid)) is not None:
                self._ended(runner, os.waitstatus_to_exitcode(status))

    def _ended(self, runner: Runner, code: int) -> None:
        if (fd := runner.channel.fileno()) >= 0:
            # What it said last.
            self.hear(fd)
        if runner.task is not None:
            self._said(*runner.task, code or _FAULT)
        self._count_failure(runner)
        self._dismiss(runner)
        del self._by_pid[runner.pid]

    def _count_failure(self, runner: Runner) -> None:
        """It is gone; had it come up, or been told to leave, that would say nothing of the next."""
        if runner.comes_up and not runner.leaves:
            self._not_before = clock.now() + _AGAIN_AFTER
