"""Many tasks on the one connection of a loop: each gets its own answer, whatever others do."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent import AsyncLock, clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Gone, Granted, Key, Refused, Released, Stored
from incumbent.stores.redis.aio import AsyncRedisStore, AsyncRedisWire
from tests.stores.redis.world import ASK, Party, new_claim, party, soon
from tests.support.forks import exit_code, fork
from tests.support.pace import BUSY, took
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

TASKS = int(os.environ.get("INCUMBENT_STORM_TASKS", "1500"))


@pytest.fixture
def here(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


def a_key() -> Key:
    return Key("faults", secrets.token_hex(6))


def shared(store: AsyncRedisStore) -> AsyncRedisWire:
    assert store._shared is not None
    return store._shared


# -- one connection


def test_many_tasks_share_one_connection_also_when_all_begin_at_once(
    redis_server: RedisServer,
) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        store = one.engine.async_store()
        for _ in range(3):
            takes = (store.take(a_key(), new_claim(), ASK, soon()) for _ in range(100))
            outcomes = await asyncio.gather(*takes)
            assert {type(outcome) for outcome in outcomes} == {Granted}
        assert proxy.accepted == 1

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy), debug=True)


def reads_of(server: RedisServer) -> int:
    lines = server.cli("INFO", "stats").splitlines()
    return int(next(line for line in lines if line.startswith("total_reads")).split(":")[1])


def test_requests_that_are_ready_together_leave_together(own_redis: RedisServer) -> None:
    async def main(one: Party) -> None:
        store = one.engine.async_store()
        await one.take_async()
        before = reads_of(own_redis)
        takes = (store.take(a_key(), new_claim(), ASK, soon()) for _ in range(100))
        await asyncio.gather(*takes)
        assert reads_of(own_redis) - before < 10

    with party(own_redis.url) as one:
        asyncio.run(main(one))


def test_a_request_that_is_alone_does_not_wait_for_others(here: Party) -> None:
    async def main() -> None:
        await here.take_async()
        wire = shared(here.engine.async_store())
        wire.ask(b"*1\r\n$4\r\nPING\r\n", soon())
        assert wire._unsent == []
        wire.ask(b"*1\r\n$4\r\nPING\r\n", soon())
        assert len(wire._unsent) == 1

    asyncio.run(main())


# -- tasks that give up


def test_in_a_storm_of_cancellations_every_answer_belongs_to_its_question(here: Party) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    wrong: list[object] = []

    async def ask_things(store: AsyncRedisStore) -> None:
        key, claim, value = a_key(), new_claim(), secrets.token_bytes(rng.randrange(1, 200))
        # Some have too little time, so that answers come late as well.
        until = clock.now() + rng.choice([0.0005, 0.003, 0.01, 2.0, 2.0])
        try:
            granted = await store.take(key, claim, ASK, until)
            wrong.extend([] if isinstance(granted, Granted) else [granted])
            stored = await store.put(key, "mine", value, None, until)
            wrong.extend([] if stored == Stored(1) else [stored])
            record = await store.read(key, until)
            wrong.extend([] if record.fields["mine"].value == value else [record])
            refused = await store.take(key, new_claim(), ASK, until)
            wrong.extend([] if isinstance(refused, Refused) else [refused])
            given = await store.give(key, claim, None, until)
            wrong.extend([] if given in (Released(), Gone()) else [given])
        except StoreError:
            pass

    async def storm() -> None:
        store = here.engine.async_store()
        tasks: list[asyncio.Task[None]] = []
        for _ in range(TASKS):
            tasks.append(asyncio.create_task(ask_things(store)))
            if rng.random() < 0.3:
                rng.choice(tasks[-60:]).cancel()
            if rng.random() < 0.05:
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.004]))
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        unexpected = [
            each
            for each in ended
            if isinstance(each, BaseException) and not isinstance(each, asyncio.CancelledError)
        ]
        assert (wrong, unexpected) == ([], []), f"seed {seed}"
        assert any(isinstance(each, asyncio.CancelledError) for each in ended)

    asyncio.run(storm())


def test_a_cancelled_task_does_not_shift_the_answers_of_the_others(
    here: Party, redis_server: RedisServer
) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        store = one.engine.async_store()
        await one.take_async()
        proxy.delay(0.0, reply=0.1)
        tasks = [
            asyncio.create_task(store.take(a_key(), new_claim(), ASK, soon())) for _ in range(2)
        ]
        kept = asyncio.create_task(one.take_async())
        await asyncio.sleep(0.03)
        for task in tasks:
            task.cancel()
        assert (await kept).claim == one.claim
        assert proxy.accepted == 1
        # A task that was cancelled late may have sent one more request, to check the server.
        async with asyncio.timeout(10):
            while shared(store)._asked:
                await asyncio.sleep(0.01)

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


def test_what_nobody_waits_for_any_more_is_not_sent(here: Party) -> None:
    async def main() -> None:
        store = here.engine.async_store()
        await here.take_async()
        first = asyncio.create_task(store.read(here.key, soon()))
        key = a_key()
        second = asyncio.create_task(store.take(key, new_claim(), ASK, soon()))
        await asyncio.sleep(0)
        second.cancel()
        await first
        assert (await store.read(key, soon())).holdings == ()

    asyncio.run(main())


def test_an_exception_between_noting_and_sending_ends_the_connection(
    here: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(_: bytes) -> None:
        raise Interrupted

    async def main() -> None:
        await here.take_async()
        store = here.engine.async_store()
        wire = shared(store)
        with monkeypatch.context() as patch:
            patch.setattr(wire._transport, "write", interrupt)
            with pytest.raises(Interrupted):
                await here.take_async()
        assert wire.closed
        assert isinstance(await store.read(here.key, soon()), object)

    asyncio.run(main())


# -- answers that do not come


def test_a_task_without_time_leaves_the_others_theirs(redis_server: RedisServer) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        store = one.engine.async_store()
        await one.take_async()
        proxy.delay(0.0, reply=0.3)
        hasty = asyncio.create_task(store.take(a_key(), new_claim(), ASK, soon(0.1)))
        patient = asyncio.create_task(one.take_async())
        with pytest.raises(OutcomeUnknown):
            await hasty
        assert (await patient).claim == one.claim
        assert proxy.accepted == 1

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


def test_a_connection_that_fell_silent_gets_no_further_request(redis_server: RedisServer) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        store = one.engine.async_store()
        await one.take_async()
        silent = shared(store)
        proxy.drop_requests()
        patient = asyncio.create_task(store.take(a_key(), new_claim(), ASK, soon(3.0)))
        with pytest.raises(OutcomeUnknown):
            await one.take_async(within=0.1)
        # Who waits on it still does; who comes now gets another.
        assert silent.retired
        assert not silent.closed
        proxy._set(lost=frozenset())
        assert (await one.take_async()).claim == one.claim
        assert proxy.accepted == 2
        with pytest.raises(OutcomeUnknown):
            await patient
        assert silent.closed

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


def test_a_request_whose_time_passed_before_it_was_written_is_not_sent(
    redis_server: RedisServer,
) -> None:
    async def main(one: Party) -> None:
        store, key = one.engine.async_store(), a_key()
        await one.take_async()
        before = asyncio.create_task(store.read(one.key, soon()))
        hasty = asyncio.create_task(store.take(key, new_claim(), ASK, soon(0.1)))
        await asyncio.sleep(0)
        # Both have asked; the second is to be written after this step of the loop.
        time.sleep(0.2)  # noqa: ASYNC251 - the step that takes long
        with pytest.raises(StoreUnavailable, match="no time is left"):
            await hasty
        assert (await before).holdings
        assert not (await store.read(key, soon())).holdings

    with party(redis_server.url) as one:
        asyncio.run(main(one))


def test_an_answer_that_came_in_time_counts_however_late_the_loop_reads_it(
    redis_server: RedisServer,
) -> None:
    async def main(one: Party) -> None:
        await one.take_async()
        read = asyncio.create_task(one.engine.async_store().read(one.key, soon(0.3)))
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - the step that takes long
        assert (await read).holdings

    with party(redis_server.url) as one:
        asyncio.run(main(one))


def test_cancellations_do_not_keep_a_silent_connection_in_use(redis_server: RedisServer) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        await one.take_async()
        silent = shared(one.engine.async_store())
        proxy.drop_requests()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await one.take_async(within=0.1)
        while not silent.closed:
            await asyncio.sleep(0.01)

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


def test_a_frozen_server_holds_nobody_beyond_his_own_deadline(own_redis: RedisServer) -> None:
    async def one_take(store: AsyncRedisStore, within: float) -> float:
        began = clock.now()
        with pytest.raises(StoreError):
            await store.take(a_key(), new_claim(), ASK, began + within)
        return clock.now() - began - within

    async def main(one: Party) -> None:
        store = one.engine.async_store()
        await one.take_async()
        own_redis.freeze()
        late = await asyncio.gather(*(one_take(store, 0.3 * i) for i in range(1, 12)))
        # Who had to wait for the others would be late by three seconds.
        assert max(late) < BUSY
        own_redis.thaw()
        assert (await one.take_async()).claim == one.claim

    with party(own_redis.url) as one:
        asyncio.run(main(one))


def test_a_client_that_was_killed_connects_again(own_redis: RedisServer) -> None:
    async def work(store: AsyncRedisStore, until: float) -> None:
        while clock.now() < until:
            key, claim = a_key(), new_claim()
            try:
                granted = await store.take(key, claim, ASK, soon())
                assert isinstance(granted, Granted)
                assert granted.claim == claim
                # Asked for again where the answer was lost, so "gone" is right then.
                assert await store.give(key, claim, None, soon()) in (Released(), Gone())
            except StoreError:
                # Killed between asking and answering, or while it was being made.
                pass

    async def main(one: Party) -> None:
        store = one.engine.async_store()
        workers = [asyncio.create_task(work(store, soon(0.5))) for _ in range(20)]
        for _ in range(8):
            await asyncio.sleep(0.05)
            own_redis.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.gather(*workers)
        # It is asked for again if the last kill is noticed only now.
        assert (await store.read(one.key, soon())).holdings == ()

    with party(own_redis.url) as one:
        asyncio.run(main(one))


def test_scripts_forgotten_under_many_tasks_cost_nobody_his_answer(own_redis: RedisServer) -> None:
    async def one_pair(store: AsyncRedisStore) -> object:
        key, claim = a_key(), new_claim()
        await store.take(key, claim, ASK, soon())
        return await store.give(key, claim, None, soon())

    async def main(one: Party) -> None:
        store = one.engine.async_store()
        await one.take_async()
        for _ in range(5):
            tasks = [asyncio.create_task(one_pair(store)) for _ in range(30)]
            await asyncio.sleep(0)
            own_redis.cli("SCRIPT", "FLUSH")
            assert set(await asyncio.gather(*tasks)) == {Released()}
        assert len(store.all) == 1

    with party(own_redis.url) as one:
        asyncio.run(main(one))


# -- connecting


def test_a_server_that_is_gone_is_asked_once_for_all_who_want_it() -> None:
    async def main(one: Party) -> None:
        store = one.engine.async_store()
        takes = (store.take(a_key(), new_claim(), ASK, soon()) for _ in range(50))
        began = clock.now()
        ended = await asyncio.gather(*takes, return_exceptions=True)
        assert {type(each) for each in ended} == {StoreUnavailable}
        assert took(began) < BUSY

    with party("redis://127.0.0.1:1") as one:
        asyncio.run(main(one))


def test_who_waits_for_anothers_connecting_keeps_his_own_deadline(
    redis_server: RedisServer,
) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        proxy.blackhole()
        patient = asyncio.create_task(one.take_async(within=10.0))
        await asyncio.sleep(0)
        began = clock.now()
        with pytest.raises(StoreUnavailable):
            await one.take_async(within=0.1)
        assert took(began) < 0.1 + BUSY
        proxy.heal()
        assert (await patient).claim == one.claim
        assert proxy.accepted == 1

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


@pytest.mark.parametrize("how", ["cancelled", "out of time"])
def test_when_the_one_who_connects_gives_up_another_connects(
    redis_server: RedisServer, how: str
) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        proxy.blackhole()
        within = 10.0 if how == "cancelled" else 0.1
        first = asyncio.create_task(one.take_async(within=within))
        await asyncio.sleep(0)
        second = asyncio.create_task(one.take_async(within=10.0))
        await asyncio.sleep(0.15)
        first.cancel()
        await asyncio.wait([first])
        proxy.heal()
        assert (await second).claim == one.claim

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


# -- closing, loops, threads


def test_closing_lets_those_who_wait_have_their_answers(redis_server: RedisServer) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        store = one.engine.async_store()
        await one.take_async()
        wire = shared(store)
        proxy.delay(0.0, reply=0.1)
        waiting = asyncio.create_task(one.take_async())
        await asyncio.sleep(0.02)
        await store.aclose()
        assert (await waiting).claim == one.claim
        assert wire.closed
        # It opens again.
        await one.take_async()
        await store.aclose()

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


def refused_later(one: Party) -> int:
    """In a child that is there for as long as the parent waits."""
    time.sleep(0.2)
    return 0 if one.refused().holders else 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_answers_are_on_their_way_leaves_them_to_the_parent(
    redis_server: RedisServer,
) -> None:
    async def main(one: Party, proxy: FaultProxy) -> None:
        await one.take_async()
        proxy.delay(0.0, reply=0.1)
        waiting = [asyncio.create_task(one.take_async()) for _ in range(3)]
        await asyncio.sleep(0.02)
        child = fork(lambda: refused_later(one))
        assert {granted.claim for granted in await asyncio.gather(*waiting)} == {one.claim}
        assert await asyncio.to_thread(exit_code, child) == 0
        assert proxy.accepted == 2

    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        asyncio.run(main(one, proxy))


def test_loops_that_have_ended_are_not_kept(redis_server: RedisServer) -> None:
    lock = AsyncLock(secrets.token_hex(6), store=f"{redis_server.url}?restart_wait=0", timeout=2)
    loops = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        async with lock:
            pass

    for _ in range(4):
        asyncio.run(main())
    gc.collect()
    assert [loop() for loop in loops] == [None] * 4


def test_loops_of_many_threads_with_many_tasks_each_keep_apart(here: Party) -> None:
    def one_loop(_: int) -> int:
        async def pair(store: AsyncRedisStore) -> int:
            key, claim = a_key(), new_claim()
            granted = await store.take(key, claim, ASK, soon(5))
            assert isinstance(granted, Granted)
            assert granted.claim == claim
            return int(await store.give(key, claim, granted.token, soon(5)) == Released())

        async def main() -> int:
            store = here.engine.async_store()
            return sum(await asyncio.gather(*(pair(store) for _ in range(60))))

        return asyncio.run(main())

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(one_loop, range(12))) == 720


def test_a_master_that_became_a_replica_is_asked_anew_what_it_is(
    own_redis: RedisServer, redis_server: RedisServer
) -> None:
    async def main(one: Party) -> None:
        store = one.engine.async_store()
        await store.take(a_key(), new_claim(), ASK, soon())
        before = shared(store)
        own_redis.cli("REPLICAOF", "127.0.0.1", str(redis_server.port))
        with pytest.raises(StoreUnavailable, match=r"READONLY|replica"):
            await store.take(a_key(), new_claim(), ASK, soon())
        with pytest.raises(StoreUnavailable, match="is a replica"):
            await store.read(a_key(), soon())
        assert before.closed

    with party(own_redis.url) as one:
        asyncio.run(main(one))
