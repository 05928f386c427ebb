"""`with_token` in the user's own transaction: what a stale holder writes there never stays.

Real processes: the stale one is stopped (SIGSTOP) where it hurts most, past its ttl, and goes on
once another holds the lease.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from incumbent import Lease, LeaseLost, Lock, Misuse
from incumbent.stores.postgresql import async_with_token, with_token
from tests.stores.postgresql.world import new_database
from tests.support.postgresql import PostgresServer
from tests.support.waiting import eventually

TTL = 1.0
# Stops itself: before its transaction's check (but after the lease was still proved), or after it.
STALE = """
import os, signal, sys
import psycopg
from incumbent import Lock, LeaseLost
from incumbent.stores.postgresql import with_token

url, where, level = sys.argv[1:]

class Stopping:
    def __init__(self, lease): self._lease = lease
    def __getattr__(self, name): return getattr(self._lease, name)
    def check(self, *args):
        self._lease.check()
        if where == "before": os.kill(os.getpid(), signal.SIGSTOP)

lease = Lock("job", store=url + "?restart_wait=0", ttl=1.0).acquire()
with psycopg.connect(url) as connection:
    connection.execute(f"set transaction isolation level {level}")
    connection.execute("select count(*) from work")
    try:
        with_token(Stopping(lease), connection)
        connection.execute("insert into work values ('stale')")
        if where == "after": os.kill(os.getpid(), signal.SIGSTOP)
        connection.commit()
        print("committed")
    except (LeaseLost, psycopg.errors.SerializationFailure) as error:
        connection.rollback()
        print(type(error).__name__, getattr(error, "reason", ""))
os._exit(0)
"""


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    database = new_database(postgres_server)
    sql = "create table work (who text, id bigint generated always as identity)"
    postgres_server.psql(sql, database)
    return postgres_server.url_of(database)


class Stale:
    """A holder in a process of its own, which has stopped itself."""

    def __init__(self, url: str, where: str, level: str = "read committed") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", STALE, url, where, level],
            stdout=subprocess.PIPE,
            text=True,
        )
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> str:
        """What became of its transaction."""
        self._process.send_signal(signal.SIGCONT)
        said, _ = self._process.communicate(timeout=60)
        return said.strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def stale(url: str, request: pytest.FixtureRequest) -> Iterator[Stale]:
    holder = Stale(url, *request.param)
    yield holder
    holder.close()


def next_holder(url: str) -> Lease:
    return Lock("job", store=f"{url}?restart_wait=0", ttl=10, timeout=10).acquire()


def written(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [who for (who,) in connection.execute("select who from work order by id")]


def write(url: str, lease: Lease) -> None:
    with psycopg.connect(url) as connection:
        with_token(lease, connection)
        connection.execute("insert into work values ('new')")


STOPPED_BEFORE = pytest.mark.parametrize("stale", [("before",)], indirect=True)
STOPPED_AFTER = pytest.mark.parametrize("stale", [("after",)], indirect=True)


@STOPPED_BEFORE
def test_a_stale_holder_is_refused_once_the_next_one_was_granted(url: str, stale: Stale) -> None:
    with next_holder(url):
        assert stale.go_on() == "LeaseLost taken"
        assert written(url) == []


@STOPPED_BEFORE
def test_a_stale_holder_is_refused_once_the_next_one_has_written(url: str, stale: Stale) -> None:
    with next_holder(url) as lease:
        write(url, lease)
        assert stale.go_on() == "LeaseLost taken"
        assert written(url) == ["new"]


@STOPPED_BEFORE
def test_a_stale_holder_is_refused_when_the_next_one_is_done(url: str, stale: Stale) -> None:
    with next_holder(url) as lease:
        write(url, lease)
    assert stale.go_on() == "LeaseLost taken"
    assert written(url) == ["new"]


@pytest.mark.parametrize(
    "stale", [("before", "repeatable read"), ("before", "serializable")], indirect=True
)
def test_a_stale_holder_with_an_old_snapshot_is_refused_all_the_same(
    url: str, stale: Stale
) -> None:
    with next_holder(url) as lease:
        write(url, lease)
        assert stale.go_on().split()[0] in {"LeaseLost", "SerializationFailure"}
        assert written(url) == ["new"]


@STOPPED_AFTER
def test_the_next_holder_waits_for_a_write_that_passed_the_check(url: str, stale: Stale) -> None:
    """It held the lease when it was checked; what it wrote comes before its successor's."""
    with next_holder(url) as lease, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, url, lease)
        blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        eventually(lambda: ask(url, blocked) == [(1,)])
        assert written(url) == []
        assert stale.go_on() == "committed"
        writing.result(10)
        assert written(url) == ["stale", "new"]


@STOPPED_AFTER
def test_a_limit_on_idle_transactions_ends_the_wait(
    url: str, stale: Stale, postgres_server: PostgresServer
) -> None:
    """The stale session of STALE was begun without one: an administrator ends it by hand."""
    with next_holder(url) as lease:
        ask(
            url,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where state = 'idle in transaction' and datname = current_database()",
        )
        write(url, lease)
        assert stale.go_on() == ""
        assert written(url) == ["new"]


def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


# -- who may call it, and on what


def test_the_check_is_part_of_the_transaction(url: str) -> None:
    with next_holder(url) as lease:
        with psycopg.connect(url) as connection:
            with_token(lease, connection)
            connection.execute("insert into work values ('rolled back')")
            connection.rollback()
        write(url, lease)
        write(url, lease)
    assert written(url) == ["new", "new"]


def test_sqlalchemy_writes_under_the_token_too(url: str) -> None:
    import sqlalchemy  # here, as below: it is large, and each worker imports this file
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    insert = sqlalchemy.text("insert into work values ('new')")
    with next_holder(url) as lease:
        with engine.begin() as connection:
            with_token(lease, connection)
            connection.execute(insert)
        with Session(engine) as session, session.begin():
            with_token(lease, session)
            session.execute(insert)
    engine.dispose()
    assert written(url) == ["new", "new"]


def test_asynchronous_drivers_write_under_the_token_too(url: str) -> None:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    insert = sqlalchemy.text("insert into work values ('new')")

    async def main(lease: Lease) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await async_with_token(lease, connection)
            await connection.execute("insert into work values ('new')")
        engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        async with engine.begin() as other:
            await async_with_token(lease, other)
            await other.execute(insert)
        async with AsyncSession(engine) as session, session.begin():
            await async_with_token(lease, session)
            await session.execute(insert)
        await engine.dispose()

    with next_holder(url) as lease:
        asyncio.run(main(lease))
    assert written(url) == ["new", "new", "new"]


def test_a_lease_that_was_given_back_writes_nothing(url: str) -> None:
    with next_holder(url) as lease:
        pass
    with psycopg.connect(url) as connection, pytest.raises((LeaseLost, Misuse)):
        with_token(lease, connection)
    assert written(url) == []


def test_outside_of_a_transaction_it_would_protect_nothing_and_is_refused(url: str) -> None:
    import sqlalchemy
    from sqlalchemy.orm import Session

    with next_holder(url) as lease:
        with psycopg.connect(url, autocommit=True) as connection:
            with pytest.raises(Misuse, match="transaction"):
                with_token(lease, connection)
            with connection.transaction():
                with_token(lease, connection)
        engine = sqlalchemy.create_engine(
            url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as other, pytest.raises(Misuse, match="transaction"):
            with_token(lease, other)
        with Session(engine) as session, pytest.raises(Misuse, match="transaction"):
            with_token(lease, session)
        engine.dispose()


def test_another_namespace_is_another_lease(url: str) -> None:
    store = f"{url}?restart_wait=0"
    first = Lock("job", store=store, namespace="a", ttl=10).acquire()
    second = Lock("job", store=store, namespace="b", ttl=10).acquire()
    for lease in (second, first):
        write(url, lease)
        lease.release()
    assert written(url) == ["new", "new"]
