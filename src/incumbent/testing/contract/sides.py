"""Drives either side of an engine as a blocking store: one request, many at once, interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event
from types import FrameType
from typing import Any, Protocol, TypeAlias, cast

import pytest

from incumbent import clock
from incumbent.stores.base import AsyncTogether, Engine, Store, Together

__all__ = [
    "ANSWER_WITHIN",
    "DRIVERS",
    "REQUEST_WITHIN",
    "Driver",
    "RaisedByHandler",
    "Request",
    "Side",
    "StartingLine",
    "until",
]

REQUEST_WITHIN = 15.0
"""Seconds that a request may take: generous, because the machine may be busy."""
ANSWER_WITHIN = 5.0
"""Seconds within which a request ends that has only a part of a second."""
_POLL_EVERY = 0.005
_SIGNAL = getattr(signal, "SIGUSR1", None)

Request: TypeAlias = "tuple[Any, ...]"
"""The name of a Store's operation, and its arguments without `until`."""


def until() -> float:
    """The deadline of a request that is made now."""
    return clock.now() + REQUEST_WITHIN


def _until_at_once() -> float:
    """The same for one of many that are made at once: a server may serve them one by one."""
    return clock.now() + 4 * ANSWER_WITHIN


class StartingLine:
    """Lets `count` threads go on at the same instant: all of them are awake before one goes."""

    def __init__(self, count: int) -> None:
        self._arrival = Barrier(count)
        self._awake: list[None] = []
        self.abort = self._arrival.abort

    def wait(self) -> None:
        """Wait for the others. Raises BrokenBarrierError if one of them fails."""
        # Bounded: a thread that never comes must fail the case, not hang the run.
        self._arrival.wait(4 * ANSWER_WITHIN)
        # A barrier wakes its threads one after the other: the first might be done before the last.
        self._awake.append(None)
        while len(self._awake) < self._arrival.parties and not self._arrival.broken:
            time.sleep(0)


class RaisedByHandler(Exception):
    """What a signal handler raises in the middle of a request."""


class Side(Protocol):
    """One side of an engine."""

    store: Store

    @property
    def together(self) -> bool:
        """Whether the store has the operations of stores.base.Together."""

    def at_once(self, requests: Sequence[Request]) -> list[Any]:
        """Send all requests at the same time; their outcomes in order."""

    def break_off(self, request: Request, when: Callable[[], bool]) -> None:
        """Send a request, and interrupt it as soon as `when` is true.

        The request must raise the interruption; fails if it ended before it was interrupted.
        """

    def close(self) -> None:
        """Close what this side alone has opened."""


Driver: TypeAlias = Callable[[Engine], Side]


class BlockingSide:
    """The blocking store, which many threads share."""

    def __init__(self, engine: Engine) -> None:
        self.store = engine.store()

    @property
    def together(self) -> bool:
        return isinstance(self.store, Together)

    def at_once(self, requests: Sequence[Request]) -> list[Any]:
        start = StartingLine(len(requests))

        def one(request: Request) -> Any:
            operation, *arguments = request
            start.wait()
            return getattr(self.store, operation)(*arguments, _until_at_once())

        # A thread for each: with fewer, those at the starting line would wait for ever.
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(one, requests))

    def break_off(self, request: Request, when: Callable[[], bool]) -> None:
        if threading.current_thread() is not threading.main_thread() or _SIGNAL is None:
            pytest.skip("signals interrupt the main thread only")
        operation, *arguments = request
        with pytest.raises(RaisedByHandler), _signalled(when):
            getattr(self.store, operation)(*arguments, until())

    def close(self) -> None:
        """Do nothing: the store is the engine's, and others may be using it."""


@contextmanager
def _signalled(when: Callable[[], bool]) -> Iterator[None]:
    """While the body runs, send a signal as soon as `when` is true; its handler raises."""
    assert _SIGNAL is not None  # noqa: S101 - for the types
    main, begun, over = threading.main_thread().ident or 0, Event(), Event()

    def handler(_number: int, _frame: FrameType | None) -> None:
        # A signal that comes after the body must not raise in the middle of the clean-up.
        if not over.is_set():
            raise RaisedByHandler

    def send() -> None:
        # Not before the `try` is entered: raised earlier, nobody would join this thread or put the
        # old handler back.
        begun.wait()
        give_up = until()
        while not (over.is_set() or when()) and clock.now() < give_up:
            over.wait(_POLL_EVERY)
        if not over.is_set():
            signal.pthread_kill(main, _SIGNAL)

    before, sender = signal.signal(_SIGNAL, handler), threading.Thread(target=send)
    sender.start()
    try:
        begun.set()
        yield
    finally:
        # `over` first: a sender that is let go only now must find it, and send nothing.
        over.set()
        begun.set()
        # Joined before the old handler is back: by default this signal ends the process.
        sender.join()
        signal.signal(_SIGNAL, before)


class _LoopStore:
    """A blocking Store that runs each operation on the AsyncStore, in the loop."""

    def __init__(self, side: AsyncSide) -> None:
        self._side = side

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda *args, **how: self._side.run(self._side.asked(operation, *args, **how))

    def close(self) -> None:
        # By `__getattr__`: the AsyncStore's `aclose`, run in the loop.
        self.aclose()


class AsyncSide:
    """The asynchronous store, in a loop of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # One loop for all requests: a connection belongs to the loop that made it.
        self._runner = asyncio.Runner()
        self.store = cast("Store", _LoopStore(self))
        self.run = self._runner.run

    @property
    def together(self) -> bool:
        async def is_together() -> bool:
            return isinstance(self._engine.async_store(), AsyncTogether)

        return self.run(is_together())

    async def asked(self, operation: str, *args: Any, **how: Any) -> Any:
        """The outcome of one operation."""
        return await getattr(self._engine.async_store(), operation)(*args, **how)

    def at_once(self, requests: Sequence[Request]) -> list[Any]:
        async def all_of_them() -> list[Any]:
            until = _until_at_once()
            return await asyncio.gather(*(self.asked(*request, until) for request in requests))

        return self.run(all_of_them())

    def break_off(self, request: Request, when: Callable[[], bool]) -> None:
        async def cancelled() -> None:
            task, give_up = asyncio.ensure_future(self.asked(*request, until())), until()
            # Threads make `when` true, which wakes no task of this loop: it has to be polled.
            while not (task.done() or when()) and clock.now() < give_up:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_EVERY)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        self.run(cancelled())

    def close(self) -> None:
        # The store first: once its loop is closed, nothing can close its connections.
        with self._runner:
            self.store.close()


DRIVERS: dict[str, Driver] = {"blocking": BlockingSide, "async": AsyncSide}
