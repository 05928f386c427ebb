"""`lead`: campaign for ever; CMD runs during each term.

`work`: N processes of a service, of which M at a time hold; each is a `lead` of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from math import inf
from typing import Final, NoReturn

from incumbent import clock
from incumbent.cli import logs
from incumbent.cli.parser import Request
from incumbent.cli.settings import cmd_of, health, lock_settings, lock_times, number
from incumbent.cli.text import say
from incumbent.clients import Client
from incumbent.errors import ConfigError, StoreError
from incumbent.locks import Candidate
from incumbent.options import default_holder
from incumbent.protocol.chance import draw_jitter
from incumbent.serve.situation import Situation
from incumbent.store_url import store_url
from incumbent.stores.names import make_key
from incumbent.supervise.campaign import (
    ENDING_SIGNALS,
    Backoff,
    Campaign,
    code_of_signal,
    restart_from,
)
from incumbent.supervise.codes import CANNOT_START, FAULT, OK, UNPROVED, USAGE, code_of
from incumbent.supervise.guarding import start_guard
from incumbent.supervise.kernel import Waiter, die_with_parent
from incumbent.supervise.signals import FORWARDED, Signals

_MOST_WORKERS = 1000
_MEANT_TO_END: Final = frozenset({OK, USAGE, *CANNOT_START})
"""Another start would end the same way."""


def command(request: Request) -> int:
    """See the module."""
    return _work(request) if request.command == "work" else _lead(request, request.name)


# -- lead ----------------------------------------------------------------------------------------


def _lead(request: Request, label: str) -> int:
    """One instance, from its start to its exit code; `label` stands before its lines."""
    url = store_url(request.text("store"))
    # Settings are checked before a process is forked or a file is made.
    make_key(request.namespace, request.name)
    lock_times(request)
    restart = restart_from(request.text("restart"))
    cmd = cmd_of(request, url)

    def tell(line: str) -> None:
        if not request.on("quiet"):
            logs.tell(label, line)

    # The guard is forked while there is neither a thread nor a connection.
    with start_guard(request.text("isolate") or "auto") as guard, Signals() as signals:
        try:
            # Closed last: closing gives back what is still owed to the store.
            with Client(url, namespace=request.namespace) as client:
                settings = lock_settings(request)
                lock = Candidate(
                    request.name, store=client, namespace=request.namespace, **settings
                )
                ttl = lock.policy.ttl
                situation = Situation(
                    request.name, lock.holder, guard.isolation, ttl=ttl, elects=True
                )
                # The workers of one service would all answer at one address, and for one unit.
                pages = health(request, situation) if request.command == "lead" else nullcontext()
                with pages:
                    return Campaign(lock, cmd, restart, signals, guard, situation, tell).run()
        except StoreError as error:
            say(f"{label}: the store could not be proved, nothing ran: {error}")
            return UNPROVED


# -- work ----------------------------------------------------------------------------------------


def _work(request: Request) -> int:
    workers = number(request, "workers", 1, _MOST_WORKERS, 0)
    holders = number(request, "holders", 1, _MOST_WORKERS, 1)
    if not workers:
        missing = f"--workers is missing: a number from 1 to {_MOST_WORKERS}"
        raise ConfigError(missing, name="workers")
    if holders > workers:
        raise ConfigError(
            f"holders={holders} is more than workers={workers}: the rest of the seats could never"
            " be taken here, and instances of one fleet have to agree on both",
            name="holders",
        )
    store_url(request.text("store"))
    restart_from(request.text("restart"))
    healthy = lock_times(request).ttl
    for index in range(holders):
        make_key(request.namespace, seat_of(request.name, index, holders))
    with Signals() as signals:
        signals.follow_the_job()
        places = [_Worker(index, Backoff(healthy)) for index in range(workers)]
        holder = request.text("holder") or default_holder()
        return _Service(request, holders, holder, places, signals).run()


def seat_of(name: str, index: int, holders: int) -> str:
    """The name that worker `index` stands for. One seat is NAME itself, which `run` shares."""
    return name if holders == 1 else f"{name}/{index % holders + 1}"


@dataclass(slots=True)
class _Worker:
    """One place of the service, and the process that has it now (0: none)."""

    index: int
    backoff: Backoff
    pid: int = 0
    began: float = 0.0
    start_at: float = 0.0
    code: int = OK


@dataclass
class _Service:
    """The parent. It has no thread and no connection, for it forks whenever a worker died."""

    request: Request
    holders: int
    holder: str
    workers: list[_Worker]
    signals: Signals
    code: int | None = None
    """Set once everything is to end."""

    def run(self) -> int:
        with closing(Waiter()) as waiter:
            while True:
                self._reap()
                self._start_due()
                if not any(worker.pid or worker.start_at < inf for worker in self.workers):
                    codes = (worker.code for worker in self.workers)
                    return max(codes) if self.code is None else self.code
                starts = (worker.start_at for worker in self.workers if not worker.pid)
                waiter.wait((self.signals.fd,), min(starts, default=inf))
                for signum in self.signals.take():
                    self._obey(signum)

    def _obey(self, signum: int) -> None:
        if signum in ENDING_SIGNALS:
            self._tell(f"{signal.Signals(signum).name}: draining")
            self._drain(code_of_signal(signum))
        elif signum == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif signum in FORWARDED:
            self._signal_all(signum)

    def _drain(self, code: int) -> None:
        self.code = code if self.code is None else self.code
        for worker in self.workers:
            worker.start_at = inf
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, signum: int) -> None:
        for worker in self.workers:
            if worker.pid:
                # Not reaped yet, so the number is still its own.
                os.kill(worker.pid, signum)

    # -- ends --------------------------------------------------------------------------------

    def _reap(self) -> None:
        for worker in self.workers:
            if worker.pid and (ended := os.waitpid(worker.pid, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                worker.pid = 0
                self._ended(worker, code if code >= 0 else 128 - code)

    def _ended(self, worker: _Worker, code: int) -> None:
        if self.code is not None:
            return
        worker.code = code
        if code in (USAGE, *CANNOT_START):
            self._tell(f"w{worker.index + 1} cannot work (exit {code}): draining")
            self._drain(code)
        elif self.request.text("restart") == "never" or code in _MEANT_TO_END:
            worker.start_at = inf
        else:
            delay = worker.backoff.after(clock.now() - worker.began, draw_jitter())
            worker.start_at = clock.now() + delay
            self._tell(f"w{worker.index + 1} ended with {code}, starts again in {delay:.1f} s")

    # -- starts ------------------------------------------------------------------------------

    def _start_due(self) -> None:
        for worker in self.workers:
            if not worker.pid and worker.start_at <= clock.now():
                worker.began = clock.now()
                worker.pid = self._fork(worker.index)

    def _fork(self, index: int) -> int:
        # A signal between the fork and the child's own handlers would be lost in our pipe.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            drain_with_parent = die_with_parent(signal.SIGTERM)
            pid = os.fork()
            if pid == 0:
                self._become(index, drain_with_parent, before)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _become(
        self,
        index: int,
        drain_with_parent: Callable[[], object] | None,
        mask: set[int | signal.Signals],
    ) -> NoReturn:
        """Be a worker and end this process, so that nothing of the parent's stack goes on."""
        code = FAULT
        try:
            self.signals.__exit__(None, None, None)
            # The terminal is nobody's among many: ^C reaches the parent, which drains.
            os.setsid()
            stdin = os.open(os.devnull, os.O_RDONLY)
            os.dup2(stdin, 0)
            os.close(stdin)
            if drain_with_parent is not None:
                drain_with_parent()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            name = f"w{index + 1}"
            seat = seat_of(self.request.name, index, self.holders)
            values = {**self.request.values, "name": seat, "holder": f"{self.holder}:{name}"}
            code = _lead(replace(self.request, values=values), f"{seat} {name}")
        except Exception as error:  # noqa: BLE001 - the last place
            say(str(error))
            code = code_of(error)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _tell(self, line: str) -> None:
        if not self.request.on("quiet"):
            logs.tell(self.request.name, line)
