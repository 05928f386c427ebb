"""`run`: take the lease, run CMD once, give it back."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from math import inf
from signal import Signals as SignalName
from typing import TYPE_CHECKING

from incumbent import clock
from incumbent.cli.parser import CommandRequest
from incumbent.cli.settings import cmd_of, health, lock_settings, news_of, number
from incumbent.cli.text import announce_wait, as_json, fault_line, refusal_line, say, wait_line
from incumbent.durations import parse_duration, say_seconds, utc
from incumbent.errors import ConfigError, Misuse, NotAcquired, StoreError
from incumbent.locks.leases import Lease
from incumbent.locks.options import PERMITS_MOST, default_holder, require
from incumbent.model import Refused
from incumbent.protocol.messages import lease_lost
from incumbent.runtime.link import link_for
from incumbent.serve.situation import Situation
from incumbent.stores.url import store_url
from incumbent.supervise import codes
from incumbent.supervise.candidate import CandidateLock
from incumbent.supervise.child import CannotStart
from incumbent.supervise.endings import EndingsWriter, not_started, term_ending
from incumbent.supervise.guarding import Guard, GuardFault, start_guard
from incumbent.supervise.run import Command, Ending, outlives_kill, supervise
from incumbent.supervise.signals import Interrupted, Signals

if TYPE_CHECKING:
    from incumbent.cron.once import OnceRun
    from incumbent.supervise.news import TermNews

_SLACK = 10.0
"""Seconds beyond one ttl for which the loop may be silent: a request and its backoff."""
_HINT_BELOW = 1.0
"""Seconds: instances that start further apart than this would each run a shorter job."""


@dataclass(frozen=True, slots=True)
class _RunEnd:
    """The end of a `run`: the exit code, the line on stderr or "", and the result file's facts."""

    outcome: str
    code: int
    line: str = ""
    reason: str = ""
    held_by: str | None = None
    term: int | None = None
    started: float | None = None
    """An instant of the wall clock, as is `ended`."""
    ended: float | None = None


def command(request: CommandRequest) -> int:
    result_file = request.text("result_file")
    if result_file is not None:
        # Before anything runs: it must be possible to write the file at the end.
        writable = os.access(result_file, os.W_OK)
        if not _is_written_to(result_file):
            folder = os.path.dirname(os.path.realpath(result_file))  # noqa: PTH120 - pathlib costs start-up time
            writable = os.access(folder, os.W_OK | os.X_OK)
        if not result_file or os.path.isdir(result_file) or not writable:  # noqa: PTH112 - likewise
            text = f"result_file={result_file!r} cannot be written"
            raise ConfigError(text, name="result_file")
    run_end = _run_to_end(request)
    if run_end.line and not (run_end.outcome == "skipped" and request.on("quiet")):
        # The refused setting may be the name itself, which may have any length.
        say(run_end.line if run_end.outcome == "refused" else f"{request.name}: {run_end.line}")
    if result_file is not None:
        _write_result(result_file, run_end, request)
    return run_end.code


def _run_to_end(request: CommandRequest) -> _RunEnd:
    try:
        return _run(request)
    except (ConfigError, Misuse) as error:
        why = request.as_typed(str(error))
        return _RunEnd("refused", codes.USAGE, why, why)
    except StoreError as error:
        line = f"the store could not be proved, nothing ran: {error}"
        return _RunEnd("unproved", codes.UNPROVED, line, str(error))
    except GuardFault as error:
        # At its start: it was too slow, or is gone again.
        line = f"{error}; nothing ran, so try again, or look why this host is overloaded"
        return _RunEnd("fault", codes.FAULT, line, "guard")
    except Exception as error:  # noqa: BLE001 - a defect of ours has an exit code too
        return _RunEnd("fault", codes.FAULT, fault_line(error), fault_line(error))


def _run(request: CommandRequest) -> _RunEnd:
    busy_code = number(request, "busy_exit_code", 0, 255, codes.BUSY)
    wait = request.text("wait")
    if request.on("fair") and wait is None:
        raise ConfigError("--fair is an order of those that wait: add --wait", name="fair")
    # --wait without a duration waits for ever.
    timeout = 0.0 if wait is None else parse_duration(wait, "wait") if wait else None
    permits = _permits_of(request)
    news = news_of(request, lambda line: say(f"{request.name}: {line}"))
    url = store_url(request.text("store"))
    # The guard forks: start it before any thread, and before any connection, which it would keep
    # open.
    with start_guard(request.text_or("isolate", "auto")) as guard, Signals() as signals:
        settings = lock_settings(request)
        try:
            with signals.interrupting():
                lock = CandidateLock(
                    request.name,
                    permits=permits,
                    store=url,
                    namespace=request.namespace,
                    **settings,
                )
                if _is_recorded(request):
                    require(link_for(url).engine.capabilities, "once_per", "slots", "fields")
        except Interrupted as signal:
            return _interrupted(signal)
        situation = Situation(request.name, lock.holder, guard.isolation, ttl=lock.policy.ttl)
        run = _RunCommand(request, cmd_of(request, url), signals, guard, situation, busy_code, news)
        with health(request, situation), closing(news) if news else nullcontext():
            return run.wait_and_hold(lock, timeout)


def _permits_of(request: CommandRequest) -> int | None:
    if request.text("permits") is None:
        return None
    return number(request, "permits", 1, PERMITS_MOST, 1)


def _interrupted(signal: Interrupted) -> _RunEnd:
    name = SignalName(signal.signum).name
    line = f"{name} while waiting for the lease; nothing ran"
    return _RunEnd("interrupted", 128 + signal.signum, line, name)


@dataclass(frozen=True, slots=True)
class _RunCommand:
    request: CommandRequest
    cmd: Command
    signals: Signals
    guard: Guard
    situation: Situation
    busy_code: int
    news: TermNews | None

    def tell_begin(self) -> None:
        if self.news is not None:
            self.news.run_begins(self.request.name)

    def wait_and_hold(self, lock: CandidateLock, timeout: float | None) -> _RunEnd:
        """Take the lease within `timeout` seconds, and run CMD."""
        request = self.request

        def pulse() -> None:
            self.situation.pulse(clock.now() + lock.policy.ttl + _SLACK)

        last: Refused | StoreError | None = None

        def note_refusal(answer: Refused | StoreError) -> None:
            nonlocal last
            pulse()
            self.situation.note_outcome(answer)
            last = answer

        def what() -> str:
            return wait_line(last) if isinstance(last, Refused) else ""

        until = inf if timeout is None else clock.now() + timeout
        try:
            pulse()
            with self.signals.interrupting(), announce_wait(request, until, what):
                lease = lock.take(timeout, note_refusal)
        except NotAcquired as error:
            line = f"skipped: {refusal_line(error, _permits_of(request))}"
            return _RunEnd("skipped", self.busy_code, line, error.reason, error.held_by)
        except Interrupted as signal:
            return _interrupted(signal)
        if request.on("verbose"):
            say(f"{request.name}: acquired, term {lease.fencing_token}")
        # After the grant: the wait for it is no part of the run.
        started = clock.wall()
        self.situation.note_leading(lease)
        run_end = _run_under_lease(self, lease, pulse)
        self.situation.note_ended(run_end.reason if run_end.outcome == "lost" else "")
        run_end = replace(run_end, term=lease.fencing_token, started=started, ended=clock.wall())
        if self.news is not None and run_end.outcome != "skipped":
            kinds = {"at_most_for": "timed_out", "lost": "lost"}
            kind = kinds.get(run_end.outcome, "failed" if run_end.code else "")
            facts = {"namespace": request.namespace, **_facts(request, run_end)}
            self.news.run_ended(request.name, run_end.code, kind, facts)
        return run_end


# -- under the lease -------------------------------------------------------------------------------


def _run_under_lease(run: _RunCommand, lease: Lease, turned: Callable[[], None]) -> _RunEnd:
    """Run CMD. For a slot, record its start in the ledger before CMD starts, and then its end."""
    request, busy_code = run.request, run.busy_code
    once: OnceRun | None = None
    ending: Ending | None = None
    if _is_recorded(request):
        # Loaded only here: a run without a slot does not need it.
        from incumbent.cli.once_record import begin, release_recorded_slot

        once = begin(request.words, lease)
        if once is None:
            return _RunEnd("skipped", busy_code, release_recorded_slot(lease), "used")
    # Once the slot is ours for good: a dead man's switch must not hear of a start that was skipped.
    run.tell_begin()
    try:
        keep = once is not None
        ending = supervise(lease, run.cmd, run.signals, run.guard, keep=keep, turned=turned)
        run_end = _end_of(request, ending)
        if once is None:
            # After the release, which `supervise` has done: no hand-over waits for this record.
            EndingsWriter().write(lease, term_ending(lease, ending))
    except CannotStart as error:
        run_end = _RunEnd("not_started", error.code, str(error), str(error))
        if once is None:
            EndingsWriter().write(lease, not_started(lease, error))
    except GuardFault as error:
        run_end = _RunEnd("fault", codes.FAULT, f"{error}; nothing ran", "guard")
    except ConfigError as error:
        # CMD never started (see supervise), so the slot is given back at once.
        why = request.as_typed(str(error))
        run_end = _RunEnd("refused", codes.USAGE, why, why)
    if once is not None:
        from incumbent.cli.once_record import end

        ending = end(once, lease, ending, run_end.outcome, run_end.line)
        if ending is not None and ending.outlived:
            return _end_of(request, ending)
    return run_end


def _is_recorded(request: CommandRequest) -> bool:
    return request.text("once_per") is not None or request.text("slot") is not None


def _end_of(request: CommandRequest, ending: Ending) -> _RunEnd:
    after = f"after {say_seconds(ending.seconds)}"
    how = "CMD ended" if ending.outlived else "stopped"
    lost = f"{lease_lost(request.name, ending.cause)}; {how} {after}"
    if ending.survivors:
        return _RunEnd("fault", codes.FAULT, outlives_kill(ending), ending.cause or "survivors")
    if ending.outlived and ending.status:
        # CMD's own failure is not masked.
        return _RunEnd("ended", ending.status, lost, ending.cause)
    if ending.cause == "at_most_for":
        line = f"reached --at-most-for, stopped {after}"
        return _RunEnd("at_most_for", codes.TOO_LONG, line, ending.cause)
    if ending.cause == "guard":
        return _RunEnd("fault", codes.FAULT, f"the guard is dead; stopped {after}", ending.cause)
    if ending.cause:
        return _RunEnd("lost", codes.LOST, lost, ending.cause)
    if request.on("verbose"):
        how = "released" if ending.confirmed else "released (not confirmed by the store)"
        say(f"{request.name}: {'ended' if _is_recorded(request) else how} {after}")
    return _RunEnd("ended", ending.status or 0, _hint(request, ending))


def _hint(request: CommandRequest, ending: Ending) -> str:
    kept = _is_recorded(request) or request.text("at_least_for") or request.text("permits")
    if ending.status or kept or request.on("quiet") or ending.seconds >= _HINT_BELOW:
        return ""
    return (
        f"held for only {say_seconds(ending.seconds)}: an instance that starts later runs it again;"
        " see --once-per and --at-least-for"
    )


# -- the result file, and the message --------------------------------------------------------------


def _facts(request: CommandRequest, run_end: _RunEnd) -> dict[str, object]:
    return {
        "outcome": run_end.outcome,
        "exit_code": run_end.code,
        "name": request.name,
        "holder": request.text("holder") or default_holder(),
        "held_by": run_end.held_by,
        "term": run_end.term,
        "started": None if run_end.started is None else utc(run_end.started),
        "ended": None if run_end.ended is None else utc(run_end.ended),
        "reason": run_end.reason or None,
    }


def _is_written_to(path: str) -> bool:
    """Whether the result file is a device, a pipe or an open file: it is written, not replaced."""
    if os.path.isfile(path):  # noqa: PTH113 - pathlib costs start-up time
        return path.startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return os.path.exists(path)  # noqa: PTH110 - likewise


def _write_result(path: str, run_end: _RunEnd, request: CommandRequest) -> None:
    """Write the file whole or not at all: a reader never sees half of it."""
    from pathlib import Path

    text = as_json(request, _facts(request, run_end)) + "\n"
    try:
        if _is_written_to(path):
            # A pipe that nobody reads must not hold us.
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
            with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(text)
            return
        # The file that a symbolic link leads to is replaced, and not the link.
        target = Path(os.path.realpath(path))
        # Not named after the target, whose name may be as long as one can be.
        draft = target.with_name(f".incumbent.{os.getpid()}")
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(target)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        say(f"{request.name}: the result file {path} cannot be written: {error.strerror}")
