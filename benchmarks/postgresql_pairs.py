"""One uncontended acquire and release on PostgreSQL; the unit is PALs, the fastest peer in use.

A second table takes our own two statements on a bare psycopg connection for its unit: what the
lease machine, the fencing and the deadlines of every call cost beyond them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import sqlalchemy
from tests.stores.postgresql.world import new_database
from tests.support.postgresql import PostgresServer

from benchmarks.harness import Contender, Row, against, compare
from incumbent import AsyncLock, Lock

__all__ = ["bench_server", "postgresql_async_rows", "postgresql_rows"]

_TTL = 15
_TAKE = b"""select incumbent.take('bench/bare', %s, 15000000, 'bench', '', 86400000000, 0,
    4102444800000000, false)"""
_GIVE = b"select incumbent.give('bench/bare', %s, %s)"


@contextmanager
def bench_server() -> Iterator[tuple[PostgresServer, str, str]]:
    """A server that writes as it would in production; its URL for drivers, and for incumbent."""
    with PostgresServer(["fsync=on"]) as server:
        url = server.url_of(new_database(server))
        yield server, url, f"{url}?restart_wait=0"


def postgresql_rows(turns: int, pairs: int) -> tuple[list[Row], list[Row]]:
    """Blocking clients, on one core with the server: against PALs, and against bare statements."""
    with bench_server() as (_, url, ours_url), psycopg.connect(url, autocommit=True) as connection:
        ours = Lock("pair", store=ours_url, ttl=_TTL)
        contenders = [
            Contender("PALs", _pals(url)),
            Contender("incumbent Lock: fenced, renewed", lambda: ours.acquire().release(), 0.4),
            Contender("bare pg_advisory_lock + unlock, psycopg", _bare_advisory(connection)),
            bare := Contender("bare statements of incumbent, psycopg", _bare_lease(connection)),
            Contender("sqlalchemy-dlock", _sqlalchemy_dlock(url)),
            Contender("tooz postgresql (connects each time)", _tooz(url)),
        ]
        rows = compare(contenders, turns, pairs)
        ours_and_bare = [bare, contenders[1]]
        return rows, [against(it, bare, 2.0 if it is not bare else None) for it in ours_and_bare]


def _bare_advisory(connection: psycopg.Connection[tuple[object, ...]]) -> Callable[[], object]:
    def pair() -> None:
        connection.execute(b"select pg_advisory_lock(42)")
        connection.execute(b"select pg_advisory_unlock(42)")

    return pair


def _bare_lease(connection: psycopg.Connection[tuple[object, ...]]) -> Callable[[], object]:
    def pair() -> None:
        claim = secrets.token_hex(16)
        (granted,) = connection.execute(_TAKE, (claim,)).fetchone() or ("",)
        connection.execute(_GIVE, (claim, str(granted).split()[2])).fetchone()

    return pair


def _pals(url: str) -> Callable[[], object]:
    import pals

    locker = pals.Locker("bench", _for_sqlalchemy(url))
    lock = locker.lock("pals")

    def pair() -> None:
        if not lock.acquire():
            raise RuntimeError("PALs did not get its own lock")
        lock.release()

    return pair


def _sqlalchemy_dlock(url: str) -> Callable[[], object]:
    from sqlalchemy_dlock.factory import create_sadlock

    engine = sqlalchemy.create_engine(_for_sqlalchemy(url))

    def pair() -> None:
        with engine.connect() as connection, create_sadlock(connection, "sqlalchemy-dlock"):
            pass

    return pair


def _tooz(url: str) -> Callable[[], object]:
    from tooz import coordination

    # Its driver reads the database from the query alone.
    parts = urlsplit(url)
    place = f"postgresql://{parts.netloc}?dbname={parts.path[1:]}"
    coordinator = coordination.get_coordinator(place, b"bench")
    coordinator.start()
    lock = coordinator.get_lock(b"tooz")

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def _for_sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def postgresql_async_rows(turns: int, pairs: int) -> list[Row]:
    """One task, client and server on one core."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    with bench_server() as (_, url, ours_url):
        connection = loop.run_until_complete(psycopg.AsyncConnection.connect(url, autocommit=True))
        ours = AsyncLock("pair", store=ours_url, ttl=_TTL)

        async def bare() -> None:
            claim = secrets.token_hex(16)
            (granted,) = await (await connection.execute(_TAKE, (claim,))).fetchone() or ("",)
            await (await connection.execute(_GIVE, (claim, str(granted).split()[2]))).fetchone()

        async def incumbent_lock() -> None:
            await (await ours.acquire()).release()

        rows = compare(
            [
                Contender("bare statements of incumbent, psycopg asyncio", bare),
                Contender("incumbent AsyncLock: fenced, renewed", incumbent_lock, 2.0),
            ],
            turns,
            pairs,
        )
        loop.run_until_complete(connection.close())
    loop.close()
    return rows
