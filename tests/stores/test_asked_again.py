"""A server that refuses for a moment, and did nothing, is asked again until the deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from incumbent import NotAcquired, Semaphore, clock
from incumbent.errors import StoreError
from incumbent.model import Granted
from incumbent.stores.etcd.client import EtcdClient
from incumbent.stores.etcd.site import GatewayError as EtcdErrorReply
from incumbent.stores.postgresql.errors import PostgresErrorReply
from incumbent.stores.postgresql.wire import PostgresWire
from tests import tiers
from tests.stores.etcd import world as etcd
from tests.stores.party import ASK, Party, new_claim, soon
from tests.stores.postgresql import world as postgresql
from tests.support.etcd import EtcdServer
from tests.support.postgresql import PostgresServer

pytestmark = pytest.mark.server

LONG = 20.0
SIDES = pytest.mark.parametrize("side", ["blocking", "asyncio"])


def take(one: Party, side: str, within: float = LONG) -> Any:
    """The outcome of a take, also if it is an error."""
    claim = new_claim()

    async def take_async() -> Any:
        return await one.engine.async_store().take(one.key, claim, ASK, soon(within))

    try:
        if side == "asyncio":
            return asyncio.run(take_async())
        return one.store.take(one.key, claim, ASK, soon(within))
    except StoreError as error:
        return error


# -- PostgreSQL -----------------------------------------------------------------------------------

CODES = {
    "40001": "could not serialize access",
    "40P01": "deadlock detected",
    "55P03": "canceling statement due to lock timeout",
    "57014": "canceling statement due to statement timeout",
    "53300": "sorry, too many clients already",
}


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    return postgresql.new_database(postgres_server)


@pytest.fixture
def on_postgres(postgres_server: PostgresServer, database: str) -> Iterator[Party]:
    with postgresql.party(postgres_server.url_of(database)) as one:
        yield one


@pytest.mark.left(
    tiers.MEET,
    "40001-asyncio",
    "40P01-blocking",
    "53300-asyncio",
    "55P03-blocking",
    "57014-asyncio",
)
@SIDES
@pytest.mark.parametrize("code", CODES)
def test_a_statement_that_postgresql_rolled_back_is_asked_again(
    on_postgres: Party, code: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = PostgresWire.query
    left = [3]

    async def refuses(self: Any, request: Any, until: float) -> Any:
        if left[0] and b"incumbent.take" in request.sql:
            left[0] -= 1
            raise PostgresErrorReply(code, CODES[code])
        return await query(self, request, until)

    monkeypatch.setattr(PostgresWire, "query", refuses)
    assert isinstance(take(on_postgres, side), Granted)
    assert left == [0]


@pytest.mark.left(tiers.SIDES, "asyncio", "blocking")
@SIDES
def test_a_take_that_meets_a_lock_timeout_is_asked_again(
    on_postgres: Party, postgres_server: PostgresServer, database: str, side: str
) -> None:
    outcome = take(on_postgres, "blocking")
    on_postgres.store.give(on_postgres.key, outcome.claim, outcome.token, soon())
    with (
        psycopg.connect(postgres_server.url_of(database)) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        operator.execute("select from incumbent.record for update")
        waiting = pool.submit(take, on_postgres, side)
        # The server gives up after its lock_timeout of a second.
        time.sleep(1.5)
        assert not waiting.done()
        operator.commit()
        assert isinstance(waiting.result(), Granted)


def test_many_threads_of_one_process_never_hear_that_a_permit_is_unknown(
    postgres_server: PostgresServer, database: str
) -> None:
    """Who was counted as a sharer may be gone when the sharers are listed."""
    until, said = clock.now() + 3, set[str]()
    url = postgres_server.url_of(database)

    def work(_: int) -> int:
        semaphore, count = Semaphore("a", 1, store=url), 0
        while clock.now() < until:
            try:
                semaphore.acquire(0).release()
                count += 1
            except NotAcquired:
                pass
            except StoreError as error:
                said.add(str(error))
        return count

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(work, range(20))) > 0
    assert not [words for words in said if "an answer of another shape" in words]


# -- etcd -----------------------------------------------------------------------------------------


@pytest.mark.left(tiers.MEET, "*no leader-blocking", "*requests-asyncio")
@SIDES
@pytest.mark.parametrize("words", ["etcdserver: too many requests", "etcdserver: no leader"])
def test_what_etcd_refuses_for_a_moment_is_asked_again(
    etcd_server: EtcdServer, words: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, left = EtcdClient._read, [6]

    def refuses(self: Any, reading: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise EtcdErrorReply(words)
        return read(self, reading)

    with etcd.party(etcd_server.store_url("/again")) as one:
        monkeypatch.setattr(EtcdClient, "_read", refuses)
        outcome = take(one, side)
    assert isinstance(outcome, Granted), outcome
    assert left == [0]
