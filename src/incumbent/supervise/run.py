"""Runs a command under a lease: TERM, then KILL, end it while the lease is still proved.

    supervisor --- CMD --- its children ...
        |           :
      guard ------ init of CMD's PID namespace

The supervisor follows the lease and ends CMD's tree. If the supervisor is dead or frozen,
the guard (`guarding`) kills the tree at the latest deadline that it received. docs/supervision.md
says what that guarantees under each isolation; if supervisor *and* guard are frozen, nothing kills.
The lease is renewed as long as any process of the tree lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Final

from incumbent import clock
from incumbent.locks.leases import Lease, release_unless_lost
from incumbent.supervise.child import Child
from incumbent.supervise.guarding import Guard
from incumbent.supervise.kernel import DescriptorWaiter, pidfds
from incumbent.supervise.launch import LeaseSocket, PreparedCommand, child_environment
from incumbent.supervise.plan import Action, Phase, Progress, asked_to_leave, decide, kill_at
from incumbent.supervise.signals import Signals, find_terminal

_TERMINATING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_CHECK_EVERY: Final = 0.02
"""Seconds between two checks of processes that the system does not list."""
# Each is a descriptor, and the end of any one is enough to look at all of them again.
_WATCHED_MOST: Final = 64
_DEATH_WITHIN: Final = 0.02
"""Seconds by which the guard's death may become visible later than the tree's, which it causes."""


@dataclass(frozen=True, slots=True)
class Command:
    """CMD and its arguments. `share_store`: the URL of the store, if CMD may use it.

    `environ`: the environment to which the lease's variables are added, by default ours. `slot`:
    the slot in CMD's environment, by default the lease's.
    """

    words: Sequence[str]
    share_store: str | None = None
    environ: Mapping[str, str] | None = None
    slot: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a term. `cause`: why CMD was stopped, or empty; `status`: CMD's exit code, if any.

    A cause is a reason of the lease ("expired", "taken", ...), "at_most_for", "signal:SIGTERM" for
    one of `stop_on`, or "guard": the guard was dead.

    `survivors`: processes that even KILL did not end; then the lease was not given back.
    `confirmed`: whether the store confirmed the release. `leaving`: the first signal of `stop_on`,
    also after another cause; empty for none. `outlived`: CMD ended by itself, but the release found
    that the lease had been lost before, which then is the cause; or the ledger could not be written
    under the lease.
    """

    cause: str
    status: int | None
    seconds: float
    confirmed: bool = False
    survivors: tuple[int, ...] = ()
    leaving: str = ""
    outlived: bool = False


def supervise(
    lease: Lease,
    command: Command,
    signals: Signals,
    guard: Guard,
    *,
    stop_on: Collection[int] = frozenset(),
    report: Callable[[Progress], object] = lambda _: None,
    turned: Callable[[], object] = lambda: None,
    ready: PreparedCommand | None = None,
    keep: bool = False,
) -> Ending:
    """Run `command` to its end, or to the end of the lease, and give the lease back.

    `stop_on`: signals that end the term: CMD gets them, and KILL after the grace. `report`
    is called with the progress in each phase, also the first, and after a signal to leave; `turned`
    at every turn of the loop, at least once a ttl. `ready`: the prepared CMD, made now if missing;
    closed at the end. `keep`: the caller gives the lease back, and may use it until then; only
    survivors of KILL still end its renewal. Raises CannotStart, GuardFault, or (without a socket)
    ConfigError; then nothing ran, and without `keep` lease and slot were given back.
    """
    began = clock.now()
    with ExitStack() as term:
        prepared = None if ready is None else term.enter_context(closing(ready))
        if cause := lease.belief.proof.verdict(began):
            if not keep:
                release_unless_lost(lease, undo_slot=True)
            return Ending(cause, None, 0.0)
        signals.watch_the_job()
        try:
            if prepared is None or prepared.broken:
                # Close the broken term first, because the guard watches only one.
                term.close()
                prepared = term.enter_context(
                    closing(PreparedCommand(guard, lease.belief.policy.ttl))
                )
            child = _begin(lease, command, prepared)
        except BaseException:
            # The process that waits to become CMD ends before another can have the lease.
            term.close()
            if not keep:
                release_unless_lost(lease, undo_slot=True)
            raise
        watch = _TermLoop(lease, child, signals, guard, stop_on, report, turned, prepared.socket)
        ending = watch.end(began)
        return ending if keep or ending.survivors else release_after(lease, ending)


def outlives_kill(ending: Ending) -> str:
    """The message about the survivors of KILL."""
    pids = ", ".join(map(str, ending.survivors))
    return f"not even KILL ended {pids}; the lease is not given back, its ttl ends it"


def release_after(lease: Lease, ending: Ending) -> Ending:
    """Give the lease back; returns `ending` with the result of the release."""
    # Read before the release, which ends belief whatever the store says.
    proved = lease.valid
    confirmed = release_unless_lost(lease)
    # If the lease ran out only after CMD had ended, CMD did not outlive it.
    outlived = proved and not confirmed and not ending.cause and lease.lost
    lost = lease.belief.proof.lost_reason if outlived else ""
    return replace(ending, confirmed=confirmed, cause=ending.cause or lost, outlived=outlived)


def _begin(lease: Lease, command: Command, ready: PreparedCommand) -> Child:
    def prove() -> None:
        ready.prove(kill_at(lease.belief.proof))

    # The first proof before the process asks: the guard answers BORN only if it has a deadline.
    # Then `watch_renewals`, which sends each later one.
    prove()
    lease.belief.watch_renewals(prove)
    # Before CMD runs: its first question must get an answer.
    ready.socket.lease = lease
    facts = {
        "NAME": lease.name,
        "HOLDER": lease.holder,
        "TERM": str(lease.fencing_token),
        "SLOT": command.slot or lease.belief.slot,
        "SOCKET": ready.socket.path,
    }
    environ = os.environ if command.environ is None else command.environ
    environment = child_environment(environ, command.share_store, facts)
    return Child(command.words, environment, find_terminal(), ready)


@dataclass(slots=True)
class _TermLoop:
    """The loop of one term: decide, act, wait, until no process of the command is left."""

    lease: Lease
    child: Child
    signals: Signals
    guard: Guard
    stop_on: Collection[int]
    report: Callable[[Progress], object]
    turned: Callable[[], object]
    socket: LeaseSocket
    progress: Progress = field(default_factory=Progress)
    stop_signal: int = signal.SIGTERM
    waiter: DescriptorWaiter = field(default_factory=DescriptorWaiter)

    def end(self, began: float) -> Ending:
        try:
            left_over = self._follow()
            # Listed before the guard forgets the term.
            survivors = tuple(self.child.members() or (self.child.pid,)) if left_over else ()
        finally:
            # A defect of ours must not leave CMD running: the lease would not cover it.
            if self.progress.phase is not Phase.KILLED and self.child.tree_lives():
                self.child.kill()
            self.waiter.close()
            self.child.close()
        seconds = clock.now() - began
        # Neither renewed nor given back: what survived KILL may still write.
        if left_over:
            self.lease.belief.leave_to_ttl()
        cause, leaving, status = self.progress.cause, self.progress.leaving, self.child.status
        return Ending(cause, status, seconds, survivors=survivors, leaving=leaving)

    def _follow(self) -> bool:
        """Run the loop; returns whether a process outlives even KILL."""
        # Before the first look: a loss between look and wait must end the wait.
        self.lease.belief.watch(self.signals.wake)
        self.report(self.progress)
        while True:
            self.turned()
            # CMD before its tree: the tree is empty only once CMD was waited for.
            self.child.poll()
            # The tree dies with the guard, and its death may be seen first.
            killed = self.child.status == 128 + signal.SIGKILL and not self.progress.cause
            step = decide(
                self.progress,
                clock.now(),
                self.lease.belief.proof,
                self.lease.belief.policy.grace,
                child=self.child.status is None,
                tree=self.child.tree_lives(),
                guarded=self.guard.alive(_DEATH_WITHIN if killed else 0.0),
            )
            before, self.progress = self.progress, step.progress
            if step.progress.phase is not before.phase:
                self.report(self.progress)
            match step.action:
                case Action.LEAVE | Action.GIVE_UP:
                    return step.action is Action.GIVE_UP
                case Action.TERM:
                    # A stopped process takes TERM only after CONT.
                    self.child.signal_tree(self.stop_signal, signal.SIGCONT)
                case Action.KILL:
                    self.child.kill()
                case Action.WAIT:
                    self._wait(step.wake)
                    self._heed(self.signals.take())

    def _wait(self, until: float) -> None:
        watched: list[int] = []
        if self.child.status is not None:
            # Only for descendants: CMD's own end, or a stop, is reported by SIGCHLD.
            watched = pidfds((self.child.members() or ())[:_WATCHED_MOST])
            if not watched:
                until = min(until, clock.now() + _CHECK_EVERY)
        # The descriptor of a dead guard stays readable: with it no wait would block.
        guard = (self.guard.fd,) if self.guard.fd >= 0 and self.guard.alive() else ()
        try:
            ready = self.waiter.wait((self.signals.fd, *guard, self.socket.fd, *watched), until)
        finally:
            for fd in watched:
                os.close(fd)
        if self.socket.fd in ready:
            self.socket.ready()

    def _heed(self, signums: list[int]) -> None:
        for signum in signums:
            if signum not in self.stop_on:
                self._pass_on(signum)
                continue
            stopping = bool(self.progress.cause)
            self.progress = asked_to_leave(self.progress, signal.Signals(signum).name)
            if self.progress.phase is not Phase.RUNNING:
                # In RUNNING the next step begins a phase, and reports then.
                self.report(self.progress)
            if stopping:
                self._pass_on(signum)
            else:
                self.stop_signal = signum

    def _pass_on(self, signum: int) -> None:
        if signum == signal.SIGCONT or (signum == signal.SIGTSTP and self.child.stopped):
            self.child.resume()
        elif signum == signal.SIGCHLD:
            self.child.reap()
        else:
            self.child.signal_group(signum)
            if self.child.stopped and signum in _TERMINATING:
                self.child.signal_group(signal.SIGCONT)
