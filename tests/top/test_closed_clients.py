"""Who waits on a client, or lives on it, hears at once that it was closed; what is owed is paid."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

import incumbent
from incumbent import AsyncClient, Client, Lock, Misuse, clock
from incumbent.stores.plan import run_blocking
from tests import tiers
from tests.support.faulty import Fault, FaultyEngine
from tests.support.pace import LONG, WOKEN, took
from tests.support.waiting import eventually

TTL = 300
"""Seconds: who is not woken looks by itself after a third of it."""
CLOSED = "the client that this came from was closed"


def in_thread(work: Callable[[], object]) -> Callable[[], BaseException | None]:
    """Begin `work` in a thread; the result waits for its end, and has the error."""
    errors: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)
        else:
            errors.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def error() -> BaseException | None:
        thread.join(LONG)
        assert not thread.is_alive(), "it waits on"
        return errors[0]

    return error


def waits(client: Client | AsyncClient, number: int) -> Callable[[], bool]:
    return lambda: len(client._link.client_end.waits) >= number


def owes_nothing(client: Client | AsyncClient) -> bool:
    state = client._link.keeper._state
    return state.debts.first() == inf and state.thread.alarm is None


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis", "postgresql")
def test_who_waits_hears_of_the_close_at_once(every_store: str) -> None:
    client = Client(every_store, ttl=TTL)
    can = client._link.engine.capabilities
    with Lock("a", store=every_store, ttl=TTL):
        ways: list[Callable[[], object]] = [
            client.lock("a").acquire,
            # Another one: of the waiters of a process, one listens to the store.
            client.lock("a").acquire,
            client.lock("a", fair=can.queue).acquire,
            client.multi_lock(["0", "a", "b"]).acquire,
            *([client.semaphore("a", 2).acquire] if can.shared else []),
            client.election("a").campaign,
            lambda: list(client.election("a").observe()),
            lambda: list(client.group("g").observe()),
        ]
        errors = [in_thread(way) for way in ways]
        eventually(waits(client, len(ways)))
        began = clock.now()
        client.close()
        for error in errors:
            assert CLOSED in str(error())
            assert isinstance(error(), Misuse)
        assert took(began) < WOKEN
        with Client(every_store) as other:
            eventually(lambda: not other.read("0").holdings)
        eventually(lambda: owes_nothing(client))


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis", "postgresql")
def test_a_task_that_waits_hears_of_the_close_at_once(every_store: str) -> None:
    async def last(news: Any) -> None:
        async for _ in news:
            pass

    async def scenario() -> None:
        client = AsyncClient(every_store, ttl=TTL)
        can = client._link.engine.capabilities
        tasks = [
            asyncio.ensure_future(wait)
            for wait in (
                client.lock("a").acquire(),
                client.lock("a").acquire(),
                client.lock("a", fair=can.queue).acquire(),
                client.multi_lock(["0", "a", "b"]).acquire(),
                *([client.semaphore("a", 2).acquire()] if can.shared else []),
                client.election("a").campaign(),
                last(client.election("a").observe()),
                last(client.group("g").observe()),
            )
        ]
        while not waits(client, len(tasks))():
            await asyncio.sleep(0.01)
        began = clock.now()
        await client.aclose()
        for error in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG):
            assert CLOSED in str(error)
            assert isinstance(error, Misuse)
        assert took(began) < WOKEN
        eventually(lambda: owes_nothing(client))

    with Lock("a", store=every_store, ttl=TTL), Client(every_store) as other:
        asyncio.run(scenario())
        eventually(lambda: not other.read("0").holdings)


def test_a_wait_that_began_beside_the_close_is_ended_too(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, arrived, closed = Client(engine), threading.Event(), threading.Event()
    wait_change = engine.faulty.wait_change

    def late(*args: Any) -> None:
        arrived.set()
        closed.wait(LONG)
        wait_change(*args)

    monkeypatch.setattr(engine.faulty, "wait_change", late)
    with Lock("a", store=engine, ttl=TTL):
        error = in_thread(client.lock("a", ttl=TTL).acquire)
        assert arrived.wait(LONG)
        client.close()
        closed.set()
        assert isinstance(error(), Misuse)


def test_who_waits_out_an_outage_hears_of_the_close_at_once(engine: FaultyEngine) -> None:
    engine.faulty.down = True
    client = Client(engine)
    errors = [in_thread(client.lock("a").acquire), in_thread(client.group("g").observe().__next__)]
    eventually(waits(client, 2))
    client.close()
    assert all(isinstance(error(), Misuse) for error in errors)


def test_a_sleep_ends_with_the_close(engine: FaultyEngine) -> None:
    """Not only what waits in the store, whose close ends that."""
    client, long = Client(engine), clock.now() + TTL
    error = in_thread(lambda: run_blocking(client._link.port.sleep_until(long)))

    async def scenario() -> None:
        task = asyncio.create_task(client._link.async_port().sleep_until(long))
        while not waits(client, 2)():
            await asyncio.sleep(0.01)
        client.close()
        with pytest.raises(Misuse, match=CLOSED):
            await asyncio.wait_for(task, LONG)

    asyncio.run(scenario())
    assert isinstance(error(), Misuse)


def test_a_member_of_a_group_hears_of_the_close(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(engine, ttl=TTL)
    with pytest.raises(Misuse, match=CLOSED), client.group("g").join():
        eventually(waits(client, 1))
        client.close()
        eventually(lambda: CLOSED in caplog.text)
    assert Client(engine).group("g").members() == ()


def test_the_members_are_not_asked_for_on_a_closed_client(engine: FaultyEngine) -> None:
    """It would connect anew, and nobody would close that."""
    client = Client(engine)
    group = client.group("g")
    client.close()
    with pytest.raises(Misuse, match=f"'g': {CLOSED}"):
        group.members()

    async def scenario() -> None:
        async_client = AsyncClient(engine)
        async_group = async_client.group("g")
        await async_client.aclose()
        with pytest.raises(Misuse, match=f"'g': {CLOSED}"):
            await async_group.members()

    asyncio.run(scenario())
    assert not engine.faulty.calls["read"]


def test_a_task_that_is_a_member_hears_of_the_close(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        client = AsyncClient(engine, ttl=TTL)
        with pytest.raises(Misuse, match=CLOSED):
            async with client.group("g").join():
                while not waits(client, 1)():
                    await asyncio.sleep(0.01)
                await client.aclose()
                await asyncio.sleep(0.05)
        assert await AsyncClient(engine).group("g").members() == ()

    asyncio.run(scenario())


def test_shards_end_with_their_client(engine: FaultyEngine) -> None:
    client, begun = Client(engine, ttl=TTL), threading.Event()

    def work(shard: incumbent.Shard) -> None:
        begun.set()
        shard.wait_stop()

    error = in_thread(lambda: client.shards("s", 1).run(work))
    assert begun.wait(LONG)
    eventually(waits(client, 1))
    client.close()
    assert isinstance(error(), Misuse)
    eventually(lambda: not Lock("s/0", store=engine).locked())


def test_a_candidate_beside_a_body_hears_of_the_close(engine: FaultyEngine) -> None:
    client = Client(engine, ttl=TTL)
    with (
        Lock("a", store=engine, ttl=TTL),
        pytest.raises(Misuse, match=CLOSED),
        client.election("a").running(lambda _: None),
    ):
        eventually(waits(client, 1))
        client.close()
        # The candidacy is over before the body is.
        eventually(lambda: not waits(client, 1)())


def test_a_candidacy_that_was_over_before_the_close_ends_without_an_error(
    engine: FaultyEngine,
) -> None:
    client, begun = Client(engine), threading.Event()

    def work(term: incumbent.Term) -> None:
        begun.set()
        term.wait_stop()

    with client.election("a").running(work):
        assert begun.wait(LONG)
        client.close()
    eventually(lambda: not Lock("a", store=engine).locked())


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_lease_that_comes_after_the_close_is_given_back(
    names: list[str], engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, take = Client(engine, ttl=TTL), engine.faulty.take

    def closing(*args: Any) -> Any:
        outcome = take(*args)
        client.close()
        return outcome

    monkeypatch.setattr(engine.faulty, "take", closing)
    with pytest.raises(Misuse, match=CLOSED):
        client.multi_lock(names).acquire()
    monkeypatch.undo()
    eventually(lambda: not any(Lock(name, store=engine).locked() for name in names))


def test_a_renewal_is_not_awaited_on_a_closed_client(engine: FaultyEngine) -> None:
    client = Client(engine, ttl=TTL)
    lease = client.lock("a").acquire()
    client.close()
    began = clock.now()
    with pytest.raises(Misuse, match=CLOSED):
        lease.renew()
    assert took(began) < WOKEN
    assert lease.release()


def test_what_is_owed_after_the_close_is_paid_soon(engine: FaultyEngine) -> None:
    client = Client(engine, ttl=TTL)
    lease = client.lock("a").acquire()
    client.close()
    engine.faulty.plan("give", Fault.NOT_SENT, Fault.NOT_SENT)
    assert not lease.release()
    eventually(lambda: not Lock("a", store=engine).locked())
    eventually(lambda: owes_nothing(client))


def test_what_is_owed_at_the_close_is_paid_once_the_store_answers(engine: FaultyEngine) -> None:
    client = Client(engine, ttl=TTL)
    lease = client.lock("a").acquire()
    engine.faulty.down = True
    assert not lease.release()
    client.close()
    engine.faulty.down = False
    eventually(lambda: not Lock("a", store=engine).locked())


def test_nobody_pays_for_ever_after_the_close(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incumbent.runtime.keeper._PAID_FOR", 0.0)
    client = Client(engine, ttl=0.3)
    lease = client.lock("a").acquire()
    engine.faulty.down = True
    assert not lease.release()
    client.close()
    assert eventually(lambda: client._link.keeper._state.thread.alarm is None)
    engine.faulty.down = False
