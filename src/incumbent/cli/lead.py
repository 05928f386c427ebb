"""`lead`: campaigns for ever, and runs CMD during each term.

`work`: starts N workers, each a `lead` of its own; at most M of them hold a lease at a time.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final, NoReturn

from incumbent import clock
from incumbent.chance import draw_jitter
from incumbent.cli.parser import CommandRequest
from incumbent.cli.settings import cmd_of, health, lock_settings, news_of, number, policy_of
from incumbent.cli.text import log_line, say
from incumbent.errors import ConfigError, StoreError
from incumbent.locks.clients import Client
from incumbent.locks.options import PRIORITY_MOST, default_holder
from incumbent.serve.situation import Situation
from incumbent.stores.names import make_key
from incumbent.stores.url import store_url
from incumbent.supervise.campaign import (
    ENDING_SIGNALS,
    Backoff,
    Campaign,
    code_of_signal,
    restart_from,
)
from incumbent.supervise.candidate import CandidateLock
from incumbent.supervise.codes import CANNOT_START, FAULT, OK, UNPROVED, USAGE, code_of
from incumbent.supervise.guarding import start_guard
from incumbent.supervise.kernel import DescriptorWaiter, die_with_parent
from incumbent.supervise.signals import FORWARDED, Signals

_MOST_WORKERS = 1000
_TURN_EVERY = 5.0
"""Seconds after which the loop turns even without an event, for the health page."""
_MEANT_TO_END: Final = frozenset({OK, USAGE, *CANNOT_START})
"""Exit codes after which another start would end the same way."""


def command(request: CommandRequest) -> int:
    if request.command == "work":
        return _work(request)
    return _lead(request, request.name, partial(health, request))


# -- lead ------------------------------------------------------------------------------------------


_Report = Callable[[Situation], AbstractContextManager[None]]
"""Reports a situation while its block runs."""


def _lead(request: CommandRequest, label: str, report: _Report) -> int:
    """Run one instance, and return its exit code; `label` stands before its log lines."""
    url = store_url(request.text("store"))
    # Settings are checked before a process is forked or a file is made.
    make_key(request.namespace, request.name)
    policy_of(request)
    restart = restart_from(request.text("restart"))
    cmd = cmd_of(request, url)

    def log(line: str) -> None:
        if not request.on("quiet"):
            log_line(label, line)

    news = news_of(request, log)
    # The guard is forked while there is neither a thread nor a connection.
    with start_guard(request.text_or("isolate", "auto")) as guard, Signals() as signals:
        try:
            # The client is closed last: it gives back the leases that are still to be released.
            with Client(url, namespace=request.namespace) as client:
                settings = lock_settings(request)
                named = number(request, "priority", 0, PRIORITY_MOST, -1)
                lock = CandidateLock(
                    request.name,
                    store=client,
                    namespace=request.namespace,
                    priority=None if named < 0 else named,
                    step_down_after=request.text("step_down_after"),
                    **settings,
                )
                ttl = lock.policy.ttl
                situation = Situation(
                    request.name, lock.holder, guard.isolation, ttl=ttl, is_candidate=True
                )
                with report(situation), closing(news) if news else nullcontext():
                    campaign = Campaign(lock, cmd, restart, signals, guard, situation, log, news)
                    return campaign.run()
        except StoreError as error:
            say(f"{label}: the store could not be proved, nothing ran: {error}")
            return UNPROVED


# -- work ------------------------------------------------------------------------------------------


def _work(request: CommandRequest) -> int:
    workers = number(request, "workers", 1, _MOST_WORKERS, 0)
    permits = number(request, "permits", 1, _MOST_WORKERS, 1)
    if not workers:
        missing = f"--workers is missing: a number from 1 to {_MOST_WORKERS}"
        raise ConfigError(missing, name="workers")
    if permits > workers:
        raise ConfigError(
            f"permits={permits} is more than workers={workers}: the rest could never"
            " be taken here, and instances of one fleet have to agree on both",
            name="permits",
        )
    store_url(request.text("store"))
    restart_from(request.text("restart"))
    news_of(request, say)
    healthy = policy_of(request).ttl
    for index in range(permits):
        make_key(request.namespace, worker_name(request.name, index, permits))
    holder = request.text("holder") or default_holder()
    service_workers = [_ServiceWorker(index, Backoff(healthy)) for index in range(workers)]

    def serve(reports: socket.socket | None = None) -> int:
        with Signals() as signals:
            signals.watch_the_job()
            return _Service(request, permits, holder, service_workers, signals, reports).run()

    if request.text("listen") is None and not os.environ.get("NOTIFY_SOCKET"):
        return serve()
    return _report_for_all(request, holder, healthy, serve)


def _report_for_all(
    request: CommandRequest, holder: str, ttl: float, serve: Callable[[socket.socket], int]
) -> int:
    """Report the workers' situation from this process: their parent forks, so it has no thread."""
    from incumbent.serve.workers import Workers

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def begin() -> int:
        # Wait until our parent listens: if it cannot, nothing may run.
        its.recv(1)
        return serve(its)

    with ours, its, Signals() as signals:
        signals.watch_the_job()
        pid = _fork(signals, begin)
        code: int | None = None
        situation = Workers(request.name, holder, ours, ttl=ttl)
        try:
            with health(request, situation), closing(DescriptorWaiter()) as waiter:
                ours.send(b"!")
                while (code := _exit_code(pid)) is None:
                    situation.pulse(clock.now() + 2 * _TURN_EVERY)
                    waiter.wait((signals.fd, ours.fileno()), clock.now() + _TURN_EVERY)
                    situation.receive()
                    for signum in signals.take():
                        if signum in ENDING_SIGNALS:
                            situation.note_stopping()
                        _forward(signum, pid)
        finally:
            # We leave by an error of our own: the workers stop their work first, and only we can
            # reap them.
            if code is None:
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)
    return code


def _forward(signum: int, *pids: int) -> None:
    if signum == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif signum in FORWARDED:
        for pid in pids:
            # The process is not reaped yet, so the pid is still its own.
            os.kill(pid, signum)


def _exit_code(pid: int) -> int | None:
    """The exit code of a child (128 + N after signal N, as in a shell); None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _fork(signals: Signals, work: Callable[[], int]) -> int:
    """Fork a child that does `work` and exits with its code; it is drained if we die."""
    # A signal between the fork and the child's own handlers would be lost in our pipe.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        # Prepared before the fork: the child then only makes system calls until it has handlers.
        drain_with_parent = die_with_parent(signal.SIGTERM)
        pid = os.fork()
        if pid == 0:
            _run_child(signals, work, drain_with_parent, before)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_child(
    signals: Signals,
    work: Callable[[], int],
    drain_with_parent: Callable[[], object] | None,
    mask: set[int | signal.Signals],
) -> NoReturn:
    """Do the work and end this process, so that it never returns into the parent's stack."""
    code = FAULT
    try:
        # Before the mask is lifted: our handlers would write into the parent's pipe.
        signals.__exit__(None, None, None)
        # Leave the terminal: ^C must reach only the parent, which drains.
        os.setsid()
        stdin = os.open(os.devnull, os.O_RDONLY)
        os.dup2(stdin, 0)
        os.close(stdin)
        if drain_with_parent is not None:
            drain_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = work()
    except Exception as error:  # noqa: BLE001 - the last place
        say(str(error))
        code = code_of(error)
    finally:
        # os._exit does not flush.
        sys.stdout.flush()
        os._exit(code)


def worker_name(name: str, index: int, permits: int) -> str:
    """The name that worker `index` campaigns for; with one permit it is NAME itself."""
    return name if permits == 1 else f"{name}/{index % permits + 1}"


@dataclass(slots=True)
class _ServiceWorker:
    """A worker of the service; `pid` is its present process (0: none)."""

    index: int
    backoff: Backoff
    pid: int = 0
    began: float = 0.0
    start_at: float = 0.0
    code: int = OK


@dataclass
class _Service:
    """The workers' parent. It has no thread and no connection: it forks whenever a worker died."""

    request: CommandRequest
    permits: int
    holder: str
    workers: list[_ServiceWorker]
    signals: Signals
    reports: socket.socket | None = None
    """The channel on which the workers report their situation."""
    code: int | None = None
    """The exit code, once the service drains."""

    def run(self) -> int:
        with closing(DescriptorWaiter()) as waiter:
            while True:
                for worker in self.workers:
                    if worker.pid and (code := _exit_code(worker.pid)) is not None:
                        worker.pid = 0
                        self._after_exit(worker, code)
                for worker in self.workers:
                    if not worker.pid and worker.start_at <= clock.now():
                        worker.began = clock.now()
                        work = partial(self._run_worker, worker.index)
                        worker.pid = _fork(self.signals, work)
                    elif not worker.pid and self.reports is not None:
                        from incumbent.serve.workers import report_end

                        # At each turn, because a report may be dropped: without it the silence of
                        # this worker says that it hangs.
                        report_end(self.reports, worker.index)
                if not any(worker.pid or worker.start_at < inf for worker in self.workers):
                    codes = (worker.code for worker in self.workers)
                    return max(codes) if self.code is None else self.code
                starts = (worker.start_at for worker in self.workers if not worker.pid)
                waiter.wait((self.signals.fd,), min(*starts, clock.now() + _TURN_EVERY, inf))
                for signum in self.signals.take():
                    self._handle_signal(signum)

    def _handle_signal(self, signum: int) -> None:
        if signum in ENDING_SIGNALS:
            self._log(f"{signal.Signals(signum).name}: draining")
            self._drain(code_of_signal(signum))
        else:
            self._signal_all(signum)

    def _drain(self, code: int) -> None:
        self.code = code if self.code is None else self.code
        for worker in self.workers:
            worker.start_at = inf
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, signum: int) -> None:
        _forward(signum, *(worker.pid for worker in self.workers if worker.pid))

    # -- ends --------------------------------------------------------------------------------

    def _after_exit(self, worker: _ServiceWorker, code: int) -> None:
        # While draining the first reason counts, and nothing is started again.
        if self.code is not None:
            return
        worker.code = code
        if code in (USAGE, *CANNOT_START):
            self._log(f"w{worker.index + 1} cannot work (exit {code}): draining")
            self._drain(code)
        elif self.request.text("restart") == "never" or code in _MEANT_TO_END:
            worker.start_at = inf
        else:
            delay = worker.backoff.after(clock.now() - worker.began, draw_jitter())
            worker.start_at = clock.now() + delay
            self._log(f"w{worker.index + 1} ended with {code}, starts again in {delay:.1f} s")

    # -- starts ------------------------------------------------------------------------------

    def _run_worker(self, index: int) -> int:
        name = f"w{index + 1}"
        its_name = worker_name(self.request.name, index, self.permits)
        values = {**self.request.values, "name": its_name, "holder": f"{self.holder}:{name}"}
        return _lead(
            replace(self.request, values=values), f"{its_name} {name}", self._report_of(index)
        )

    def _report_of(self, index: int) -> _Report:
        if self.reports is None:
            return lambda _: nullcontext()
        from incumbent.serve.workers import reporting

        return partial(reporting, index=index, channel=self.reports)

    def _log(self, line: str) -> None:
        if not self.request.on("quiet"):
            log_line(self.request.name, line)
