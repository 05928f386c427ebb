"""Work under a lease: the functions that may be such work, and how it runs beside a body.

Also the iterators that `observe` returns.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import (
    _AsyncGeneratorContextManager,
    _GeneratorContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import wraps
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar

from incumbent import clock
from incumbent.durations import Duration
from incumbent.errors import ConfigError, LeaseLost, Misuse
from incumbent.locks.options import parse_timeout
from incumbent.protocol.observe import Watched, WritingPort, await_news
from incumbent.runtime.sync import SyncPort
from incumbent.stores.plan import run_blocking

if TYPE_CHECKING:
    from asyncio import Task

    from incumbent.model import Key
    from incumbent.runtime.link import Link

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
V = TypeVar("V")

_log = logging.getLogger("incumbent")

# The most seconds until a candidate that waits for the store notices its end.
_POLL_EVERY: Final = 1.0


# -- functions that may run under a lease ----------------------------------------------------------


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call makes a coroutine; also for objects with an `async def __call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asks for its kind, not its existence
    )


def refuse_generator(function: Callable[..., Any]) -> None:
    """Raise ConfigError for a generator function: its body would run after the release."""
    ways = (function, getattr(function, "__call__", None))  # noqa: B004 - as in `is_async`
    if any(map(inspect.isgeneratorfunction, ways)) or any(map(inspect.isasyncgenfunction, ways)):
        raise ConfigError(
            f"{name_of(function)} is a generator: its body would run only when it is iterated,"
            " without the lease; take the lease inside of it",
            name="function",
        )


def refuse_async(function: Callable[..., Any], advice: str) -> None:
    """Raise Misuse for a coroutine function, ConfigError for a generator function."""
    refuse_generator(function)
    if is_async(function):
        raise Misuse(f"{name_of(function)} is a coroutine function: {advice}")


def refuse_coroutine(value: V, function: Callable[..., Any], advice: str) -> V:
    """`value`, the result of a blocking function. Raises Misuse if it runs on after the release."""
    if inspect.iscoroutine(value):
        value.close()
        raise Misuse(f"{name_of(function)} returned a coroutine, of which nothing ran: {advice}")
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        advice = "take the lease inside of it, or use it up inside of the function"
    elif isinstance(value, (_GeneratorContextManager, _AsyncGeneratorContextManager)):
        # Not every context manager: an open file is one, and may be used after the lease.
        advice = "take the lease inside of it"
    elif not isinstance(value, Awaitable) and not _is_future(value):
        return value
    kind = type(value).__name__
    raise Misuse(f"{name_of(function)} returned a {kind}, which runs without the lease: {advice}")


def _is_future(value: object) -> bool:
    # Only if the program has imported it, so that a start costs nothing.
    futures = sys.modules.get("concurrent.futures")
    return futures is not None and isinstance(value, futures.Future)


class _LeasedBody(_GeneratorContextManager[V]):
    """A context manager that, as a decorator, refuses what would run after its body."""

    def __call__(self, func: F) -> F:
        refuse_async(func, "its body would run without the lease; take the lease inside of it")
        return super().__call__(func)


def leased_body(make: Callable[P, Iterator[V]]) -> Callable[P, _GeneratorContextManager[V]]:
    """As `contextlib.contextmanager`, for a body under a lease."""

    @wraps(make)
    def manager(*args: P.args, **kwargs: P.kwargs) -> _GeneratorContextManager[V]:
        return _LeasedBody(make, args, kwargs)  # type: ignore[arg-type]  # as `contextmanager` does

    return manager


def require_awaitable(
    value: Awaitable[V], function: Callable[..., Any], advice: str
) -> Awaitable[V]:
    """`value`, the result of an asyncio function. Raises Misuse if it cannot be awaited."""
    if not isinstance(value, Awaitable):
        raise Misuse(f"{name_of(function)} returned nothing to await: {advice}")
    return value


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function for messages."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def loss_in(error: BaseException, key: Key) -> LeaseLost | None:
    """The loss of the lease at `key`, if `error` is that, or a group of nothing else."""
    # The loss of another lease, which the work itself uses, is an error of the work.
    found = _leaves(error)
    lost = [
        it
        for it in found
        if isinstance(it, LeaseLost)
        and it.name == key.name
        and it.namespace in (None, key.namespace)
    ]
    return lost[0] if len(lost) == len(found) else None


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group, such as a TaskGroup raises, at any depth; of another error itself."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [it for each in inner for it in _leaves(each)] or [error]


@contextmanager
def unless_lost(key: Key, task: Task[Any] | None = None) -> Iterator[None]:
    """Leave the body without its error if that only reports the loss of the lease at `key`.

    A Ctrl-C, sys.exit or cancellation of `task` that a clean-up's check replaced is raised.
    """
    # What the caller handles already interrupts nothing.
    handled, cancelling = sys.exception(), task.cancelling() if task else 0
    try:
        yield
    except Exception as loss:
        if loss_in(loss, key) is None:
            raise
        kinds: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit)
        if task and task.cancelling() > cancelling:
            from asyncio import CancelledError

            # The count alone does not tell: before Python 3.13 a TaskGroup leaves it raised.
            kinds += (CancelledError,)
        # Of a group the first: after that one a TaskGroup cancels the others by itself.
        for error in (loss, _leaves(loss)[0]):
            behind: BaseException | None = error
            while behind is not None and behind is not handled:
                if isinstance(behind, kinds):
                    raise behind from loss
                behind = behind.__context__


@contextmanager
def unless_cancelled() -> Iterator[None]:
    """Raise RuntimeError for a CancelledError of what the work awaits: nobody cancels this task."""
    from asyncio import CancelledError, current_task

    try:
        yield
    except CancelledError as error:
        task = current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("CancelledError, though nobody cancelled the work") from error


# -- beside a body ---------------------------------------------------------------------------------


class CandidacyEnded(Exception):
    """The candidacy was ended; raised by its waits."""


class EndablePort(SyncPort):
    """A blocking port whose waits another thread can end; they raise CandidacyEnded from then on.

    `poll_every`: the most seconds until a wait for a change notices the end.
    """

    def __init__(self, link: Link, poll_every: float = _POLL_EVERY) -> None:
        super().__init__(link.store, link.keeper)
        self._poll_every = poll_every
        self.over = False
        self._woken = threading.Event()

    def end(self) -> None:
        """End all waits, now and later."""
        self.over = True
        self._woken.set()

    async def sleep_until(self, instant: float) -> None:
        self._raise_if_over()
        with self.client_end.wait(self._woken.set):
            self._woken.wait(max(0.0, instant - clock.now()))
            self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self.over:
            raise CandidacyEnded

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """Wait in parts; a change between two parts is found by `seen`."""
        while True:
            self._raise_if_over()
            part = min(until, clock.now() + self._poll_every)
            await super().wait_change(key, seen, part)
            # It came back early, so something changed, or the whole wait is over.
            if clock.now() < part or part >= until:
                break
        self._raise_if_over()


@contextmanager
def thread_beside(
    name: str, work: Callable[[], object], end: Callable[[], None], what: str = "candidacy"
) -> Iterator[None]:
    """Call `work` in a thread; after the body call `end`, wait, and raise the work's exception."""
    failures: list[BaseException] = []
    over = threading.Event()

    def attempt() -> None:
        try:
            if not over.is_set():
                work()
        except CandidacyEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised at the end of the body
            log_failure(name, what, error)
            # Logged first: the body may go on for days before it sees this.
            failures.append(error)

    thread = threading.Thread(target=attempt, name=f"incumbent {name}", daemon=True)
    try:
        # Inside: it may raise though the thread runs, as a signal handler raises anywhere.
        thread.start()
        yield
    except BaseException as error:
        over.set()
        end()
        # One that begins only now finds that it is over.
        if thread.is_alive():
            thread.join()
        _note_failure(name, what, error, *failures)
        raise
    end()
    thread.join()
    if failures:
        raise failures[0]


@asynccontextmanager
async def task_beside(
    name: str, work: Coroutine[Any, Any, object], what: str = "candidacy"
) -> AsyncIterator[None]:
    """Await `work` in a task; after the body cancel it, wait, and raise its exception."""
    from asyncio import create_task

    task = create_task(work, name=f"incumbent {name}")
    # At once, not at the end of the body; it also marks the exception as seen by somebody.
    task.add_done_callback(lambda done: log_failure(name, what, failure_of(done)))
    try:
        yield
    except BaseException as error:
        await cancel(task)
        _note_failure(name, what, error, failure_of(task))
        raise
    await cancel(task)
    failure = failure_of(task)
    if failure is not None:
        raise failure


async def cancel(task: Task[Any]) -> None:
    """Cancel the task, and wait for its end."""
    task.cancel()
    await ended(task)


async def ended(*tasks: Task[Any]) -> None:
    """Wait for the end of all tasks, also if this is cancelled, as a TaskGroup does."""
    from asyncio import CancelledError, wait

    cancelled: CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await wait(running)
        except CancelledError as error:
            # Raised later: who stops waiting now would release under work that still runs.
            # The first: it tells whether somebody else came before a lease's own cancellation.
            cancelled = cancelled or error
    if cancelled is not None:
        raise cancelled


def failure_of(task: Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def log_failure(name: str, what: str, error: BaseException | None) -> None:
    """Log the error at once: the caller sees it only at the end of the body."""
    if error is not None:
        _log.error("%s: the %s ended: %s", name, what, error, exc_info=error)


def _note_failure(
    name: str, what: str, error: BaseException, *failures: BaseException | None
) -> None:
    for failure in failures:
        if failure is not None and failure is not error:
            error.add_note(f"the {what} for {name!r} had failed too: {failure!r}")


# -- observing -------------------------------------------------------------------------------------


class _Observer(Generic[V]):
    """The base of the iterators. Not a generator, which would outlive its event loop."""

    def __init__(
        self, link: Link, watched: Watched, shown: Callable[[], V], timeout: Duration | None
    ) -> None:
        self._link = link
        self._shown = shown
        self._watched = watched
        self._timeout = parse_timeout(timeout)

    async def _await_news(self, port: WritingPort) -> bool:
        self._link.client_end.refuse()
        until = inf if self._timeout is None else clock.now() + self._timeout
        return await await_news(port, self._watched, until)


class News(_Observer[V]):
    """The iterator of a blocking `observe`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> V:
        if not run_blocking(self._await_news(self._link.port)):
            raise StopIteration
        return self._shown()


class AsyncNews(_Observer[V]):
    """The iterator of `observe` on asyncio."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> V:
        if not await self._await_news(self._link.async_port()):
            raise StopAsyncIteration
        return self._shown()
