"""Who is in the body of a lease and waits for its name waits for itself: it is told so at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import incumbent
from incumbent import AsyncElection, AsyncLock, Client, Election, Lock, Misuse, clock
from incumbent.runtime.link import link_for
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually

ITSELF = "would wait for itself"
PATIENCE = 5.0


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def first_wait(engine: FaultyEngine) -> list[Callable[[], Any]]:
    """Every way to wait for the name "a" that blocks."""
    lock = Lock("a", store=engine)
    exclusive = incumbent.exclusive("a", store=engine, timeout=PATIENCE)
    return [
        lock.acquire,
        lambda: lock.acquire(PATIENCE),
        lock.__enter__,
        Election("a", store=engine).campaign,
        lambda: Election("a", store=engine).run(lambda term: None),
        exclusive(lambda: None),
    ]


def first_awaited(engine: FaultyEngine) -> list[Callable[[], Any]]:
    """The same for asyncio."""

    async def nothing(*_: object) -> None: ...

    lock = AsyncLock("a", store=engine)
    return [
        lock.acquire,
        lambda: lock.acquire(PATIENCE),
        lock.__aenter__,
        AsyncElection("a", store=engine).campaign,
        lambda: AsyncElection("a", store=engine).run(nothing),
        incumbent.exclusive("a", store=engine)(nothing),
    ]


@contextlib.contextmanager
def body(engine: FaultyEngine, kind: str) -> Iterator[None]:
    if kind == "lock":
        with Lock("a", store=engine):
            yield
    elif kind == "lease":
        with Lock("a", store=engine).acquire():
            yield
    else:
        with Election("a", store=engine).lead():
            yield


@contextlib.asynccontextmanager
async def async_body(engine: FaultyEngine, kind: str) -> AsyncIterator[None]:
    if kind == "lock":
        async with AsyncLock("a", store=engine):
            yield
    elif kind == "lease":
        async with await AsyncLock("a", store=engine).acquire():
            yield
    else:
        async with AsyncElection("a", store=engine).lead():
            yield


@pytest.mark.parametrize("kind", ["lock", "lease", "term"])
def test_in_a_body_every_wait_for_its_name_is_refused_at_once(
    engine: FaultyEngine, kind: str
) -> None:
    with body(engine, kind):
        began = engine.faulty.calls["take"]
        for wait in first_wait(engine):
            with pytest.raises(Misuse, match=ITSELF):
                wait()
        # Who does not wait hears what the store says.
        assert Lock("a", store=engine).try_acquire() is None
        assert incumbent.exclusive("a", if_held="skip", store=engine)(lambda: 1)() is None
        assert engine.faulty.calls["take"] == began + 2
        with Lock("b", store=engine), Lock("a", namespace="other", store=engine):
            pass
    for wait in (Lock("a", store=engine, timeout=1).acquire, Election("a", store=engine).campaign):
        wait().release()


@pytest.mark.parametrize("kind", ["lock", "lease", "term"])
def test_in_the_body_of_a_task_every_wait_for_its_name_is_refused_at_once(
    engine: FaultyEngine, kind: str
) -> None:
    async def scenario() -> None:
        async with async_body(engine, kind):
            for wait in first_awaited(engine):
                with pytest.raises(Misuse, match=ITSELF):
                    await wait()
            # It would block the loop that has to leave this body.
            for block in first_wait(engine):
                with pytest.raises(Misuse, match=ITSELF):
                    block()
            assert await AsyncLock("a", store=engine).try_acquire() is None
            async with AsyncLock("b", store=engine):
                pass
        await (await AsyncLock("a", store=engine, timeout=1).acquire()).release()

    asyncio.run(scenario())


def test_a_body_that_blocks_refuses_its_own_task_too(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        with Lock("a", store=engine), pytest.raises(Misuse, match=ITSELF):
            await AsyncLock("a", store=engine).acquire()

    asyncio.run(scenario())


def test_an_exclusive_function_that_calls_itself_is_told_so(engine: FaultyEngine) -> None:
    @incumbent.exclusive("a:{depth}", store=engine)
    def down(depth: int, name: int) -> int:
        return down(name, name) + 1 if depth != name else 0

    @incumbent.exclusive("a", store=engine)
    async def again() -> None:
        await again()

    @incumbent.exclusive("a", if_held="skip", store=engine)
    def once_only() -> str:
        return f"{once_only()}"

    assert down(1, 2) == 1  # another argument is another name
    with pytest.raises(Misuse, match=ITSELF):
        asyncio.run(again())
    assert once_only() == "None"
    assert Lock("a", store=engine).held_by() is None


def test_children_wait_for_what_their_parent_holds(engine: FaultyEngine) -> None:
    """They inherit its context, and they are no part of its body."""

    async def child() -> str:
        async with AsyncLock("a", store=engine, timeout=PATIENCE):
            return "its turn"

    async def scenario() -> list[str]:
        async with AsyncLock("a", store=engine):
            children = [asyncio.create_task(child()) for _ in range(3)]
            thread = asyncio.create_task(
                asyncio.to_thread(Lock("a", store=engine, timeout=PATIENCE).acquire)
            )
            while engine.faulty.calls["take"] < 5:
                await asyncio.sleep(0.001)
        (await thread).release()
        return await asyncio.gather(*children)

    assert asyncio.run(scenario()) == ["its turn"] * 3


def test_other_threads_wait_for_a_body_of_this_one(engine: FaultyEngine) -> None:
    def take_turns() -> None:
        with Lock("a", store=engine, timeout=PATIENCE) as lease:
            lease.check()

    with ThreadPoolExecutor(2) as pool:
        with Lock("a", store=engine):
            waiting = [pool.submit(take_turns) for _ in range(2)]
            eventually(lambda: engine.faulty.calls["take"] >= 3)
        for one in waiting:
            one.result(PATIENCE)


def test_a_lease_without_a_body_is_anybodys(engine: FaultyEngine) -> None:
    """It may have been handed to another thread, which gives it back."""
    lease = Lock("a", store=engine).acquire()
    timer = threading.Timer(0.05, lease.release)
    timer.start()
    Lock("a", store=engine, timeout=PATIENCE).acquire().release()
    timer.join()

    async def scenario() -> None:
        lease = await AsyncLock("a", store=engine).acquire()
        giving = asyncio.create_task(lease.release())
        await (await AsyncLock("a", store=engine, timeout=PATIENCE).acquire()).release()
        await giving

    asyncio.run(scenario())


def test_a_lease_that_was_let_go_or_lost_in_its_body_may_be_waited_for(
    engine: FaultyEngine,
) -> None:
    with Lock("a", store=engine).acquire() as lease:
        lease.release()
        Lock("a", store=engine, timeout=1).acquire().release()
    with pytest.raises(incumbent.LeaseLost), Lock("a", store=engine).acquire() as lease:
        lease.belief.leave_to_ttl()
        engine.faulty.give(lease.belief.key, lease.belief.claim_id, None, clock.now() + 30)
        Lock("a", store=engine, timeout=1).acquire().release()
        raise incumbent.LeaseLost


def test_a_body_that_another_thread_leaves_refuses_nobody_any_more(engine: FaultyEngine) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(Lock("a", store=engine))
        thread = threading.Thread(target=stack.pop_all().close)
        thread.start()
        thread.join()
        Lock("a", store=engine, timeout=1).acquire().release()


def test_two_stores_are_told_apart_and_two_clients_of_one_store_are_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with Client(url) as one, Client(url) as two, Client(f"{url}2") as other, one.lock("a"):
        with pytest.raises(Misuse, match=ITSELF):
            two.lock("a").acquire()
        with pytest.raises(Misuse, match=ITSELF):
            Lock("a", store=url).acquire()
        other.lock("a", timeout=1).acquire().release()
    one, two = Client(FaultyEngine()), Client(FaultyEngine())
    with one, two, one.lock("a"):
        two.lock("a", timeout=1).acquire().release()
    link_for(url).close()


def test_a_task_that_nobody_awaits_is_still_collected(engine: FaultyEngine) -> None:
    """A body that is never left keeps neither its task nor its lease alive."""

    async def stuck(entered: asyncio.Event) -> None:
        async with AsyncLock("a", store=engine):
            entered.set()
            await asyncio.get_running_loop().create_future()

    async def scenario() -> weakref.ref[asyncio.Task[None]]:
        entered = asyncio.Event()
        task = asyncio.create_task(stuck(entered))
        await entered.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return weakref.ref(task)

    task = asyncio.run(scenario())
    gc.collect()
    assert task() is None


class World:
    """Three threads, three names: bodies and bare leases, entered and left in any order."""

    def __init__(self) -> None:
        self.engine = FaultyEngine()
        self.threads = [ThreadPoolExecutor(1) for _ in range(3)]
        self.bodies: dict[int, tuple[int, contextlib.ExitStack]] = {}
        self.bare: dict[int, incumbent.Lease] = {}

    def step(self, what: str, me: int, name: int) -> None:
        call = self.threads[me].submit
        if what in ("enter", "acquire"):
            expected = self.expected(me, name)
            assert call(self.attempt, me, name, entering=what == "enter").result() == expected
        elif what == "leave" and name in self.bodies:
            call(self.bodies.pop(name)[1].close).result()
        elif what == "give" and name in self.bare:
            call(self.bare.pop(name).release).result()

    def expected(self, me: int, name: int) -> str:
        if name in self.bodies and self.bodies[name][0] == me:
            return "refused"
        return "held" if name in self.bodies or name in self.bare else "granted"

    def attempt(self, me: int, name: int, *, entering: bool) -> str:
        try:
            lease = Lock(str(name), store=self.engine).acquire(0.001)
        except Misuse:
            return "refused"
        except incumbent.AcquireTimeout:
            return "held"
        if entering:
            stack = contextlib.ExitStack()
            stack.enter_context(lease)
            self.bodies[name] = (me, stack)
        else:
            self.bare[name] = lease
        return "granted"

    def end(self) -> None:
        for _, stack in self.bodies.values():
            stack.close()
        for lease in self.bare.values():
            lease.release()
        for thread in self.threads:
            thread.shutdown()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("enter", "leave", "acquire", "give")),
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        max_size=25,
    )
)
def test_a_wait_is_refused_exactly_where_its_own_body_is_what_it_waits_for(
    steps: list[tuple[str, int, int]],
) -> None:
    world = World()
    try:
        for what, me, name in steps:
            world.step(what, me, name)
    finally:
        world.end()
