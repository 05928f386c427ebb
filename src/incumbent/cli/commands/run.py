"""`run`: take the lease, run CMD once, give it back."""

from __future__ import annotations

from signal import Signals as SignalName
from typing import Protocol

from incumbent import clock
from incumbent.cli.parser import Request
from incumbent.cli.settings import lock_settings, number
from incumbent.cli.text import busy, fault_line, say
from incumbent.cli.verdict import Verdict, check_result_file, write_result
from incumbent.durations import parse_duration, say_seconds
from incumbent.errors import ConfigError, Misuse, NotAcquired, StoreError
from incumbent.locks import Lease, Lock
from incumbent.options import default_holder, require
from incumbent.protocol.link import link_for
from incumbent.protocol.words import lease_lost
from incumbent.store_url import store_url
from incumbent.supervise import codes
from incumbent.supervise.child import CannotStart
from incumbent.supervise.guarding import Guard, GuardFault, start_guard
from incumbent.supervise.run import Command, Ending, supervise
from incumbent.supervise.signals import Interrupted, Signals

__all__ = ["command"]

_HINT_BELOW = 1.0
"""Seconds; instances of a fleet that start further apart than that would each run the job."""


class _Supervised(Protocol):
    def __call__(self, *, keep: bool) -> tuple[Verdict, Ending | None]: ...


def command(request: Request) -> int:
    """See the module."""
    result_file = request.text("result_file")
    if result_file:
        check_result_file(result_file)
    verdict = _verdict(request)
    if verdict.line:
        # A refused setting may be the name itself, of any length.
        say(verdict.line if verdict.outcome == "refused" else f"{request.name}: {verdict.line}")
    if result_file:
        holder = request.text("holder") or default_holder()
        write_result(result_file, verdict, request.name, holder)
    return verdict.code


def _verdict(request: Request) -> Verdict:
    try:
        return _run(request)
    except (ConfigError, Misuse) as error:
        return Verdict("refused", codes.USAGE, str(error), reason=str(error))
    except StoreError as error:
        line = f"the store could not be proved, nothing ran: {error}"
        return Verdict("unproved", codes.UNPROVED, line, reason=str(error))
    except Exception as error:  # noqa: BLE001 - a defect of ours has an exit code too
        line = fault_line(error)
        return Verdict("fault", codes.FAULT, line, reason=line)


def _run(request: Request) -> Verdict:
    busy_code = _busy_code(request)
    timeout = _timeout(request)
    url = store_url(request.text("store"))
    # The guard is a fork: before any thread, and before a connection that it would keep open.
    with start_guard(request.text("isolate") or "auto") as guard, Signals() as signals:
        try:
            with signals.interrupting():
                lease = _lock(request, url).acquire(timeout)
        except NotAcquired as error:
            return _busy(error, busy_code)
        except Interrupted as signal:
            return _interrupted(signal)
        command = Command(request.words, url if request.on("share_store") else None)
        return _hold(request, command, lease, signals, guard)


# -- settings ------------------------------------------------------------------------------------


def _lock(request: Request, url: str) -> Lock:
    settings = lock_settings(request)
    lock = Lock(request.name, store=url, namespace=request.namespace, **settings)
    if _on_record(request):
        require(link_for(url).engine.capabilities, "once_per", "slots", "fields")
    return lock


def _timeout(request: Request) -> float | None:
    wait = request.text("wait")
    if wait is None:
        return 0.0
    return parse_duration(wait, "wait") if wait else None


def _busy_code(request: Request) -> int:
    code = number(request, "busy_exit_code", 0, 255)
    return codes.BUSY if code is None else code


# -- what came of it -----------------------------------------------------------------------------


def _busy(error: NotAcquired, code: int) -> Verdict:
    line = f"skipped: {busy(error)}"
    return Verdict("skipped", code, line, held_by=error.held_by, reason=error.reason)


def _interrupted(signal: Interrupted) -> Verdict:
    name = SignalName(signal.signum).name
    line = f"{name} while waiting for the lease; nothing ran"
    return Verdict("interrupted", 128 + signal.signum, line, reason=name)


def _hold(
    request: Request, command: Command, lease: Lease, signals: Signals, guard: Guard
) -> Verdict:
    term, started = lease.fencing_token, clock.wall()
    if request.on("verbose"):
        say(f"{request.name}: acquired, term {term}")

    def supervised(*, keep: bool) -> tuple[Verdict, Ending | None]:
        try:
            ending = supervise(lease, command, signals, guard, keep=keep)
        except CannotStart as error:
            return Verdict("not_started", error.code, str(error), reason=str(error)), None
        except GuardFault as error:
            return Verdict("fault", codes.FAULT, f"{error}; nothing ran", reason="guard"), None
        return _ended(request, ending), ending

    if _on_record(request):
        verdict = _hold_on_record(request, lease, supervised)
    else:
        verdict, _ = supervised(keep=False)
    return verdict.during(term, started, clock.wall())


def _on_record(request: Request) -> bool:
    return request.text("once_per") is not None or request.text("slot") is not None


def _hold_on_record(request: Request, lease: Lease, supervised: _Supervised) -> Verdict:
    """The same for a slot: the ledger has its beginning before CMD starts, and then its end."""
    from incumbent.cli.once_record import begin, end, on_record_already

    once = begin(request, lease)
    if once is None:
        return on_record_already(lease, _busy_code(request))
    verdict, ending = supervised(keep=True)
    ending = end(once, lease, ending, verdict)
    return _ended(request, ending) if ending is not None and ending.outlived else verdict


def _ended(request: Request, ending: Ending) -> Verdict:
    if ending.survivors:
        pids = ", ".join(map(str, ending.survivors))
        line = f"not even KILL ended {pids}; the lease is not given back, its ttl ends it"
        return Verdict("fault", codes.FAULT, line, reason=ending.cause or "survivors")
    if ending.outlived and ending.status:
        # CMD's own failure is not masked.
        return Verdict("ended", ending.status, _lost_line(request, ending), reason=ending.cause)
    if ending.cause:
        return _stopped(request, ending)
    if request.on("verbose"):
        how = "released" if ending.confirmed else "let go, the store did not confirm it,"
        how = "ended" if _on_record(request) else how
        say(f"{request.name}: {how} after {say_seconds(ending.seconds)}")
    status = ending.status or 0
    return Verdict("ended", status, _hint(request, ending) if status == 0 else "")


def _stopped(request: Request, ending: Ending) -> Verdict:
    after = f"stopped after {say_seconds(ending.seconds)}"
    if ending.cause == "at_most_for":
        line = f"reached --at-most-for, {after}"
        return Verdict("at_most_for", codes.TOO_LONG, line, reason=ending.cause)
    if ending.cause == "guard":
        return Verdict("fault", codes.FAULT, f"the guard is dead; {after}", reason=ending.cause)
    return Verdict("lost", codes.LOST, _lost_line(request, ending), reason=ending.cause)


def _lost_line(request: Request, ending: Ending) -> str:
    how = "CMD ended" if ending.outlived else "stopped"
    after = f"{how} after {say_seconds(ending.seconds)}"
    return f"{lease_lost(request.name, ending.cause)}; {after}"


def _hint(request: Request, ending: Ending) -> str:
    kept = _on_record(request) or request.text("at_least_for")
    if kept or request.on("quiet") or ending.seconds >= _HINT_BELOW:
        return ""
    return (
        f"held for only {say_seconds(ending.seconds)}: an instance that starts later runs it again;"
        " see --once-per and --at-least-for"
    )
