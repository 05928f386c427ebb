"""A blocking store for coroutines: bounded threads, deadlines, cancellation, ends and forks."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from incumbent import AsyncLock, NotAcquired, clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Gone,
    Granted,
    Key,
    Parting,
    Record,
    Released,
    TakeOutcome,
)
from incumbent.stores import threaded
from incumbent.stores.loops import ServerEngine
from incumbent.stores.memory import MemoryEngine, MemoryStore
from incumbent.stores.threaded import ThreadedAsyncStore
from tests.contract.wired import WireEngine, WireServer
from tests.support.forks import in_a_child
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

KEY = Key("threads", "job")
SOON = 20.0


class Gated(MemoryStore):
    """Takes and reads wait at a gate; `begun` and `done` say which requests came how far."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.begun: list[str] = []
        self.done: list[str] = []
        self.names: set[str] = set()

    def _pass(self, what: str) -> None:
        self.begun.append(what)
        self.names.add(threading.current_thread().name)
        self.gate.wait(SOON)
        self.done.append(what)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        self._pass(f"take {claim}")
        return super().take(key, claim, ask, until)

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        self.done.append(f"give {claim}")
        return super().give(key, claim, token, until, parting=parting)

    def read(self, key: Key, until: float) -> Record:
        self._pass("read")
        return super().read(key, until)


@pytest.fixture
def blocking() -> Iterator[Gated]:
    store = Gated()
    yield store
    store.gate.set()


async def begun(blocking: Gated, count: int) -> None:
    give_up = clock.now() + SOON
    while len(blocking.begun) < count:
        assert clock.now() < give_up, blocking.begun
        await asyncio.sleep(0.001)


def in_time() -> float:
    return clock.now() + SOON


def take(store: ThreadedAsyncStore, claim: str = "mine") -> asyncio.Task[TakeOutcome]:
    return asyncio.create_task(store.take(KEY, claim, Ask(60.0, claim), in_time()))


def test_a_request_runs_in_a_thread_while_the_loop_goes_on(blocking: Gated) -> None:
    async def main() -> None:
        task = take(ThreadedAsyncStore(blocking))
        await begun(blocking, 1)
        blocking.gate.set()
        assert isinstance(await task, Granted)
        assert blocking.names == {"incumbent-store"}

    asyncio.run(main())


def test_an_error_of_the_store_is_raised_where_the_task_waits() -> None:
    class Broken(MemoryStore):
        def read(self, key: Key, until: float) -> Record:
            raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable, match="away"):
        asyncio.run(ThreadedAsyncStore(Broken()).read(KEY, in_time()))


def test_no_more_requests_are_in_threads_than_there_are_places(blocking: Gated) -> None:
    async def main() -> None:
        store = ThreadedAsyncStore(blocking, most=2)
        tasks = [take(store, f"claim-{index}") for index in range(5)]
        await begun(blocking, 2)
        await asyncio.sleep(0.02)
        assert len(blocking.begun) == 2
        blocking.gate.set()
        outcomes = await asyncio.gather(*tasks)
        assert sum(isinstance(it, Granted) for it in outcomes) == 1
        assert len(blocking.done) == 5

    asyncio.run(main())


def test_a_request_that_gets_no_place_in_time_was_not_sent(blocking: Gated) -> None:
    async def main() -> None:
        store = ThreadedAsyncStore(blocking, most=1)
        first = take(store)
        await begun(blocking, 1)
        with pytest.raises(StoreUnavailable, match="not sent"):
            await store.read(KEY, clock.now() + 0.05)
        blocking.gate.set()
        await first
        assert blocking.begun == ["take mine"]

    asyncio.run(main())


def test_a_request_that_is_late_is_in_doubt_and_keeps_its_place(blocking: Gated) -> None:
    async def main() -> None:
        store = ThreadedAsyncStore(blocking, most=1)
        with pytest.raises(OutcomeUnknown):
            await store.read(KEY, clock.now() + 0.05)
        with pytest.raises(StoreUnavailable):
            await store.read(KEY, clock.now() + 0.05)
        blocking.gate.set()
        await store.read(KEY, in_time())
        assert blocking.begun == ["read", "read"]

    asyncio.run(main())


def test_who_is_cancelled_leaves_at_once_and_its_request_goes_on(blocking: Gated) -> None:
    async def main() -> None:
        store = ThreadedAsyncStore(blocking)
        task = take(store)
        await begun(blocking, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert blocking.done == []
        blocking.gate.set()
        give_up = in_time()
        while not (holdings := (await store.read(KEY, in_time())).holdings):
            assert clock.now() < give_up
        assert holdings[0].claim == "mine"

    asyncio.run(main())


def test_who_is_cancelled_before_it_has_a_place_sends_nothing(blocking: Gated) -> None:
    async def main() -> None:
        store = ThreadedAsyncStore(blocking, most=1)
        first = take(store, "first")
        await begun(blocking, 1)
        second = take(store, "second")
        await asyncio.sleep(0.01)
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        blocking.gate.set()
        await first
        await store.read(KEY, in_time())
        assert blocking.done == ["take first", "read"]

    asyncio.run(main())


def test_a_give_does_not_overtake_the_take_that_was_cancelled(blocking: Gated) -> None:
    async def main() -> None:
        store = ThreadedAsyncStore(blocking)
        task = take(store)
        await begun(blocking, 1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        giving = asyncio.create_task(store.give(KEY, "mine", None, in_time()))
        other = await store.give(KEY, "another", None, in_time())
        assert other == Gone()
        assert not giving.done()
        blocking.gate.set()
        assert await giving == Released()
        assert blocking.done == ["give another", "take mine", "give mine"]

    asyncio.run(main())


def test_a_give_whose_take_is_not_over_in_time_was_not_sent(blocking: Gated) -> None:
    async def main() -> None:
        store = ThreadedAsyncStore(blocking)
        task = take(store)
        await begun(blocking, 1)
        with pytest.raises(StoreUnavailable, match="given back afterwards"):
            await store.give(KEY, "mine", None, clock.now() + 0.05)
        blocking.gate.set()
        assert isinstance(await task, Granted)
        assert blocking.done == ["take mine"]

    asyncio.run(main())


def test_a_loop_ends_while_requests_are_in_threads(
    blocking: Gated, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        take(ThreadedAsyncStore(blocking))
        await begun(blocking, 1)

    began = clock.now()
    asyncio.run(main())
    assert clock.now() - began < SOON / 2
    blocking.gate.set()
    eventually(lambda: "incumbent-store" not in {it.name for it in threading.enumerate()})
    assert capsys.readouterr().err == ""


_LEAVES = f"""
import asyncio, time
from incumbent.model import Key
from incumbent.stores.memory import MemoryEngine, MemoryStore
from incumbent.stores.threaded import ThreadedAsyncStore

class Hangs(MemoryStore):
    def read(self, key, until):
        time.sleep({SOON})

async def main():
    asyncio.ensure_future(ThreadedAsyncStore(Hangs()).read(Key("a", "b"), 1e9))
    await asyncio.sleep(0.05)

asyncio.run(main())
"""


def test_a_request_in_a_thread_keeps_no_program_from_its_exit() -> None:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", _LEAVES], check=True, timeout=SOON)
    assert time.monotonic() - began < SOON / 2


def test_waits_take_no_place_from_requests(blocking: Gated) -> None:
    async def main() -> None:
        blocking.gate.set()
        store = ThreadedAsyncStore(blocking, most=2)
        await store.take(KEY, "mine", Ask(60.0, "me"), in_time())
        seen = (await store.read(KEY, in_time())).seen
        waits = [asyncio.create_task(store.wait_change(KEY, seen, in_time())) for _ in range(4)]
        # Two have threads; the others return after a moment, so that their callers ask again.
        done, _ = await asyncio.wait(waits, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        assert done <= set(waits[2:])
        assert await store.give(KEY, "mine", None, in_time()) == Released()
        await asyncio.wait_for(asyncio.gather(*waits), SOON)

    asyncio.run(main())


def test_a_wait_that_was_cancelled_gives_its_thread_back(
    blocking: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded, "_SLICE", 0.02)

    async def main() -> None:
        store = ThreadedAsyncStore(blocking, most=1)
        wait = asyncio.create_task(store.wait_change(KEY, "", in_time()))
        await asyncio.sleep(0.05)
        wait.cancel()
        give_up = in_time()
        while store._waits.locked():
            assert clock.now() < give_up
            await asyncio.sleep(0.005)

    asyncio.run(main())


def test_a_wait_without_a_change_lasts_until_its_end(
    blocking: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded, "_SLICE", 0.02)
    began = clock.now()
    asyncio.run(ThreadedAsyncStore(blocking).wait_change(KEY, "", began + 0.1))
    assert clock.now() - began >= 0.1


def test_where_no_thread_can_be_started_nothing_was_sent(
    blocking: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        store = ThreadedAsyncStore(blocking, most=1)
        blocking.gate.set()
        with monkeypatch.context() as patch:
            patch.setattr(threaded, "start_thread", none_left)
            with pytest.raises(StoreUnavailable, match="can't start new thread"):
                await store.read(KEY, in_time())
        await store.read(KEY, in_time())
        assert blocking.begun == ["read"]

    asyncio.run(main())


def test_the_loop_of_a_forked_child_has_threads_of_its_own(blocking: Gated) -> None:
    engine = ServerEngine("gated:", blocking, lambda: ThreadedAsyncStore(blocking, most=1))

    async def main() -> int:
        task = take(engine.async_store())
        await begun(blocking, 1)

        async def in_the_child() -> int:
            blocking.gate.set()
            await engine.async_store().read(KEY, in_time())
            return 0

        child = await asyncio.to_thread(in_a_child, lambda: asyncio.run(in_the_child()))
        blocking.gate.set()
        await task
        return child

    assert asyncio.run(main()) == 0


def test_a_lock_that_was_cancelled_in_its_acquire_is_free_for_others() -> None:
    name = f"threaded-{secrets.token_hex(4)}"

    async def main(proxy: FaultProxy, engine: WireEngine) -> None:
        proxy.hold_replies()
        lock = AsyncLock(name, store=engine)
        acquiring = asyncio.create_task(lock.acquire(timeout=SOON))
        give_up = in_time()
        while not proxy.holds:
            assert clock.now() < give_up
            await asyncio.sleep(0.005)
        acquiring.cancel()
        await asyncio.sleep(0.01)
        proxy.heal()
        with suppress(asyncio.CancelledError, NotAcquired):
            await acquiring
        async with AsyncLock(name, store=engine, timeout=SOON):
            pass

    with WireServer() as server, FaultProxy(server.port) as proxy:
        engine = WireEngine(proxy.port, threaded=True)
        with closing(engine.store()):
            asyncio.run(main(proxy, engine))


class SlowEngine(ServerEngine[MemoryStore, ThreadedAsyncStore]):
    """Takes of 0.05 s, two in threads at a time. `not_sent`: those whose time was over before."""

    capabilities = MemoryEngine.capabilities

    def __init__(self) -> None:
        engine, store = self, MemoryStore()
        self.not_sent: list[StoreUnavailable] = []

        class Slow(MemoryStore):
            def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
                time.sleep(0.05)
                return store.take(key, claim, ask, until)

            def give(self, *args: Any, **parting: Any) -> GiveOutcome:
                return store.give(*args, **parting)

        class Threads(ThreadedAsyncStore):
            async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
                try:
                    return await super().take(key, claim, ask, until)
                except StoreUnavailable as error:
                    engine.not_sent.append(error)
                    raise

        super().__init__("slow", store, lambda: Threads(Slow(), most=2))

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        return []


def test_of_many_at_once_each_waits_for_its_turn_before_its_time_begins() -> None:
    engine = SlowEngine()

    async def main() -> None:
        async def one(at: int) -> None:
            async with AsyncLock(f"many-{at}", store=engine, timeout=60.0):
                pass

        await asyncio.gather(*map(one, range(60)))

    asyncio.run(main())
    assert not engine.not_sent
