"""A candidate that runs for ever: wait for the lease, lead, release, back off, wait again.

CMD runs during each term. Each change prints a line. The first part, what follows a term, is pure.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from incumbent import clock
from incumbent.chance import draw_jitter
from incumbent.durations import backoff_delay, say_seconds
from incumbent.errors import ConfigError, StoreError
from incumbent.locks.leases import Lease
from incumbent.model import Refused
from incumbent.rules.endings import TermEnding
from incumbent.serve.situation import Situation
from incumbent.supervise.candidate import CandidateLock
from incumbent.supervise.child import CannotStart
from incumbent.supervise.codes import FAULT, LOST, OK, TOO_LONG
from incumbent.supervise.endings import EndingsWriter, lost_in_words, not_started, term_ending
from incumbent.supervise.guarding import Guard, GuardFault
from incumbent.supervise.kernel import DescriptorWaiter
from incumbent.supervise.launch import PreparedCommand
from incumbent.supervise.plan import Phase, Progress
from incumbent.supervise.run import Command, Ending, outlives_kill, supervise
from incumbent.supervise.signals import Interrupted, Signals, find_terminal

if TYPE_CHECKING:
    from incumbent.supervise.news import TermNews

ENDING_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that begin an orderly stop; other signals are for CMD alone."""

# Seconds: a longer pause between terms is worth a line.
_SAID_FROM = 1.0
# Seconds of the first and of the longest pause between terms.
_BASE, _CAP = 0.5, 30.0
# The reason of LeaseLost after `resign`, `transfer` and `break`.
_ASKED_TO_STOP: Final = "broken"
# Seconds beyond one ttl for which the loop may be silent: a request and its backoff.
_SLACK = 10.0
# Seconds that CMD may take to stop before the record says "stopping".
#
# If it stops sooner, the release is news enough.
_SHOWN_AFTER = 0.1


# -- what follows a term -------------------------------------------------------------------------


class Restart(Enum):
    """When the instance stands by again after CMD has ended."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


def restart_from(text: str | None) -> Restart:
    """The value of `--restart`. Raises ConfigError."""
    try:
        return Restart(text or "always")
    except ValueError:
        raise ConfigError(
            f"restart={text!r}: always, on-failure or never", name="restart"
        ) from None


def code_of_signal(signum: int) -> int:
    """The exit code after a signal: 0 for TERM, the signal that stops services."""
    return OK if signum == signal.SIGTERM else 128 + signum


def exit_after(restart: Restart, ending: Ending, *, at_keyboard: bool = False) -> int | None:
    """The exit code after a term; None: stand by again.

    `at_keyboard`: CMD had the terminal, so a ^C reached CMD and not us; we exit all the same.
    """
    kind, _, cause_signal = ending.cause.partition(":")
    # Survivors of KILL, or a dead guard, forbid another term. If a signal ended this one, none
    # follows: the code is the signal's, and the term's line names the survivors.
    if kind != "signal" and (ending.survivors or kind == "guard"):
        return FAULT
    # A signal may also arrive while the term is ending for another reason.
    if signal_name := cause_signal or ending.leaving:
        return code_of_signal(signal.Signals[signal_name])
    ended_by_itself = ending.outlived or not ending.cause
    if ended_by_itself and at_keyboard and ending.status == 128 + signal.SIGINT:
        return ending.status
    match restart:
        case Restart.ALWAYS:
            return None
        case Restart.ON_FAILURE:
            return OK if not ending.cause and ending.status == 0 else None
        case Restart.NEVER:
            return _code_of_only_term(ending, ended_by_itself=ended_by_itself)


def _code_of_only_term(ending: Ending, *, ended_by_itself: bool) -> int:
    if ending.cause == "at_most_for":
        return TOO_LONG
    if ended_by_itself and ending.status:
        # CMD's own failure is not masked.
        return ending.status
    return LOST if ending.cause else OK


class Backoff:
    """Growing pauses between terms or starts; a term longer than `healthy` seconds resets them."""

    def __init__(self, healthy: float) -> None:
        self._healthy = healthy
        self._tries = 0

    def after(self, seconds: float, jitter: float, *, cause: str = "") -> float:
        """Seconds to wait after a term of `seconds`; `jitter` is uniform in [0, 1)."""
        if seconds > self._healthy:
            self._tries = 0
        if cause == "paused":
            # No back-off: while the name is paused, every take is refused anyway.
            return 0.0
        if cause == _ASKED_TO_STOP:
            # Never 0: the others learn of the release only now, and the lease was meant for them.
            return _BASE + backoff_delay(0, jitter, base=_BASE)
        delay = backoff_delay(self._tries, jitter, base=_BASE, cap=_CAP)
        self._tries += 1
        return delay


# -- the campaign --------------------------------------------------------------------------------


@dataclass(eq=False)
class Campaign:
    """One instance's campaign, in the main thread. `say` gets one line at each change."""

    lock: CandidateLock
    command: Command
    restart: Restart
    signals: Signals
    guard: Guard
    situation: Situation
    say: Callable[[str], None]
    news: TermNews | None = None

    def __post_init__(self) -> None:
        self._ttl = self.lock.policy.ttl
        self._backoff = Backoff(self._ttl)
        self._endings = EndingsWriter()
        self._last_line = ""
        self._answered = False
        self._is_away = False
        self._ready: PreparedCommand | None = None

    def run(self) -> int:
        """Campaign until a signal or `--restart` ends it; returns the exit code.

        Raises StoreError if there is a permanent error before the store's first answer, ConfigError
        if there is no folder for a term's socket.
        """
        try:
            return self._campaign()
        finally:
            self._discard()

    def _campaign(self) -> int:
        # From the start, because SIGCHLD shows the guard's death while standing by.
        self.signals.watch_the_job()
        while self.guard.alive():
            try:
                lease = self._stand_by()
                code = self._term(lease)
            except Interrupted as interrupt:
                code = self._handle_signal(interrupt.signum)
            except CannotStart as error:
                self.say(str(error))
                return error.code
            except GuardFault as error:
                self.say(f"{error}: no command may run any more")
                return FAULT
            except StoreError as error:
                code = self._wait_out(error)
            if code is not None:
                return code
        self.say("the guard is dead: no command may run any more")
        return FAULT

    # -- standing by -------------------------------------------------------------------------

    def _stand_by(self) -> Lease:
        self._report_alive()
        for signum in self.signals.take():
            if signum in ENDING_SIGNALS:
                raise Interrupted(signum)
        if self._ready is None or self._ready.broken:
            # Prepare all that does not depend on the lease, so that the hand-over is shorter.
            self._discard()
            self._ready = PreparedCommand(self.guard, self._ttl)
        with self.signals.interrupting():
            return self.lock.stand(self._meta(), self._on_refusal)

    def _discard(self) -> None:
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    def _on_refusal(self, answer: Refused | StoreError) -> None:
        """Note a refusal, or an error of the store, while standing by."""
        self._report_alive()
        leader = self.situation.note_outcome(answer)
        if isinstance(answer, StoreError):
            self._is_away = True
            return
        line = f"standing by: {_describe_refusal(answer.reason, leader)}"
        if self._is_away and self._answered:
            # Worth a line, because the last line reported an outage.
            self.say(f"the store answers again; {line}")
        elif line != self._last_line:
            self.say(line)
        self._answered, self._is_away, self._last_line = True, False, line

    def _handle_signal(self, signum: int) -> int | None:
        if signum in ENDING_SIGNALS:
            self.situation.note_stopping()
            self.say(f"{signal.Signals(signum).name}: ends")
            return code_of_signal(signum)
        if signum == signal.SIGTSTP:
            # Our handler is for ^Z while CMD runs; now only this process has to stop.
            os.kill(os.getpid(), signal.SIGSTOP)
        return None

    def _wait_out(self, error: StoreError) -> int | None:
        """Wait out a permanent error: a store that answered before may be being set up anew."""
        if not self._answered:
            raise error
        self.situation.note_unanswered()
        self.lock.log_outage(error)
        return self._back_off(self._backoff.after(0.0, draw_jitter()))

    # -- leading -----------------------------------------------------------------------------

    def _term(self, lease: Lease) -> int | None:
        self._answered, self._is_away = True, False
        self._last_line = ""
        self.say(f"leading, term {lease.fencing_token}")
        self.situation.note_leading(lease)
        if self.news is not None:
            self.news.elected(lease)
        had_terminal = find_terminal() is not None
        # Handed over: `supervise` closes it, however the term ends.
        ready, self._ready = self._ready, None
        try:
            ending = supervise(
                lease,
                self.command,
                self.signals,
                self.guard,
                stop_on=ENDING_SIGNALS,
                report=lambda progress: self._report(lease, progress),
                # The instance is healthy only while the loop turns.
                turned=self._report_alive,
                ready=ready,
            )
        except CannotStart as error:
            self._end(lease, not_started(lease, error))
            raise
        entry = term_ending(lease, ending)
        self.situation.note_ended(ending.cause, failed=entry.failed)
        self.say(f"term {lease.fencing_token} ended: {_describe_end(lease, ending)}")
        self._end(lease, entry)
        code = exit_after(self.restart, ending, at_keyboard=had_terminal)
        if code is None:
            pause = self._backoff.after(ending.seconds, draw_jitter(), cause=ending.cause)
            if pause >= _SAID_FROM:
                self.say(f"stands by again in {say_seconds(pause)}, after a short term")
            code = self._back_off(pause)
            self.situation.note_restarted()
        return code

    def _end(self, lease: Lease, entry: TermEnding) -> None:
        self._endings.write(lease, entry)
        if self.news is not None:
            # After the record: whether the name flaps is read from there.
            self.news.ended(lease, entry)

    def _report(self, lease: Lease, progress: Progress) -> None:
        if progress.leaving:
            self.situation.note_stopping()
        if self.news is not None:
            self.news.command_runs(self.situation, runs=progress.phase is Phase.RUNNING)
        if progress.phase in (Phase.ENDING, Phase.STOPPING):
            lease.belief.proclaim(self._meta(state="stopping"), after=_SHOWN_AFTER)

    def _meta(self, **more: str) -> bytes:
        """The metadata with the facts about this process that `status` shows."""
        facts = {"isolation": self.guard.isolation, "host": os.uname().nodename}
        metadata = json.dumps({**facts, "pid": os.getpid(), **more}).encode()
        return self.lock.ranked(metadata)

    # -- between terms -----------------------------------------------------------------------

    def _back_off(self, seconds: float) -> int | None:
        """Wait; a signal that ends the campaign ends the wait too, and yields the exit code."""
        until = clock.now() + seconds
        self.situation.note_backing_off()
        self._report_alive(seconds)
        with closing(DescriptorWaiter()) as waiter:
            while clock.now() < until:
                waiter.wait((self.signals.fd,), until)
                for signum in self.signals.take():
                    if (code := self._handle_signal(signum)) is not None:
                        return code
        return None

    def _report_alive(self, more: float = 0.0) -> None:
        """Tell the health page that the loop turns, and by when it will turn again."""
        self.situation.pulse(clock.now() + self._ttl + _SLACK + more)


def _describe_refusal(reason: str, leader: str | None) -> str:
    match reason:
        case "paused":
            return "paused, until it is unpaused"
        case "closed":
            return "closed for a while by --at-least-for"
        case "reserved":
            return f"reserved for {leader or 'another'}"
        case "turn":
            return f"the turn of {leader or 'another'}, first in line"
        case _:
            return f"held by {leader or 'another'}"


def _describe_end(lease: Lease, ending: Ending) -> str:
    after = f"after {say_seconds(ending.seconds)}"
    kind, _, signal_name = ending.cause.partition(":")
    if ending.survivors:
        return outlives_kill(ending)
    if not kind:
        unconfirmed = "" if ending.confirmed else "; the store did not confirm the release"
        return f"CMD ended with {ending.status} {after}{unconfirmed}"
    if kind == "guard":
        return f"the guard is dead; CMD was stopped {after}"
    return f"{signal_name if kind == 'signal' else lost_in_words(lease, kind)} {after}"
