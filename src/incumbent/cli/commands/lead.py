"""`lead`: campaign for ever; CMD runs during each term.

`work`: N processes of a service, of which M at a time hold; each is a `lead` of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from incumbent import clock
from incumbent.cli.parser import Request
from incumbent.cli.settings import lock_settings, lock_times, number
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
    Restart,
    code_of_signal,
    restart_from,
)
from incumbent.supervise.codes import CANNOT_START, FAULT, OK, UNPROVED, USAGE, code_of
from incumbent.supervise.guarding import Guard, start_guard
from incumbent.supervise.kernel import Waiter, die_with_parent
from incumbent.supervise.run import Command
from incumbent.supervise.signals import FORWARDED, Signals

__all__ = ["command", "seat_of"]

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

    def tell(line: str) -> None:
        if not request.on("quiet"):
            say(f"{label}: {line}")

    # The guard is forked while there is neither a thread nor a connection.
    with start_guard(request.text("isolate") or "auto") as guard, Signals() as signals:
        try:
            return _campaign(request, url, restart, signals, guard, tell)
        except StoreError as error:
            say(f"{label}: the store could not be proved, nothing ran: {error}")
            return UNPROVED


def _campaign(
    request: Request,
    url: str,
    restart: Restart,
    signals: Signals,
    guard: Guard,
    tell: Callable[[str], None],
) -> int:
    command = Command(request.words, url if request.on("share_store") else None)
    # Closed last: closing gives back what is still owed to the store.
    with Client(url, namespace=request.namespace) as client:
        lock = Candidate(
            request.name, store=client, namespace=request.namespace, **lock_settings(request)
        )
        situation = Situation(request.name, lock.holder, guard.isolation, ttl=lock.policy.ttl)
        with _health(request, situation):
            return Campaign(lock, command, restart, signals, guard, situation, tell).run()


@contextmanager
def _health(request: Request, situation: Situation) -> Iterator[None]:
    if request.command != "lead":
        # The workers of one service would all answer at one address, and for one unit.
        yield
        return
    from incumbent.serve.health import start_health

    listen, token_file = request.text("listen"), request.text("token_file")
    with start_health(situation, listen=listen, token_file=token_file) as url:
        if listen is not None and listen.endswith(":0"):
            say(f"listening on {url}")
        yield


# -- work ----------------------------------------------------------------------------------------


def _work(request: Request) -> int:
    workers = number(request, "workers", 1, _MOST_WORKERS)
    holders = number(request, "holders", 1, _MOST_WORKERS) or 1
    if workers is None:
        missing = f"workers is missing: a number from 1 to {_MOST_WORKERS}"
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
        return _Service(request, workers, holders, healthy, signals).run()


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


class _Service:
    """The parent. It has no thread and no connection, for it forks whenever a worker died."""

    def __init__(
        self, request: Request, workers: int, holders: int, healthy: float, signals: Signals
    ) -> None:
        self._request = request
        self._holders = holders
        self._signals = signals
        self._workers = [_Worker(index, Backoff(healthy)) for index in range(workers)]
        self._holder = request.text("holder") or default_holder()
        self._final = request.text("restart") == "never"
        self._code: int | None = None
        """Set once everything is to end."""

    def run(self) -> int:
        waiter = Waiter()
        try:
            while True:
                self._reap()
                self._start_due()
                if not any(worker.pid or worker.start_at < inf for worker in self._workers):
                    return self._last_code()
                starts = (worker.start_at for worker in self._workers if not worker.pid)
                waiter.wait((self._signals.fd,), min(starts, default=inf))
                for signum in self._signals.take():
                    self._obey(signum)
        finally:
            waiter.close()

    def _last_code(self) -> int:
        codes = (worker.code for worker in self._workers)
        return max(codes) if self._code is None else self._code

    def _obey(self, signum: int) -> None:
        if signum in ENDING_SIGNALS:
            self._tell(f"{signal.Signals(signum).name}: draining")
            self._drain(code_of_signal(signum))
        elif signum == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif signum in FORWARDED:
            self._signal_all(signum)

    def _drain(self, code: int) -> None:
        self._code = code if self._code is None else self._code
        for worker in self._workers:
            worker.start_at = inf
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, signum: int) -> None:
        for worker in self._workers:
            if worker.pid:
                # Not reaped yet, so the number is still its own.
                os.kill(worker.pid, signum)

    # -- ends --------------------------------------------------------------------------------

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.pid and (ended := os.waitpid(worker.pid, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                worker.pid = 0
                self._ended(worker, code if code >= 0 else 128 - code)

    def _ended(self, worker: _Worker, code: int) -> None:
        if self._code is not None:
            return
        worker.code = code
        if code in (USAGE, *CANNOT_START):
            self._tell(f"w{worker.index + 1} cannot work (exit {code}): draining")
            self._drain(code)
        elif self._final or code in _MEANT_TO_END:
            worker.start_at = inf
        else:
            delay = worker.backoff.after(clock.now() - worker.began, draw_jitter())
            worker.start_at = clock.now() + delay
            self._tell(f"w{worker.index + 1} ended with {code}, starts again in {delay:.1f} s")

    # -- starts ------------------------------------------------------------------------------

    def _start_due(self) -> None:
        for worker in self._workers:
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
                _be_worker(lambda: self._become(index, drain_with_parent, before))
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _become(
        self,
        index: int,
        drain_with_parent: Callable[[], object] | None,
        mask: set[int | signal.Signals],
    ) -> int:
        self._signals.__exit__(None, None, None)
        # The terminal is nobody's among many: ^C reaches the parent, which drains.
        os.setsid()
        stdin = os.open(os.devnull, os.O_RDONLY)
        os.dup2(stdin, 0)
        os.close(stdin)
        if drain_with_parent is not None:
            drain_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        name = f"w{index + 1}"
        seat = seat_of(self._request.name, index, self._holders)
        values = {**self._request.values, "name": seat, "holder": f"{self._holder}:{name}"}
        return _lead(replace(self._request, values=values), f"{seat} {name}")

    def _tell(self, line: str) -> None:
        if not self._request.on("quiet"):
            say(f"{self._request.name}: {line}")


def _be_worker(life: Callable[[], int]) -> None:
    """Run `life` and end this process, so that nothing of the parent's stack goes on."""
    code = FAULT
    try:
        code = life()
    except Exception as error:  # noqa: BLE001 - the last place
        say(str(error))
        code = code_of(error)
    finally:
        sys.stdout.flush()
        os._exit(code)
