"""Other clients for tests of stores: in a process with clocks of its own, or without a resolver.

other_process(partial(open_my_store, url), clock_offset=3600)
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.stores.base import Engine, Store
from incumbent.stores.loops import ServerEngine
from incumbent.stores.threaded import ThreadedAsyncStore

__all__ = ["other_process", "resolver_stands_still"]

_CHILD = Path(__file__).with_name("child.py")
_STANDS_STILL = 20.0
"""Seconds: long enough to find a call without a deadline, and short enough to end."""
_START = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


def other_process(make: Callable[[], Engine], *, clock_offset: float = 0.0) -> Engine:
    """An engine whose operations run in a new process, on the engine that `make` makes there.

    `make` must be a function that pickle finds by its name, or a partial of one. The clocks of the
    process (`time`, `datetime`, time since boot) are off by `clock_offset` seconds from its start,
    as on another host. It is ready when this returns: no request has to wait for its start. It ends
    when the blocking store is closed, and starts again when needed.
    """
    return cast("Engine", _Elsewhere(make, clock_offset))


class _Elsewhere(ServerEngine[Store, ThreadedAsyncStore]):
    """The engine here. Each of its sides uses the same side of the engine there."""

    def __init__(self, make: Callable[[], Engine], clock_offset: float) -> None:
        here, process = make(), _Process(make, clock_offset)
        self.capabilities = here.capabilities
        blocking, asynchronous = (
            cast("Store", _RemoteStore(process, side)) for side in ("blocking", "async")
        )
        super().__init__(here.url, blocking, partial(ThreadedAsyncStore, asynchronous))

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose: the engine itself is asked elsewhere."""
        return []


class _RemoteStore:
    """A Store that sends each operation to the process."""

    def __init__(self, process: _Process, side: str) -> None:
        self._process = process
        self._side = side

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda *arguments, **settings: self._process.ask(
            # Instants mean something on one host only.
            (self._side, operation, arguments[:-1], arguments[-1] - clock.now(), settings)
        )

    def close(self) -> None:
        self._process.end()


class _Process:
    """The process, which answers one request after the other."""

    def __init__(self, make: Callable[[], Engine], clock_offset: float) -> None:
        self._make = make
        self._offset = clock_offset
        self._turn = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._start()

    def ask(self, request: tuple[Any, ...]) -> Any:
        # One at a time: the answers have no numbers.
        with self._turn:
            if self._running is None:
                self._start()
            return self._answer_to(request)

    def _start(self) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-c", _START, str(_CHILD), str(self._offset)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._answer_to(self._make)

    def _answer_to(self, what: object) -> Any:
        running: Any = self._running
        try:
            pickle.dump(what, running.stdin)
            running.stdin.flush()
            outcome, error = pickle.load(running.stdout)  # noqa: S301 - the process is our own
        except (OSError, EOFError) as broken:
            self.end()
            raise StoreUnavailable(f"the other process ended: {broken}") from broken
        if error is not None:
            raise error
        return outcome

    def end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.communicate()


@contextmanager
def resolver_stands_still() -> Iterator[None]:
    """Until the block ends, or for 20 s, `socket.getaddrinfo` answers nobody.

    A client that is given an address in numbers does not ask it.
    """
    real, over = socket.getaddrinfo, threading.Event()

    def slow(*args: Any, **settings: Any) -> Any:
        over.wait(_STANDS_STILL)
        return real(*args, **settings)

    socket.getaddrinfo = slow
    try:
        yield
    finally:
        socket.getaddrinfo = real
        over.set()
