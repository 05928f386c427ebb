"""One engine used by many tasks, forks and drivers of the user's own."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from incumbent import AsyncLock, Lock, NotAcquired, Policy, StoreLike
from incumbent.errors import ConfigError
from incumbent.model import Granted, Refused, Released
from tests.stores.postgresql.world import ASK, Party, new_claim, new_database, party, soon
from tests.support.forks import in_a_child
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.url_of(new_database(postgres_server))


# -- drivers of the user's own


def sqlalchemy_engine(url: str) -> Any:
    import sqlalchemy  # here, as below: it is large, and each worker imports this file

    return sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


def held_by_both_sides(driver: StoreLike, url: str) -> None:
    """A lock by the driver's address excludes one by the URL, from both sides."""
    with Lock("job", store=driver, ttl=2.0, timeout=20):
        with pytest.raises(NotAcquired):
            Lock("job", store=f"{url}?restart_wait=0", timeout=0).acquire()
        asyncio.run(refused_on_asyncio(driver))
    Lock("job", store=f"{url}?restart_wait=0", timeout=0).acquire().release()


async def refused_on_asyncio(driver: StoreLike) -> None:
    policy = Policy(2.0, request_timeout=0.7)
    with pytest.raises(NotAcquired):
        await AsyncLock("job", store=driver, policy=policy, timeout=0).acquire()


def test_a_psycopg_pool_is_a_store(url: str) -> None:
    with ConnectionPool(url, min_size=1, max_size=1, open=True) as pool, pool.connection():
        # The pool's only connection is out: ours are our own.
        held_by_both_sides(pool, url)


def test_an_asynchronous_psycopg_pool_is_a_store(url: str) -> None:
    held_by_both_sides(AsyncConnectionPool(url, open=False), url)


def test_a_sqlalchemy_engine_is_a_store(url: str) -> None:
    engine = sqlalchemy_engine(url)
    held_by_both_sides(engine, url)
    engine.dispose()


def test_an_asynchronous_sqlalchemy_engine_is_a_store(url: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    held_by_both_sides(engine, url)


def test_a_sqlalchemy_engine_of_another_database_is_refused() -> None:
    import sqlalchemy

    with pytest.raises(ConfigError, match="postgresql"):
        Lock("job", store=sqlalchemy.create_engine("sqlite://")).acquire()


def test_the_password_of_a_driver_never_shows() -> None:
    from incumbent.stores.url import engine_for_object

    made = sqlalchemy_engine("postgresql://app:sesame@127.0.0.1:1/db")
    pool = ConnectionPool("postgresql://app:sesame@127.0.0.1:1/db", open=False)
    for driver in (made, pool):
        engine = engine_for_object(driver)
        assert "sesame" not in f"{engine!r}{engine.url}{vars(engine)}{engine.store()!r}"
        with pytest.raises(Exception, match="cannot be reached") as caught:
            Party(engine).take()
        assert "sesame" not in f"{caught.value}{caught.value.__cause__!r}"


# -- loops and tasks


def test_many_tasks_share_an_engine_and_one_is_granted(far: Party, network: FaultProxy) -> None:
    async def main() -> None:
        claims = [new_claim() for _ in range(40)]
        store = far.engine.async_store()
        outcomes = await asyncio.gather(
            *(store.take(far.key, claim, ASK, soon(5)) for claim in claims)
        )
        (granted,) = [each for each in outcomes if isinstance(each, Granted)]
        assert granted.claim == claims[outcomes.index(granted)]
        assert network.live <= 40
        await store.aclose()

    asyncio.run(main())


def test_a_loop_that_ends_leaves_no_connection_and_no_warning(
    far: Party, network: FaultProxy
) -> None:
    async def main() -> None:
        store = far.engine.async_store()
        assert isinstance(await store.take(far.key, far.claim, ASK, soon()), Granted)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main(), debug=True)
        gc.collect()
    eventually(lambda: network.live == 0)


def test_a_store_that_was_closed_opens_again(far: Party) -> None:
    far.take()
    far.store.close()
    far.take()
    asyncio.run(far.take_async())
    asyncio.run(far.take_async())


def test_an_engine_that_is_dropped_closes_its_connections(
    postgres_server: PostgresServer, network: FaultProxy
) -> None:
    database = new_database(postgres_server)
    with party(postgres_server.url_of(database, port=network.port)) as one:
        one.take()
    del one
    gc.collect()
    eventually(lambda: network.live == 0)


# -- fork


def test_a_forks_child_shares_no_connection_with_its_parent(
    far: Party, network: FaultProxy
) -> None:
    granted = far.take()
    before = network.accepted

    def child() -> int:
        outcome = far.store.take(far.key, new_claim(), ASK, soon())
        far.store.close()
        return 0 if isinstance(outcome, Refused) else 2

    assert in_a_child(child) == 0
    assert network.accepted == before + 1
    # The parent's connection lives on, in step.
    assert far.store.give(far.key, far.claim, granted.token, soon()) == Released()
    assert network.accepted == before + 1


def test_a_fork_within_a_loop_leaves_the_parents_loop_alone(
    far: Party, network: FaultProxy
) -> None:
    async def main() -> None:
        store = far.engine.async_store()
        granted = await store.take(far.key, far.claim, ASK, soon())
        assert isinstance(granted, Granted)
        before = network.accepted

        def child() -> int:
            gc.collect()
            return 0 if isinstance(far.refused(), Refused) else 2

        assert in_a_child(child) == 0
        assert await store.give(far.key, far.claim, granted.token, soon()) == Released()
        assert network.accepted == before + 1
        await store.aclose()

    asyncio.run(main())


def test_a_waiter_forked_away_leaves_its_parent_listening(far: Party) -> None:
    far.take()
    seen = far.refused().seen
    far.store.wait_change(far.key, seen, soon(0.1))

    def child() -> int:
        far.store.wait_change(far.key, seen, soon(0.1))
        return 0

    assert in_a_child(child) == 0
    far.store.wait_change(far.key, seen, soon(0.1))
    assert far.refused().seen == seen


def test_a_program_that_never_closes_ends_without_a_word(url: str) -> None:
    code = (
        "import asyncio\n"
        "from incumbent.model import Ask, Key\n"
        "from incumbent import clock\n"
        "from incumbent.stores.postgresql import open_postgresql\n"
        f"engine = open_postgresql({url!r} + '?restart_wait=0')\n"
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


def test_importing_the_engine_imports_no_driver() -> None:
    code = (
        "import sys, incumbent, incumbent.stores.postgresql\n"
        "print([name for name in sys.modules if name.split('.')[0] in"
        " ('psycopg', 'psycopg_pool', 'sqlalchemy')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_of_two_takes_that_looked_at_the_same_moment_one_is_granted(
    postgres_server: PostgresServer,
) -> None:
    """Both have read the record as free, and wait for its lock: the second has to look again."""
    database = new_database(postgres_server)
    with party(postgres_server.url_of(database)) as one:
        first = one.take()
        one.store.give(one.key, one.claim, first.token, soon())
        with psycopg.connect(postgres_server.url_of(database)) as keeps:
            keeps.execute("select from incumbent.record for update")
            with ThreadPoolExecutor(2) as pool:
                asked = [
                    pool.submit(one.store.take, one.key, new_claim(), ASK, soon()) for _ in "ab"
                ]
                eventually(lambda: waiting_for_locks(postgres_server) >= 2)
                keeps.rollback()
                outcomes = [each.result() for each in asked]
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1


def waiting_for_locks(server: PostgresServer) -> int:
    ((count,),) = server.psql(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'take'"
    )
    return int(count)
