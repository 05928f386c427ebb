"""`with_token` on any database: what it compares, what it locks, and what it refuses to protect."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import ConfigError, LeaseLost, Lock, Misuse
from incumbent.fencing import Token, create_table, with_token
from tests.stores.postgresql.world import new_database
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer
from tests.support.waiting import eventually

WAITS = """
    select from pg_stat_activity
    where wait_event_type = 'Lock' and datname = current_database()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "work.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        create_table(connection)
    return path


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


@given(tokens=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=12))
def test_a_token_passes_if_none_before_it_was_larger(tokens: list[int]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        create_table(connection)
        highest = -1
        for token in tokens:
            if token >= highest:
                with_token(Token("orders", token), connection)
                highest = token
            else:
                with pytest.raises(LeaseLost, match=f"token {highest} was here"):
                    with_token(Token("orders", token), connection)


def test_each_resource_has_tokens_of_its_own(connection: sqlite3.Connection) -> None:
    with_token(Token("orders", 9), connection)
    with_token(Token("orders", 3), connection, resource="bills")
    with pytest.raises(LeaseLost):
        with_token(Token("bills", 2), connection)


def test_what_was_rolled_back_was_not_seen(connection: sqlite3.Connection) -> None:
    with_token(Token("orders", 9), connection)
    connection.rollback()
    with_token(Token("orders", 3), connection)


def test_a_lease_that_is_over_writes_nothing(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    lease = Lock("orders", store=f"sqlite://{tmp_path}/leases.db").acquire()
    lease.release()
    with pytest.raises(Misuse, match="released"):
        with_token(lease, connection)
    assert connection.execute("SELECT count(*) FROM incumbent_fencing").fetchone() == (0,)


def test_a_connection_in_autocommit_is_refused(path: str) -> None:
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.raises(Misuse, match="autocommit"),
    ):
        with_token(Token("orders", 1), connection)


def test_sqlalchemy_in_autocommit_is_refused(path: str) -> None:
    import sqlalchemy  # here, as below: it is large, and each worker imports this file

    engine = sqlalchemy.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(Misuse, match="autocommit"):
        with_token(Token("orders", 1), connection)
    engine.dispose()


class Adapter:
    """What SQLAlchemy has between itself and an asynchronous driver: it tells of no transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.own = connection
        for name in ("close", "commit", "create_function", "cursor", "execute", "rollback"):
            setattr(self, name, getattr(connection, name))


@pytest.mark.parametrize("level", [None, "DEFERRED"])
def test_an_asynchronous_driver_is_asked_itself(
    path: str, level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlalchemy

    def connect() -> Any:
        return Adapter(sqlite3.connect(path, isolation_level=level))

    engine = sqlalchemy.create_engine(f"sqlite:///{path}", creator=connect)
    monkeypatch.setattr(engine.dialect, "get_driver_connection", lambda adapter: adapter.own)
    with engine.connect() as connection:
        if level is None:
            with pytest.raises(Misuse, match="autocommit"):
                with_token(Token("orders", 1), connection)
        else:
            with_token(Token("orders", 1), connection)
    engine.dispose()


def test_a_driver_that_tells_nothing_of_transactions_is_refused(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.paramstyle", "qmark", raising=False)
    with pytest.raises(Misuse, match="does not tell"):
        with_token(Token("orders", 1), Adapter(connection))


def test_a_session_of_sqlalchemy_is_protected(path: str) -> None:
    import sqlalchemy
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as session, session.begin():
        with_token(Token("orders", 5), session)
    with Session(engine) as session, pytest.raises(LeaseLost):
        with_token(Token("orders", 4), session)
    engine.dispose()


@pytest.mark.parametrize("bad", [object(), None, "work.db"])
def test_what_is_no_connection_is_refused(bad: Any) -> None:
    with pytest.raises(Misuse, match="DB-API 2"):
        with_token(Token("orders", 1), bad)


@pytest.mark.parametrize("bad", ["", "x" * 256, "a\nb", "\udcff", 5])
def test_a_resource_without_a_usable_name_is_refused(
    connection: sqlite3.Connection, bad: Any
) -> None:
    with pytest.raises(ConfigError, match="resource"):
        with_token(Token("orders", 1), connection, resource=bad)


class Driver:
    """A driver whose cursor does not count rows, or whose values have unknown marks."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def cursor(self) -> Any:
        return Uncounted(self._connection.cursor())


class Uncounted:
    rowcount = -1

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.execute = cursor.execute
        self.fetchone = cursor.fetchone


def test_a_driver_whose_marks_are_unknown_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(Misuse, match="marks its values"):
        with_token(Token("orders", 1), Driver(connection))


def test_a_driver_that_does_not_count_rows_is_refused(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.paramstyle", "qmark", raising=False)
    with pytest.raises(Misuse, match="counts rows"):
        with_token(Token("orders", 1), Driver(connection))


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    url = postgres_server.url_of(new_database(postgres_server))
    with psycopg.connect(url) as connection:
        create_table(connection)
    return url


def in_a_thread(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work)
    thread.start()
    return thread


def somebody_waits(url: str) -> bool:
    """Whether the server keeps a statement waiting for another one's lock."""
    with psycopg.connect(url) as operator:
        return bool(operator.execute(WAITS).fetchall())


def test_a_later_holder_waits_for_a_transaction_that_passed_before_it(url: str) -> None:
    order: list[str] = []
    with psycopg.connect(url) as first:
        with_token(Token("orders", 1), first)
    with psycopg.connect(url) as early, psycopg.connect(url) as late:
        with_token(Token("orders", 1), early)

        def write_late() -> None:
            with_token(Token("orders", 2), late)
            order.append("late")

        thread = in_a_thread(write_late)
        eventually(lambda: somebody_waits(url))
        order.append("early")
        early.commit()
        thread.join(20)
        late.commit()
    assert order == ["early", "late"]


def test_of_two_first_writers_the_earlier_holder_never_writes_last(url: str) -> None:
    with psycopg.connect(url) as early, psycopg.connect(url) as late:
        with_token(Token("orders", 2), late)
        caught: list[type[Exception]] = []

        def write_early() -> None:
            try:
                with_token(Token("orders", 1), early)
            except (LeaseLost, psycopg.IntegrityError) as error:
                caught.append(type(error))

        thread = in_a_thread(write_early)
        eventually(lambda: somebody_waits(url))
        late.commit()
        thread.join(20)
        early.rollback()
    assert caught == [psycopg.errors.UniqueViolation]


def test_an_asynchronous_connection_of_sqlalchemy_is_protected(url: str) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    async def write(token: int) -> None:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(lambda c: with_token(Token("orders", token), c))
        finally:
            await engine.dispose()

    asyncio.run(write(2))
    with pytest.raises(LeaseLost):
        asyncio.run(write(1))
    asyncio.run(write(2))


@pytest.fixture
def shop(maria_server: MariaServer) -> Callable[..., Any]:
    """Connects to a database of MariaDB that has the table."""
    import pymysql

    database = maria_server.new_database()

    def connect(**options: Any) -> Any:
        where = {"host": "127.0.0.1", "port": maria_server.port, "user": "root"}
        return closing(pymysql.connect(**where, database=database, **options))

    with connect() as connection:
        create_table(connection)
    return connect


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("Orders", "orders"),
        ("caf\u00e9", "cafe"),
        ("a ", "a"),
        ("job-\U0001f600", "job-\U0001f601"),
    ],
)
def test_mariadb_takes_no_name_for_another(shop: Callable[..., Any], name: str, other: str) -> None:
    with shop() as connection:
        with_token(Token(name, 100), connection)
        with_token(Token(other, 5), connection)
        connection.commit()
        with pytest.raises(LeaseLost, match="token 100 was here"):
            with_token(Token(name, 99), connection)


def test_in_autocommit_pymysql_needs_its_begin(shop: Callable[..., Any]) -> None:
    with shop(autocommit=True) as connection:
        with pytest.raises(Misuse, match="autocommit"):
            with_token(Token("orders", 1), connection)
        connection.begin()
        with_token(Token("orders", 2), connection)
        connection.rollback()
        connection.begin()
        with_token(Token("orders", 1), connection)


def test_sqlalchemy_on_mariadb_is_protected(
    shop: Callable[..., Any], maria_server: MariaServer
) -> None:
    import sqlalchemy

    with shop() as connection:
        database = connection.db.decode()
    engine = sqlalchemy.create_engine(
        f"mysql+pymysql://root@127.0.0.1:{maria_server.port}/{database}"
    )
    with engine.begin() as connection:
        with_token(Token("Orders", 5), connection)
        with_token(Token("orders", 1), connection)
        with pytest.raises(LeaseLost):
            with_token(Token("Orders", 4), connection)
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(Misuse, match="autocommit"),
    ):
        with_token(Token("Orders", 6), connection)
    engine.dispose()
