"""python -m tests.stores.kubernetes.actors KIND FILE SETTINGS: one candidate, in its own process.

While it leads it appends a line `TERM` to FILE, again and again: the kernel puts them in order, and
test_foreign reads from them whether two ever acted at once. SETTINGS is JSON: `access` and
`kubeconfig`, `times`, `acts` (lines before it gives back; 0: for ever), `stop_after` (lines after
which it freezes itself; 0: never), `pause` (seconds before it wants to lead again).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.kubernetes.elector import Access, GoElector

EVERY = 0.02


class Actor:
    """What is done while one leads; `kind` begins the name of each term."""

    def __init__(self, kind: str, file: Path, settings: dict[str, Any]) -> None:
        self.kind = kind
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._most: int = settings["acts"]
        self._stop_after: int = settings["stop_after"]
        self.pause: float = settings["pause"]

    def act(self, leads: Callable[[], bool]) -> None:
        """Act while `leads`, as often as was asked."""
        term, done = f"{self.kind}-{secrets.token_hex(4)}", 0
        while leads() and not (self._most and done >= self._most):
            os.write(self._file, f"{term}\n".encode())
            done += 1
            time.sleep(EVERY)
            if done == self._stop_after:
                # Between two acts, so that what comes after was asked for afterwards.
                os.kill(os.getpid(), signal.SIGSTOP)


def ours(actor: Actor, settings: dict[str, Any]) -> None:
    from incumbent import LeaseLost, Lock

    os.environ["KUBECONFIG"] = settings["kubeconfig"]
    namespace = settings["access"]["namespace"]
    url = f"kubernetes://test/{namespace}?restart_wait=0"
    while True:
        with suppress(LeaseLost), Lock("job", store=url, **settings["times"]) as lease:
            actor.act(lambda: not lease.lost)
        time.sleep(actor.pause)


def go(actor: Actor, settings: dict[str, Any]) -> None:
    identity = f"go-{os.getpid()}"
    elector = GoElector(Access(**settings["access"]), identity, **settings["times"])
    while True:
        elector.acquire()
        actor.act(lambda: elector.leads)
        elector.release()
        time.sleep(actor.pause)


def python(actor: Actor, settings: dict[str, Any]) -> None:
    """Python's official election. It leads until it cannot renew: it has no way to give back."""
    # By name: they have no types.
    parts = "config", "leaderelection.leaderelection", "leaderelection.electionconfig"
    config, election, options = (import_module(f"kubernetes.{part}") for part in parts)
    locks = import_module("kubernetes.leaderelection.resourcelock.leaselock")
    config.load_kube_config(settings["kubeconfig"])
    access, stopped = settings["access"], threading.Event()
    lock = locks.LeaseLock(access["name"], access["namespace"], f"python-{os.getpid()}")
    made = options.Config(
        lock,
        **settings["times"],
        onstarted_leading=lambda: actor.act(lambda: not stopped.is_set()),
        onstopped_leading=stopped.set,
    )
    election.LeaderElection(made).run()


KINDS: dict[str, Callable[[Actor, dict[str, Any]], None]] = {
    "ours": ours,
    "go": go,
    "python": python,
}


if __name__ == "__main__":
    named, file, given = sys.argv[1:]
    read: dict[str, Any] = json.loads(given)
    KINDS[named](Actor(named, Path(file), read), read)
