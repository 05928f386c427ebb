"""An AsyncStore made of a blocking Store: each request runs in a thread of its own.

For drivers of servers that only block. Use one for each event loop:

    class MyEngine(ServerEngine):                          # of incumbent.stores.loops
        def __init__(self, url):
            store = MyStore(url)
            super().__init__(url, store, lambda: ThreadedAsyncStore(store))

Theory of operation. A request has a place, then a thread, then an answer:

    task        wait for a place --> start a thread --> wait for its answer --> return it
                      | until             |                    | until, or cancelled
                 StoreUnavailable         |             leave: OutcomeUnknown, CancelledError
    thread                                `--> the blocking request --> answer, place free again

- Bounded: at most `most` requests of a loop are in threads, and at most as many waits for changes.
  Takes have half of the places, and gives the other half: see `net.limiter`.
  A task that gets no place by `until` has sent nothing. A wait that gets none sleeps a moment and
  returns, and its caller asks the store again.
- Cancellation: a thread cannot be interrupted. A task that is cancelled leaves at once; its request
  goes on, keeps its place, and has its connection to itself until its answer comes or the blocking
  store closes it. Nobody reads that answer. A cancelled take is in doubt: its caller gives the
  claim without a token. That give waits here until the take is over: on another connection it could
  overtake the take, which would then leave a lease that nobody releases.
- Deadlines: the blocking store ends each request at `until`. One that is late all the same counts
  as a request that was perhaps carried out.
- The loop ends: the remaining threads drop their answers. They are daemons: no exit waits for them.
- Fork: the threads are the parent's. The child's loop gets a store of its own from its engine, and
  the blocking store must use none of the parent's connections.
"""

from __future__ import annotations

from asyncio import Future, Semaphore, get_running_loop, sleep, timeout, wait
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import random
from typing import Generic, TypeAlias, TypeVar, cast

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, TakeOutcome
from incumbent.net.bounded import AT_ONCE
from incumbent.net.limiter import limits
from incumbent.net.readers import SharedWakeup
from incumbent.stores.base import Store
from incumbent.stores.inline import InlineAsyncStore
from incumbent.stores.plan import BlockingTogether, run_blocking
from incumbent.stores.register_store import PollingOperations
from incumbent.stores.registers import Seen
from incumbent.unpatched import start_thread

__all__ = ["ThreadedAsyncStore"]

T = TypeVar("T")
Polling = TypeVar("Polling", bound=PollingOperations)
Answer: TypeAlias = Future[tuple[T | None, BaseException | None]]

# Seconds after `until` to wait for the thread's own error, which says more.
_LATE = 0.2
# Seconds of one blocking wait for a change: a cancelled wait keeps its thread for that long.
_SLICE = 5.0
# Seconds, half more or less, until a waiter without a thread asks again.
_POLL = 0.5
_CLOSE_WITHIN = 1.0


class ThreadedAsyncStore(InlineAsyncStore):
    """The AsyncStore of one event loop; see the module. `most`: threads for requests."""

    def __init__(self, store: Store, most: int = 16) -> None:
        super().__init__(store)
        self._most = most
        self._requests = Semaphore(most)
        self._waits = Semaphore(most)
        self.limits = limits("this store", max(1, most // 2), SharedWakeup)
        self._takes: dict[Answer[TakeOutcome], str] = {}
        """The claims whose takes are in threads."""

    async def run(self, operation: Callable[[], T], until: float) -> T:
        """Run a blocking operation that ends at `until`. Raises StoreError like the operation."""
        await self._enter(until)
        # Nothing is awaited between the two: a cancellation there would lose the place.
        return await _answer(_start(operation, self._requests), until)

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        await self._enter(until)
        answer = _start(partial(self.store.take, key, claim, ask, until), self._requests)
        # Until the thread has answered, also if this task is cancelled: `give` waits for that.
        self._takes[answer] = claim
        answer.add_done_callback(self._takes.pop)
        return await _answer(answer, until)

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        if takes := [answer for answer, taker in self._takes.items() if taker == claim]:
            await wait(takes, timeout=max(0.0, until - clock.now()))
            if not all(answer.done() for answer in takes):
                raise StoreUnavailable(
                    "the take of this claim is not over yet; it is given back afterwards"
                )
        give = partial(self.store.give, key, claim, token, until, parting=parting)
        return await self.run(give, until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        while (left := until - clock.now()) > 0:
            if self._waits.locked():
                await sleep(min(left, _POLL * (0.5 + random())))
                return
            await self._waits.acquire()
            end = min(until, clock.now() + _SLICE)
            answer = _start(partial(self.store.wait_change, key, seen, end), self._waits)
            if await _has_come(answer, end) and clock.now() < end:
                _outcome(answer)
                return

    async def aclose(self) -> None:
        """Close the blocking store's connections; a later operation opens them again."""
        with suppress(StoreError):
            await self.run(self.store.close, clock.now() + _CLOSE_WITHIN)

    def detach(self) -> None:
        """In a fork's child: there is nothing to close."""

    async def _enter(self, until: float) -> None:
        try:
            async with timeout(max(0.0, until - clock.now())):
                await self._requests.acquire()
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise StoreUnavailable(
                f"{self._most} requests were waiting for the store, so this one was not sent"
            ) from None


def _start(operation: Callable[[], T], places: Semaphore) -> Answer[T]:
    """Run the operation in a thread; the future has its outcome or its error."""
    loop = get_running_loop()
    answer: Answer[T] = loop.create_future()

    def deliver(outcome: T | None, error: BaseException | None) -> None:
        # Here, in the loop's own thread: the semaphore is not made for others.
        places.release()
        answer.set_result((outcome, error))

    def work() -> None:
        outcome, failure = None, None
        try:
            outcome = operation()
        except BaseException as error:  # noqa: BLE001 - it is raised where the task waits
            failure = error
        with suppress(RuntimeError):  # the loop was closed: nobody waits for it
            loop.call_soon_threadsafe(deliver, outcome, failure)

    try:
        start_thread(work, "incumbent-store")
    except RuntimeError as error:
        places.release()
        raise_if_from_signal(error)
        raise StoreUnavailable(f"no thread can be started: {error}; nothing was sent") from error
    return answer


async def _answer(answer: Answer[T], until: float) -> T:
    """What the thread answers. Raises its error, or OutcomeUnknown if there is none by `until`."""
    if not await _has_come(answer, until + _LATE):
        raise OutcomeUnknown("the store did not answer in time; perhaps it did what was asked")
    return _outcome(answer)


async def _has_come(answer: Answer[T], until: float) -> bool:
    # Unlike wait_for, `wait` leaves the future alone when the task is cancelled.
    await wait([answer], timeout=max(0.0, until - clock.now()))
    return answer.done()


def _outcome(answer: Answer[T]) -> T:
    outcome, error = answer.result()
    if error is not None:
        raise error
    return cast("T", outcome)


class ThreadedRegisterStore(ThreadedAsyncStore, Generic[Polling]):
    """The AsyncStore of a store whose driver blocks: a thread for each request.

    A waiter needs none, and shares its looks with the waiters of the blocking side.
    """

    def __init__(self, store: BlockingTogether[Polling]) -> None:
        super().__init__(store)
        self.limits = limits(store.operations.dialect.where, AT_ONCE, SharedWakeup)
        self._blocking = store

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        looks = self._blocking.operations.looks
        await looks.wait(key, seen, until, SharedWakeup(), self._look)

    async def _look(self, key: Key, until: float) -> Seen | StoreError:
        operations = self._blocking.operations
        return await self.run(lambda: run_blocking(operations.look(key, until)), until)
