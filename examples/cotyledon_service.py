"""Four worker processes of one service, of which one at a time prints.

    INCUMBENT_STORE=sqlite:///tmp/leases.db python examples/cotyledon_service.py

Cotyledon forks the workers, restarts those that die, and stops them on TERM. Nothing of incumbent
is opened before the fork: each worker builds its Lock itself, and so has connections of its own.
SECONDS_HELD (0.2) is how long each one prints, SECONDS_BETWEEN (0.05) how often.
"""

from __future__ import annotations

import os
import random
import sys
import threading

import cotyledon
import cotyledon.types

import incumbent

WORKERS = 4
NAME = "cotyledon-printer"


class Printer(cotyledon.Service):
    """Takes the lease, prints for a while, gives it back; again until it is told to end."""

    def __init__(self, worker_id: cotyledon.types.WorkerId) -> None:
        super().__init__(worker_id)
        self._held_for = float(os.environ.get("SECONDS_HELD", "0.2"))
        self._between = float(os.environ.get("SECONDS_BETWEEN", "0.05"))
        self._ending = threading.Event()
        self._ended = threading.Event()

    def run(self) -> None:
        """Called by Cotyledon in a thread of the worker."""
        lock = incumbent.Lock(NAME, ttl="2s", timeout=1, holder=self._holder)
        try:
            while not self._ending.is_set():
                self._one_turn(lock)
        finally:
            self._ended.set()

    def terminate(self) -> None:
        """Called on TERM: the turn ends and the lease is given back, then Cotyledon exits."""
        self._ending.set()
        self._ended.wait()

    @property
    def _holder(self) -> str:
        return f"worker-{self.worker_id}:{os.getpid()}"

    def _one_turn(self, lock: incumbent.Lock) -> None:
        try:
            with lock as lease:
                self._print(lease)
            # A lease is no queue: who has just had it lets the others go first.
            self._ending.wait(random.uniform(1, 2) * self._held_for)
        except incumbent.LockError as error:
            # Busy, lost or the store is away: the loop asks again, and looks at TERM before.
            self._ending.wait(0 if isinstance(error, incumbent.NotAcquired) else 0.2)

    def _print(self, lease: incumbent.Lease) -> None:
        begin, turns = "begin", max(1, round(self._held_for / self._between))
        for _ in range(turns):
            # One that was frozen in between must not go on as if nothing had happened.
            lease.check()
            self._say(lease, begin)
            begin = "goes on"
            if self._ending.wait(self._between):
                break
        lease.check()
        self._say(lease, "end")

    def _say(self, lease: incumbent.Lease, what: str) -> None:
        line = f"{lease.fencing_token} worker {self.worker_id} pid {os.getpid()} {what}\n"
        # One write a line, whatever the buffers of four processes would make of it.
        os.write(sys.stdout.fileno(), line.encode())


def main() -> None:
    manager = cotyledon.ServiceManager(graceful_shutdown_timeout=10)
    manager.add(Printer, workers=WORKERS)
    manager.run()


if __name__ == "__main__":
    main()
