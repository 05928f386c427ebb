"""What stands between a caller and the connections, where there is more than one server to find.

A layer is written once, as coroutines over the connections to each server (or over another layer),
and wraps `run`. The asynchronous side awaits them; the blocking side runs each in one step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import Key
from incumbent.protocol.port import run
from incumbent.stores.plan import Plan, Planned
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.dialect import DIALECT, Server
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import exchange_error
from incumbent.stores.redis.exchange import UNUSABLE, Exchange, carry_out
from incumbent.stores.redis.resp import Program
from incumbent.stores.redis.sync import RedisStore

__all__ = ["BlockingSide", "Layer", "Side"]

T = TypeVar("T")


class Layer(Planned[Server]):
    """Passes everything on. Subclasses do what has to be done before and after."""

    dialect = DIALECT

    def __init__(self, inner: Planned[Server]) -> None:
        self.inner = inner

    async def run(self, plan: Plan[Server, T], until: float) -> T:
        return await self.inner.run(plan, until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self.inner.wait_change(key, seen, until)

    def let_go(self) -> None:
        self.inner.let_go()


class Side(ABC):
    """How one side, blocking or asynchronous, does what the layers need of the world."""

    @abstractmethod
    def exchange(self, site: Site, commands: Commands) -> Exchange[Any]:
        """The connections to one server."""

    @abstractmethod
    async def survey(
        self,
        sites: Sequence[Site],
        program: Callable[[Site], Program[T]],
        enough: int,
        until: float,
    ) -> list[T | StoreError]:
        """Ask all of them the same at once, each by a connection of its own.

        Returns as soon as `enough` have answered, or nobody else can by `until`.
        """

    @abstractmethod
    async def alone(self, work: Callable[[], Awaitable[None]], until: float) -> None:
        """Do this while no other task of the loop does. Threads do not wait for one another."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, and let others work meanwhile."""

    @abstractmethod
    async def each(
        self, works: Sequence[Callable[[float], Awaitable[T]]], until: float
    ) -> list[T | StoreError]:
        """What becomes of each work, which is told by when it must be done.

        One that takes all its time leaves the others theirs.
        """


class BlockingSide(Side):
    """See Side."""

    def __init__(self) -> None:
        self._stores: list[RedisStore] = []

    def exchange(self, site: Site, commands: Commands) -> Exchange[Any]:
        store = RedisStore(site, commands)
        # It gives descriptors back in a fork's child for as long as it is remembered.
        self._stores.append(store)
        return store.operations

    async def survey(
        self,
        sites: Sequence[Site],
        program: Callable[[Site], Program[T]],
        enough: int,
        until: float,
    ) -> list[T | StoreError]:
        """See Side.survey. On threads: each may need all the time to connect."""
        poll: _Poll[T] = _Poll(len(sites), enough)
        for site in sites:
            _start(partial(poll.ask, site, program, until))
        poll.wait(until)
        return list(poll.answers)

    async def alone(self, work: Callable[[], Awaitable[None]], until: float) -> None:
        await work()

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def each(
        self, works: Sequence[Callable[[float], Awaitable[T]]], until: float
    ) -> list[T | StoreError]:
        """See Side.each: all at once, each on a thread of its own but for the last."""
        errands = [_Errand(work, until) for work in works]
        for errand in errands[:-1]:
            _start(errand.run)
        for errand in reversed(errands):
            if errand is errands[-1]:
                errand.run()
            _wait(errand.done, until)
        return [errand.outcome() for errand in errands]


class _Errand(Generic[T]):
    """One of several works; what became of it, once it is `done`."""

    def __init__(self, work: Callable[[float], Awaitable[T]], until: float) -> None:
        self._work = partial(work, until)
        self._result: list[T] = []
        self._error: Exception = OutcomeUnknown("no answer in time")
        self.done = threading.Event()

    def run(self) -> None:
        """Do it; an Exception is kept for `outcome`. Whatever else it raises ends the caller."""
        try:
            self._result.append(run(cast("Coroutine[Any, Any, T]", self._work())))
        except Exception as error:  # noqa: BLE001 - raised to whoever asked
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> T | StoreError:
        """What it returned, or its StoreError. Raises any other error."""
        if self._result:
            return self._result[0]
        if isinstance(self._error, StoreError):
            return self._error
        raise self._error


def _wait(done: threading.Event, until: float) -> None:
    # In slices: a thread that was frozen with the machine must see the real clock.
    while not done.wait(min(1.0, max(0.0, until - clock.now()))):
        if clock.now() >= until:
            return


class _Poll(Generic[T]):
    """Answers that come in from several threads; `done` once there are enough."""

    def __init__(self, asked: int, enough: int) -> None:
        self._asked = asked
        self._enough = enough
        self._guard = threading.Lock()
        self.answers: list[T | StoreError] = []
        self.done = threading.Event()

    def ask(self, site: Site, program: Callable[[Site], Program[T]], until: float) -> None:
        """Ask one, and note what it says."""
        answer = _ask(site, program, until)
        with self._guard:
            self.answers.append(answer)
            good = sum(not isinstance(each, StoreError) for each in self.answers)
            if good >= self._enough or len(self.answers) == self._asked:
                self.done.set()

    def wait(self, until: float) -> None:
        """Until it is done, or `until`."""
        _wait(self.done, until)


def _start(work: Callable[[], None]) -> None:
    try:
        threading.Thread(target=work, name="incumbent-survey", daemon=True).start()
    except RuntimeError:
        # The interpreter is ending and starts no threads any more.
        work()


def _ask(site: Site, program: Callable[[Site], Program[T]], until: float) -> T | StoreError:
    try:
        wire = dial(site, until)
        try:
            return run(carry_out(wire, program(site), until))
        finally:
            wire.close()
    except StoreError as error:
        return error
    except UNUSABLE as error:
        return exchange_error(error, site.where)
    except Exception as error:  # noqa: BLE001 - on a thread of its own, nobody else would hear it
        return OutcomeUnknown(f"{site.where} could not be asked: {error!r}")
