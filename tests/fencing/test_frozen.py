"""A holder that froze after its last check writes once the next one has written: it is refused.

Real processes, stopped with SIGSTOP, and real resources.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import psycopg
import pytest
import redis

from incumbent import Lease, Lock
from incumbent.fencing import (
    FencedWSGI,
    create_table,
    replace_file,
    with_token,
    write_redis,
)
from tests import tiers
from tests.stores.postgresql.world import new_database
from tests.support.postgresql import PostgresServer
from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Resource:
    """What is written to, and what the next holder writes there."""

    target: str
    write: Callable[[Lease], None]
    written: Callable[[], list[str]]


class Frozen:
    """A holder in a process of its own, which has stopped itself."""

    def __init__(self, kind: str, target: str, store: str) -> None:
        command = [sys.executable, "-m", "tests.fencing.stale", kind, target, store]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> str:
        self._process.send_signal(signal.SIGCONT)
        said, _ = self._process.communicate(timeout=60)
        return said

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def of_sqlite(folder: Path) -> Resource:
    target = str(folder / "work.db")
    with closing(sqlite3.connect(target)) as connection, connection:
        connection.execute("CREATE TABLE work (who TEXT)")
        create_table(connection)

    def write(lease: Lease) -> None:
        with closing(sqlite3.connect(target)) as connection, connection:
            with_token(lease, connection)
            connection.execute("INSERT INTO work VALUES ('new')")

    def written() -> list[str]:
        with closing(sqlite3.connect(target)) as connection:
            return [who for (who,) in connection.execute("SELECT who FROM work ORDER BY rowid")]

    return Resource(target, write, written)


def of_sqlalchemy(folder: Path) -> Resource:
    plain = of_sqlite(folder)
    return Resource(f"sqlite:///{plain.target}", plain.write, plain.written)


def of_postgresql(server: PostgresServer) -> Resource:
    target = server.url_of(new_database(server))
    with psycopg.connect(target) as connection:
        connection.execute("CREATE TABLE work (who TEXT, id SERIAL)")
        create_table(connection)

    def write(lease: Lease) -> None:
        with psycopg.connect(target) as connection:
            with_token(lease, connection)
            connection.execute("INSERT INTO work VALUES ('new')")

    def written() -> list[str]:
        with psycopg.connect(target) as connection:
            return [who for (who,) in connection.execute("SELECT who FROM work ORDER BY id")]

    return Resource(target, write, written)


def of_redis(server: RedisServer) -> Resource:
    client = redis.Redis.from_url(server.url, decode_responses=True)
    client.delete("work", "incumbent-fencing:job")

    def write(lease: Lease) -> None:
        assert write_redis(lease, client, ("RPUSH", "work", "new"), ("LLEN", "work")) == [1, 1]

    return Resource(server.url, write, lambda: [str(w) for w in client.lrange("work", 0, -1)])


def of_file(folder: Path) -> Resource:
    target = folder / "work.txt"
    return Resource(
        str(target),
        lambda lease: replace_file(lease, target, b"new"),
        lambda: [target.read_text()] if target.exists() else [],
    )


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def of_http(folder: Path) -> Iterator[Resource]:
    seen: list[str] = []

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode())
        start_response("204 No Content", [])
        return []

    fenced = FencedWSGI(application, str(folder / "tokens.db"))
    with make_server("127.0.0.1", 0, fenced, handler_class=Quiet) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        target = f"http://127.0.0.1:{server.server_port}/"

        def write(lease: Lease) -> None:
            from urllib.request import Request, urlopen

            from incumbent.fencing import headers

            urlopen(Request(target, b"new", headers(lease)), timeout=20).close()

        try:
            yield Resource(target, write, lambda: list(seen))
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=["sqlite", "sqlalchemy", "postgresql", "redis", "file", "http"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def resource(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Resource]:
    if kind == "http":
        with of_http(tmp_path) as made:
            yield made
    elif kind == "postgresql":
        yield of_postgresql(request.getfixturevalue("postgres_server"))
    elif kind == "redis":
        yield of_redis(request.getfixturevalue("redis_server"))
    else:
        yield {"sqlite": of_sqlite, "sqlalchemy": of_sqlalchemy, "file": of_file}[kind](tmp_path)


@pytest.mark.left(tiers.STORES, "redis")
def test_the_late_write_of_a_frozen_holder_is_refused(
    kind: str, resource: Resource, tmp_path: Path
) -> None:
    store = f"sqlite://{tmp_path}/leases.db"
    frozen = Frozen(kind, resource.target, store)
    try:
        with Lock("job", store=store, ttl=30, timeout=30).acquire() as next_one:
            resource.write(next_one)
            assert frozen.go_on() == "refused taken"
            assert resource.written() == ["new"]
    finally:
        frozen.close()


@pytest.mark.left(tiers.STORES, "sqlite")
def test_a_frozen_holder_that_nobody_replaced_may_write(
    kind: str, resource: Resource, tmp_path: Path
) -> None:
    frozen = Frozen(kind, resource.target, f"sqlite://{tmp_path}/leases.db")
    try:
        assert frozen.go_on() == "written"
        assert resource.written() == ["stale"]
    finally:
        frozen.close()
