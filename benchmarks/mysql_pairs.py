"""One uncontended acquire and release on MariaDB, which commits to the disk each time.

The unit is what people write by hand: one UPDATE that takes a row, and one that gives it back. The
locks of GET_LOCK write nothing: they end with their connection, and have neither ttl nor token.
A second table takes our own two statements for its unit: what the lease machine, the fencing and
the deadlines of every call cost beyond them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pymysql
import sqlalchemy
from tests.stores.mysql.world import new_database
from tests.support.mariadb import MariaServer

from benchmarks.harness import Contender, Row, against, compare
from incumbent import AsyncLock, Lock
from incumbent.stores.mysql import statements

__all__ = ["bench_server", "driver", "mysql_async_rows", "mysql_rows"]

_TTL = 15
_CLOCK = statements.CLOCK
_FAR = 4_102_444_800_000_000


@contextmanager
def bench_server(*options: str) -> Iterator[tuple[MariaServer, str]]:
    """A server that writes as it would in production, and the URL of a database with our tables."""
    with MariaServer(options, on_disk=True) as server:
        yield server, f"{server.url_of(new_database(server))}?restart_wait=0"


def driver(url: str) -> Any:
    """A connection of PyMySQL to the database of a URL."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user="root",
        database=parts.path[1:],
        autocommit=True,
        ssl_disabled=True,
    )


def mysql_rows(turns: int, pairs: int) -> tuple[list[Row], list[Row]]:
    """Blocking clients, on one core with the server: against bare statements, and against ours."""
    with bench_server() as (_, url):
        ours = Lock("pair", store=url, ttl=_TTL)
        ours.acquire().release()
        own = Contender("bare statements of incumbent, PyMySQL", _bare_lease(url))
        contenders = [
            Contender("bare UPDATE to take, UPDATE to give back, PyMySQL", _bare(url)),
            lock := Contender(
                "incumbent Lock: fenced, renewed", lambda: ours.acquire().release(), 1.3
            ),
            own,
            Contender("bare GET_LOCK + RELEASE_LOCK, PyMySQL: writes nothing", _get_lock(url)),
            Contender("sqlalchemy-dlock (GET_LOCK)", _sqlalchemy_dlock(url)),
        ]
        rows = compare(contenders, turns, pairs)
        return rows, [against(own, own), against(lock, own, 1.3)]


def _bare(url: str) -> Callable[[], object]:
    connection = driver(url)
    connection.query(
        "CREATE TABLE bare (name VARCHAR(64) PRIMARY KEY, holder VARCHAR(64), token BIGINT,"
        " expires BIGINT) ENGINE=InnoDB"
    )
    connection.query("INSERT INTO bare VALUES ('pair','',0,0)")

    def pair() -> None:
        cursor = connection.cursor()
        taken = cursor.execute(
            "UPDATE bare SET holder=%s,token=LAST_INSERT_ID(token+1),"
            f"expires={_CLOCK}+15000000 WHERE name='pair' AND expires<={_CLOCK}",
            (secrets.token_hex(16),),
        )
        given = cursor.execute(
            "UPDATE bare SET holder='',expires=0 WHERE name='pair' AND token=%s",
            (cursor.lastrowid,),
        )
        if (taken, given) != (1, 1):
            raise RuntimeError("the bare statements did not take and give")

    return pair


def _bare_lease(url: str) -> Callable[[], object]:
    connection = driver(url)
    for setting in statements.HANDSHAKE.split(";")[:2]:
        connection.query(setting)
    cursor = connection.cursor()
    cursor.execute("SELECT id,place FROM incumbent_marker")
    if_ours = statements.if_ours(*cursor.fetchone())
    take, give = statements.take(if_ours, 0, 0, _FAR), statements.give(if_ours)
    name = "default/pair"

    def pair() -> None:
        claim, cursor = secrets.token_hex(16), connection.cursor()
        taken = cursor.execute(take, (claim, "bench", 15_000_000, b"", 86_400_000_000, name))
        given = cursor.execute(give, (name, claim, cursor.lastrowid))
        if (taken, given) != (1, 1):
            raise RuntimeError("the statements of incumbent did not take and give")

    return pair


def _get_lock(url: str) -> Callable[[], object]:
    connection = driver(url)

    def pair() -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT GET_LOCK('pair',5)")
        cursor.execute("SELECT RELEASE_LOCK('pair')")

    return pair


def _sqlalchemy_dlock(url: str) -> Callable[[], object]:
    from sqlalchemy_dlock.factory import create_sadlock

    place = url.partition("?")[0].replace("mysql://", "mysql+pymysql://")
    engine = sqlalchemy.create_engine(place)

    def pair() -> None:
        # Without a limit it asks for -1 seconds, which MariaDB refuses.
        with (
            engine.connect() as connection,
            create_sadlock(connection, "sqlalchemy-dlock", contextual_timeout=5),
        ):
            pass

    return pair


def mysql_async_rows(turns: int, pairs: int) -> list[Row]:
    """One task, client and server on one core; each request runs in a thread."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with bench_server() as (_, url):
        ours, bare = AsyncLock("pair", store=url, ttl=_TTL), _bare(url)

        async def in_a_thread() -> None:
            await asyncio.to_thread(bare)

        async def incumbent_lock() -> None:
            await (await ours.acquire()).release()

        rows = compare(
            [
                Contender("bare UPDATE to take, UPDATE to give back, in a thread", in_a_thread),
                Contender("incumbent AsyncLock: fenced, renewed", incumbent_lock),
            ],
            turns,
            pairs,
        )
    loop.close()
    return rows
