"""Other loops: the blocking side works in their threads, the asyncio side is for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import incumbent
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually

REFUSED = "needs a running event loop of asyncio: under trio call the blocking side in a thread"


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


async def acquired(store: FaultyEngine) -> None:
    await incumbent.AsyncLock("a", store=store).acquire()


async def entered(store: FaultyEngine) -> None:
    async with incumbent.AsyncLock("a", store=store):
        pass


async def asked(store: FaultyEngine) -> None:
    await incumbent.AsyncLock("a", store=store).locked()


async def read(store: FaultyEngine) -> None:
    await incumbent.AsyncClient(store).read("a")


async def scanned(store: FaultyEngine) -> None:
    await incumbent.AsyncClient(store).scan()


async def campaigned(store: FaultyEngine) -> None:
    await incumbent.AsyncElection("a", store=store).campaign()


async def watched(store: FaultyEngine) -> None:
    async for _ in incumbent.AsyncElection("a", store=store).observe():
        pass


async def ran(store: FaultyEngine) -> None:
    async def work(term: incumbent.AsyncTerm) -> None: ...

    async with incumbent.AsyncElection("a", store=store).running(work):
        pass


async def decorated(store: FaultyEngine) -> None:
    @incumbent.exclusive("a", store=store)
    async def body() -> None: ...

    await body()


def on_trio(use: Callable[[FaultyEngine], Awaitable[None]], store: FaultyEngine) -> None:
    # Each worker imports this file, and one of them needs trio.
    import trio

    trio.run(use, store)


@pytest.mark.parametrize(
    "use", [acquired, entered, asked, read, scanned, campaigned, watched, ran, decorated]
)
def test_under_trio_the_asyncio_side_is_refused_in_one_sentence(
    engine: FaultyEngine, use: Callable[[FaultyEngine], Awaitable[None]]
) -> None:
    with pytest.raises(incumbent.Misuse, match=REFUSED):
        on_trio(use, engine)
    assert not engine.faulty.calls["take"]


def test_it_is_refused_there_also_after_it_was_used_on_asyncio(engine: FaultyEngine) -> None:
    anyio.run(entered, engine)
    with pytest.raises(incumbent.Misuse, match=REFUSED):
        on_trio(entered, engine)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_tasks_of_a_group_exclude_each_other_by_the_blocking_side_in_threads(
    engine: FaultyEngine, backend: str
) -> None:
    inside, most = [0], [0]

    def work() -> None:
        with incumbent.Lock("a", store=engine, timeout=20):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(anyio.to_thread.run_sync, work)

    anyio.run(main, backend=backend)
    assert most == [1]
    assert engine.faulty.calls["give"] == 5


def test_in_task_groups_of_anyio_on_asyncio_the_asyncio_side_works(engine: FaultyEngine) -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        async with incumbent.AsyncLock("a", store=engine, timeout=20):
            order.append(f"+{name}")
            await anyio.lowlevel.checkpoint()
            order.append(f"-{name}")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for name in "xyz":
                group.start_soon(work, name)

    anyio.run(main)
    assert [one[1] for one in order[::2]] == [one[1] for one in order[1::2]]
    assert len(order) == 6


def test_a_lost_lease_cancels_the_task_group_of_anyio_in_its_body(engine: FaultyEngine) -> None:
    cleaned_up = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned_up.append(True)

    async def main() -> None:
        async with incumbent.AsyncLock("a", store=engine, ttl=0.3, grace=0.1):
            engine.faulty.down = True
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                await anyio.sleep_forever()

    with pytest.raises(incumbent.LeaseLost):
        anyio.run(main)
    assert cleaned_up == [True]


def test_a_cancelled_scope_of_anyio_gives_the_lease_back(engine: FaultyEngine) -> None:
    async def main() -> None:
        with anyio.move_on_after(0.05):
            async with incumbent.AsyncLock("a", store=engine):
                await anyio.sleep_forever()

    anyio.run(main)
    # Such a scope cancels the release as well, so the keeper tells the store.
    eventually(lambda: not incumbent.Lock("a", store=engine).locked())
