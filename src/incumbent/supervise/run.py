"""Runs a command under a lease: it is stopped by TERM, then KILL, while the lease is still proved.

What this does not promise: a descendant that left CMD's process group (a daemon, another session)
is not stopped, and when the supervisor itself is killed or frozen only CMD (killed: Linux's
parent-death signal) is dealt with, not its children. The keeper thread renews for as long as
anything of the group lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.supervise.child import CannotStart, Child
from incumbent.supervise.holding import abandon, belief_of, give_back, grace_of, watch
from incumbent.supervise.kernel import Waiter, pidfds
from incumbent.supervise.plan import Action, Course, Phase, decide
from incumbent.supervise.signals import Signals
from incumbent.supervise.terminal import find_terminal
from incumbent.sync import Lease

__all__ = ["Ending", "supervise"]

_TERMINATING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_LOOK_EVERY: Final = 0.02
"""Seconds between looks at a group whose processes the system does not list."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended. `cause`: why we stopped it (empty: by itself); `status`: CMD's, if it ended.

    `survivors`: processes that even KILL did not end; then the lease was not given back.
    `confirmed`: whether the store confirmed the release.
    """

    cause: str
    status: int | None
    seconds: float
    confirmed: bool = False
    survivors: tuple[int, ...] = ()


def supervise(
    lease: Lease, command: Sequence[str], environment: Mapping[str, str], signals: Signals
) -> Ending:
    """Run `command` to its end, or to the end of the lease, and give the lease back.

    Raises CannotStart; then the lease and its slot were given back at once.
    """
    began = clock.now()
    if cause := belief_of(lease).verdict(began):
        give_back(lease, undo_slot=True)
        return Ending(cause, None, 0.0)
    signals.follow_the_job()
    try:
        child = Child(command, environment, find_terminal())
    except CannotStart:
        give_back(lease, undo_slot=True)
        raise
    return _Watch(lease, child, signals).end(began)


class _Watch:
    """Decides, does, waits: until nothing of the command is left."""

    def __init__(self, lease: Lease, child: Child, signals: Signals) -> None:
        self._lease = lease
        self._child = child
        self._signals = signals
        self._grace = grace_of(lease)
        self._course = Course()
        self._waiter = Waiter()
        watch(lease, signals.wake)

    def end(self, began: float) -> Ending:
        try:
            left_over = self._follow()
        finally:
            # A defect of ours must not leave CMD behind: the lease would not cover it.
            if self._course.phase is not Phase.KILLED and self._child.group_lives():
                self._child.signal(signal.SIGKILL)
            self._waiter.close()
            self._child.close()
        seconds = clock.now() - began
        status, cause = self._child.status, self._course.cause
        if left_over:
            abandon(self._lease)
            return Ending(cause, status, seconds, False, self._survivors())
        return Ending(cause, status, seconds, give_back(self._lease))

    def _follow(self) -> bool:
        """True if something outlives even KILL."""
        while True:
            self._child.look()
            step = decide(
                self._course,
                clock.now(),
                belief_of(self._lease),
                self._grace,
                child=self._child.status is None,
                group=self._child.group_lives(),
            )
            self._course = step.course
            if step.action in (Action.LEAVE, Action.GIVE_UP):
                return step.action is Action.GIVE_UP
            self._do(step.action, step.wake)

    def _do(self, action: Action, wake: float) -> None:
        match action:
            case Action.TERM:
                self._child.signal(signal.SIGTERM)
                # A stopped process takes TERM only once it goes on.
                self._child.signal(signal.SIGCONT)
            case Action.KILL:
                self._child.signal(signal.SIGKILL)
            case _:
                self._wait(wake)
                for signum in self._signals.take():
                    self._pass_on(signum)

    def _wait(self, until: float) -> None:
        if self._child.status is None:
            # Its end, or a stop, comes as SIGCHLD.
            self._waiter.wait((self._signals.fd,), until)
            return
        members = self._child.members()
        if members is None:
            until = min(until, clock.now() + _LOOK_EVERY)
        watched = pidfds(members or ())
        try:
            self._waiter.wait((self._signals.fd, *watched), until)
        finally:
            for fd in watched:
                os.close(fd)

    def _pass_on(self, signum: int) -> None:
        if signum == signal.SIGCONT or (signum == signal.SIGTSTP and self._child.stopped):
            self._child.resume()
        elif signum != signal.SIGCHLD:
            self._child.signal(signum)
            if self._child.stopped and signum in _TERMINATING:
                self._child.signal(signal.SIGCONT)

    def _survivors(self) -> tuple[int, ...]:
        return tuple(self._child.members() or (self._child.pid,))
