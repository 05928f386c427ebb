"""Runs a command under a lease: it is stopped by TERM, then KILL, while the lease is still proved.

    supervisor --- CMD --- its children ...
        |           :
      guard ------ init of CMD's PID namespace

The supervisor follows the lease and ends CMD's tree in order. If the supervisor is dead or frozen,
the guard (`guarding`) kills the tree by the latest deadline that it received. docs/supervision.md
says what that guarantees under each isolation; if supervisor *and* guard are frozen, nothing kills.
The lease is renewed as long as anything of the tree lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from incumbent import clock
from incumbent.locks import Lease, give_back
from incumbent.supervise.answers import child_environment
from incumbent.supervise.child import CannotStart, Child, Launch, Ready, new_launch
from incumbent.supervise.guarding import Guard, GuardFault
from incumbent.supervise.kernel import Waiter, pidfds
from incumbent.supervise.plan import Action, Course, Phase, asked_to_leave, decide, kill_at
from incumbent.supervise.signals import Signals, find_terminal

__all__ = ["Command", "Ending", "Listener", "release_after", "supervise", "supervise_command"]

_TERMINATING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_LOOK_EVERY: Final = 0.02
"""Seconds between looks at processes that the system does not list."""
_WATCHED_MOST: Final = 64
_DEATH_WITHIN: Final = 0.02
"""Seconds by which the guard's death may be seen after that of the tree, which dies with it."""


class Listener(Protocol):
    """Something else to serve while CMD runs: `ready` is called when `fd` is readable."""

    @property
    def fd(self) -> int:
        """A descriptor, always the same."""
        ...

    def ready(self) -> None:
        """Read and handle what arrived; must neither block nor raise."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """CMD and its arguments. `share_store`: the URL of the store, if CMD may use it."""

    words: Sequence[str]
    share_store: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a term ended. `cause`: why CMD was stopped, or empty; `status`: CMD's exit code, if any.

    A cause is a reason of the lease ("expired", "taken", ...), "at_most_for", "signal:SIGTERM" for
    one of `stop_on`, or "guard": the guard was dead.

    `survivors`: processes that even KILL did not end; then the lease was not given back.
    `confirmed`: whether the store confirmed the release. `leaving`: the first of `stop_on` that
    came, also after another cause; empty for none. `outlived`: CMD ended by itself, and the release
    found that the lease had been lost before: then that is the cause; or the ledger could not be
    written under the lease.
    """

    cause: str
    status: int | None
    seconds: float
    confirmed: bool = False
    survivors: tuple[int, ...] = ()
    leaving: str = ""
    outlived: bool = False


def supervise_command(
    command: Command,
    lease: Lease,
    signals: Signals,
    guard: Guard,
    *,
    stop_on: Collection[int] = frozenset(),
    report: Callable[[Course], None] | None = None,
    listeners: Sequence[Listener] = (),
    ready: Ready | None = None,
    keep: bool = False,
) -> Ending:
    """`supervise` with the variables of the lease and its socket, as `run`, `lead` and `work` do.

    `ready`: what was prepared for this term, else it is made now; closed at the end. Raises
    ConfigError too, if no socket can be made; the lease was given back then (not with `keep`).
    """
    try:
        mine = ready or Ready(guard, lease.belief.policy.ttl)
    except BaseException:
        if not keep:
            give_back(lease, undo_slot=True)
        raise
    with mine:
        mine.socket.lease = lease
        environment = child_environment(
            os.environ,
            name=lease.name,
            holder=lease.holder,
            term=lease.fencing_token,
            slot=lease.belief.slot,
            share_store=command.share_store,
            socket=mine.socket.path,
        )
        return supervise(
            lease,
            command.words,
            environment,
            signals,
            guard,
            stop_on=stop_on,
            report=report,
            listeners=(mine.socket, *listeners),
            launch=mine.launch,
            keep=keep,
        )


def supervise(
    lease: Lease,
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: Signals,
    guard: Guard,
    *,
    stop_on: Collection[int] = frozenset(),
    report: Callable[[Course], None] | None = None,
    listeners: Sequence[Listener] = (),
    launch: Launch | None = None,
    keep: bool = False,
) -> Ending:
    """Run `command` to its end, or to the end of the lease, and give the lease back.

    `stop_on`: signals that end the term in order: CMD gets them, and KILL after the grace. `report`
    is called with each phase, the first included, and after the signal to leave. `launch`: the
    process that was forked for this term. `keep`: the caller gives the lease back, and may use it
    until then; only survivors of KILL still end its renewal. Raises CannotStart or GuardFault; then
    nothing ran, and lease and slot were given back at once (not with `keep`).
    """
    began = clock.now()
    if cause := lease.belief.proof.verdict(began):
        if not keep:
            give_back(lease, undo_slot=True)
        return Ending(cause, None, 0.0)
    signals.follow_the_job()
    try:
        if launch is None or launch.broken:
            launch = new_launch(guard, lease.belief.policy.ttl)
        child = _begin(lease, command, environment, launch)
    except (CannotStart, GuardFault):
        if not keep:
            give_back(lease, undo_slot=True)
        raise
    watcher = _Watch(lease, child, signals, guard, frozenset(stop_on), report, listeners)
    ending = watcher.end(began)
    if keep or ending.survivors:
        return ending
    return release_after(lease, ending)


def release_after(lease: Lease, ending: Ending) -> Ending:
    """Give the lease back. Returns `ending` with what the release showed."""
    proved = lease.valid
    confirmed = give_back(lease)
    # A lease that ran out only after CMD had ended was not outlived.
    outlived = proved and not confirmed and not ending.cause and lease.lost
    lost = lease.belief.proof.lost if outlived else ""
    return replace(ending, confirmed=confirmed, cause=ending.cause or lost, outlived=outlived)


def _begin(
    lease: Lease, command: Sequence[str], environment: Mapping[str, str], launch: Launch
) -> Child:
    cover = launch.cover

    def prove() -> None:
        cover.prove(kill_at(lease.belief.proof))

    try:
        prove()
        lease.belief.follow(prove)
        return Child(command, environment, find_terminal(), launch)
    except BaseException:
        launch.end()
        cover.end()
        raise


class _Watch:
    """The loop of one term: decide, act, wait, until nothing of the command is left."""

    def __init__(
        self,
        lease: Lease,
        child: Child,
        signals: Signals,
        guard: Guard,
        stop_on: frozenset[int],
        report: Callable[[Course], None] | None,
        listeners: Sequence[Listener],
    ) -> None:
        self._lease = lease
        self._child = child
        self._signals = signals
        self._guard = guard
        self._stop_on = stop_on
        self._report = report
        self._listeners = {listener.fd: listener for listener in listeners}
        self._grace = lease.belief.policy.grace
        self._course = Course()
        self._stop_signal: int = signal.SIGTERM
        self._waiter = Waiter()
        lease.belief.watch(signals.wake)

    def end(self, began: float) -> Ending:
        try:
            left_over = self._follow()
            survivors = self._survivors() if left_over else ()
        finally:
            # A defect of ours must not leave CMD behind: the lease would not cover it.
            if self._course.phase is not Phase.KILLED and self._child.tree_lives():
                self._child.tree.kill()
            self._waiter.close()
            self._child.close()
        seconds = clock.now() - began
        status, cause, leaving = self._child.status, self._course.cause, self._course.leaving
        if left_over:
            self._lease.belief.abandon()
        return Ending(cause, status, seconds, False, survivors, leaving)

    def _follow(self) -> bool:
        """Run the loop; whether something outlives even KILL."""
        self._report_course()
        while True:
            self._child.look()
            step = decide(
                self._course,
                clock.now(),
                self._lease.belief.proof,
                self._grace,
                child=self._child.status is None,
                tree=self._child.tree_lives(),
                guarded=self._guarded(),
            )
            before, self._course = self._course, step.course
            if step.course.phase is not before.phase:
                self._report_course()
            if step.action in (Action.LEAVE, Action.GIVE_UP):
                return step.action is Action.GIVE_UP
            self._do(step.action, step.wake)

    def _report_course(self) -> None:
        if self._report is not None:
            self._report(self._course)

    def _guarded(self) -> bool:
        # The tree dies with the guard, and its end may be seen first.
        killed = self._child.status == 128 + signal.SIGKILL and not self._course.cause
        return self._guard.alive(_DEATH_WITHIN if killed else 0.0)

    def _do(self, action: Action, wake: float) -> None:
        match action:
            case Action.TERM:
                # A stopped process takes TERM only once it goes on.
                self._child.signal_tree(self._stop_signal, signal.SIGCONT)
            case Action.KILL:
                self._child.tree.kill()
            case _:
                self._wait(wake)
                self._heed(self._signals.take())

    def _wait(self, until: float) -> None:
        watched: list[int] = []
        if self._child.status is not None:
            # CMD's own end, or a stop, comes as SIGCHLD.
            members = self._child.tree.members()
            watched = pidfds((members or ())[:_WATCHED_MOST])
            if not watched:
                until = min(until, clock.now() + _LOOK_EVERY)
        guard = (self._guard.fd,) if self._guard.alive() and self._guard.fd >= 0 else ()
        try:
            fds = (self._signals.fd, *guard, *self._listeners, *watched)
            ready = self._waiter.wait(fds, until)
        finally:
            for fd in watched:
                os.close(fd)
        for fd in ready & self._listeners.keys():
            self._listeners[fd].ready()

    def _heed(self, signums: list[int]) -> None:
        for signum in signums:
            if signum in self._stop_on:
                self._leave(signum)
            else:
                self._pass_on(signum)

    def _leave(self, signum: int) -> None:
        stopping = bool(self._course.cause)
        self._course = asked_to_leave(self._course, signal.Signals(signum).name)
        if self._course.phase is not Phase.RUNNING:
            # Otherwise the next step reports, with the phase that it begins.
            self._report_course()
        if stopping:
            self._pass_on(signum)
        else:
            self._stop_signal = signum

    def _pass_on(self, signum: int) -> None:
        if signum == signal.SIGCONT or (signum == signal.SIGTSTP and self._child.stopped):
            self._child.resume()
        elif signum == signal.SIGCHLD:
            self._child.tree.reap()
        else:
            self._child.tree.signal_group(signum)
            if self._child.stopped and signum in _TERMINATING:
                self._child.tree.signal_group(signal.SIGCONT)

    def _survivors(self) -> tuple[int, ...]:
        return tuple(self._child.tree.members() or (self._child.pid,))
