"""One engine used by many threads, many event loops, forks, and programs that never close it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent.model import Granted, Key, Refused, Released
from tests.stores.redis.world import ASK, Party, new_claim, party, soon
from tests.support.forks import in_a_child
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
def here(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


def test_many_threads_share_an_engine_and_one_lease_has_one_holder(here: Party) -> None:
    held, most = 0, 0
    guard = threading.Lock()

    def compete(_: int) -> int:
        nonlocal held, most
        grants = 0
        for _ in range(40):
            claim = new_claim()
            outcome = here.store.take(here.key, claim, ASK, soon())
            if not isinstance(outcome, Granted):
                continue
            assert outcome.claim == claim
            grants += 1
            with guard:
                held += 1
                most = max(most, held)
                held -= 1
            assert here.store.give(here.key, claim, outcome.token, soon()) == Released()
        return grants

    with ThreadPoolExecutor(12) as pool:
        grants = sum(pool.map(compete, range(12)))
    assert grants > 0
    assert most == 1
    assert len(here.store.operations.idle) <= 12


def test_many_tasks_of_a_loop_get_their_own_answers(here: Party) -> None:
    async def main() -> None:
        claims = [new_claim() for _ in range(50)]
        store = here.engine.async_store()
        outcomes = await asyncio.gather(
            *(store.take(here.key, claim, ASK, soon(5)) for claim in claims)
        )
        granted = [each for each in outcomes if isinstance(each, Granted)]
        assert len(granted) == 1
        assert granted[0].claim == claims[outcomes.index(granted[0])]

    asyncio.run(main())


def test_each_loop_has_connections_of_its_own(here: Party) -> None:
    def one_loop(_: int) -> int:
        async def main() -> int:
            assert here.engine.async_store() is here.engine.async_store()
            await here.take_async()
            return id(here.engine.async_store())

        return asyncio.run(main(), debug=True)

    one_loop(0)
    with ThreadPoolExecutor(6) as pool:
        assert len(list(pool.map(one_loop, range(12)))) == 12


def test_a_loop_that_ends_leaves_no_connection_and_no_warning(
    here: Party, redis_server: RedisServer
) -> None:
    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:

        async def main() -> None:
            await one.take_async()
            assert isinstance(
                await one.engine.async_store().take(one.key, new_claim(), ASK, soon()), Refused
            )

        asyncio.run(main(), debug=True)
        gc.collect()
        eventually(lambda: proxy.live == 0)
        # Only the loops that still run are remembered.
        asyncio.run(main())
        assert len(one.engine._loops._stores) <= 1


def test_a_store_that_was_closed_opens_again(here: Party) -> None:
    async def main() -> None:
        store = here.engine.async_store()
        await here.take_async()
        await store.aclose()
        await here.take_async()
        await store.aclose()

    here.take()
    here.store.close()
    here.take()
    asyncio.run(main())


def test_an_engine_that_is_dropped_closes_its_connections(redis_server: RedisServer) -> None:
    from incumbent.stores.redis import open_store

    with FaultProxy(redis_server.port) as proxy:
        open_store(f"{proxy.url}?restart_wait=0").store().take(
            Key("default", "dropped"), new_claim(), ASK, soon()
        )
        gc.collect()
        eventually(lambda: proxy.live == 0)


# -- fork


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forks_child_shares_no_connection_with_its_parent(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        granted = one.take()
        (wire,) = one.store.operations.idle

        def child() -> int:
            closed = wire._sock.fileno() == -1 and one.store.operations.idle == []
            outcome = one.store.take(one.key, new_claim(), ASK, soon())
            return 0 if closed and isinstance(outcome, Refused) else 2

        assert in_a_child(child) == 0
        assert proxy.accepted == 2
        # The parent's connection lives on, in step.
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
        assert proxy.accepted == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_within_a_loop_leaves_the_parents_loop_alone(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:

        async def main() -> None:
            granted = await one.take_async()

            def child() -> int:
                gc.collect()
                return 0 if isinstance(one.refused(), Refused) else 2

            assert in_a_child(child) == 0
            store = one.engine.async_store()
            assert await store.give(one.key, one.claim, granted.token, soon()) == Released()
            assert proxy.accepted == 2

        asyncio.run(main())


def test_a_program_that_never_closes_ends_without_a_word(redis_server: RedisServer) -> None:
    code = (
        "import asyncio, time\n"
        "from incumbent.model import Ask, Key\n"
        "from incumbent import clock\n"
        "from incumbent.stores.redis import open_store\n"
        f"engine = open_store({redis_server.url!r} + '?restart_wait=0')\n"
        "ask, key = Ask(5.0, 'h'), Key('faults', 'never-closed')\n"
        "engine.store().take(key, 'c', ask, clock.now() + 20)\n"
        "async def main():\n"
        # On a busy machine even this little takes long enough for asyncio to remark on it.
        "    asyncio.get_running_loop().slow_callback_duration = 60\n"
        "    await engine.async_store().take(key, 'c', ask, clock.now() + 20)\n"
        "asyncio.run(main())\n"
        "engine.store().give(key, 'c', None, clock.now() + 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
