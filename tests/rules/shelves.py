"""One store for clients of several releases, on each engine over registers; its clock is moved.

Who looks past the clients sees the texts of its records.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from incumbent.stores.base import Store
from incumbent.stores.deciding import Deciding
from incumbent.stores.kubernetes.engine import KubernetesEngine
from incumbent.stores.kubernetes.known import Known
from incumbent.stores.kubernetes.login import Login
from incumbent.stores.kubernetes.objects import KEY, RECORD, opened
from incumbent.stores.kubernetes.site import KubernetesSite
from incumbent.stores.mysql.wire import MysqlWire
from incumbent.stores.names import flat
from incumbent.stores.plan import run_blocking
from incumbent.stores.postgresql.dialect import PostgresDialect
from incumbent.stores.postgresql.engine import PostgresStore
from incumbent.stores.register_store import RegisterStore
from incumbent.stores.sqlite.engine import SqliteEngine
from incumbent.stores.sqlite.host import Host
from incumbent.stores.url import Endpoint
from tests.rules.histories import Subject
from tests.rules.releases import Modules
from tests.stores.kubernetes.world import a_namespace
from tests.stores.mysql import world as mysql
from tests.stores.party import soon
from tests.stores.postgresql.world import moved_database
from tests.stores.sqlite.test_same_as_model import QUEUES, Hands
from tests.support.kubernetes import ApiServer
from tests.support.mariadb import MariaServer

__all__ = ["ENGINES", "Shelf", "shelf_of"]

BEGIN = 1_000.0, 1_800_000_000.0
"""When each history begins: by the clock that counts, and by the wall clock."""


def _of(of: Modules, this: type) -> Any:
    """The class of a release that has this name here."""
    return getattr(of(this.__module__.removeprefix("incumbent.")), this.__name__)


class Shelf:
    """Registers in a dict, and the base of the others."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self._versions = count(1)
        self._clients: list[Any] = []

    def store(self, of: Modules) -> Store:
        """A client of that release."""
        registers = of("registers").DictRegisters("nothing")
        registers.rows, registers._versions = self.rows, self._versions
        self._clients.append(registers)
        self.move(*BEGIN)
        deciding = _of(of, Deciding)("dict:", restart_wait=0.0)
        store: Store = _of(of, RegisterStore)(registers, deciding)
        return store

    def subject(self, store: Store) -> Subject:
        """The store for a history."""
        return Subject(store, self.move)

    def move(self, now: float, wall: float) -> None:
        """Set its clocks."""
        for registers in self._clients:
            registers.now, registers.wall = int(now * 1e6), int(wall * 1e6)

    def texts(self) -> dict[str, bytes]:
        """The text of each name's record, or of what is not in columns."""
        return {flat(key): row.text for key, row in self.rows.items()}

    def clear(self) -> None:
        """Forget all names."""
        self.rows.clear()
        self._clients.clear()


class SqliteShelf(Shelf):
    """A file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, count()
        self.clear()

    def store(self, of: Modules) -> Store:
        host = _of(of, Host)(self._hands.now, self._hands.wall, "boot")
        engine = _of(of, SqliteEngine)(self._path, host=partial(_same, host))
        store: Store = engine.store()
        return store

    def subject(self, store: Store) -> Subject:
        return Subject(store, self.move, queues=QUEUES, late_kept=0.0)

    def move(self, now: float, wall: float) -> None:
        self._hands.move(now, wall)

    def texts(self) -> dict[str, bytes]:
        if not self._path.exists():
            return {}
        with closing(sqlite3.connect(self._path)) as reader:
            return dict(reader.execute("SELECT key, rest FROM lease"))

    def clear(self) -> None:
        self._hands, self._path = Hands(), self._folder / f"{next(self._files)}.db"


def _same(host: Any) -> Any:
    return host


class PostgresShelf(Shelf):
    """A database with a clock of its own."""

    def __init__(
        self, operator: psycopg.Connection[Any], url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._operator, self._url, self._patch = operator, url, monkeypatch
        self.move(*BEGIN)

    def store(self, of: Modules) -> Store:
        # What a client wrote last ages by the clock that is moved.
        self._patch.setattr(of("stores.recall"), "_SLOWER", 1.0)
        self._patch.setattr(of("stores.recall"), "_now", lambda: self._now)
        site = of("stores.postgresql.site").site_of_url(f"{self._url}?restart_wait=0")
        dialect = _of(of, PostgresDialect)(site.where, site.restart_wait)
        store = _of(of, PostgresStore)(site, dialect)
        operations = store.operations
        # Its waiters do not take turns: each claim asks the server, as those of many processes do.
        store.take = lambda key, claim, ask, until: run_blocking(
            operations.run(dialect.take(key, claim, ask), until)
        )
        made: Store = store
        return made

    def move(self, now: float, wall: float) -> None:
        self._now = now
        self._operator.execute(b"update public.moved set at = to_timestamp(%s)", (wall,))

    def texts(self) -> dict[str, bytes]:
        rows = self._operator.execute(b"select key, rest from incumbent.record").fetchall()
        return {name: rest.encode() for name, rest in rows}

    def clear(self) -> None:
        for table in ("record", "beside", "history", "joined"):
            self._operator.execute(f"delete from incumbent.{table}".encode())
        self.move(*BEGIN)


class MysqlShelf(Shelf):
    """A database of a server whose clock the statements of each client read moved."""

    def __init__(self, server: MariaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._patch = server, monkeypatch
        self._database = mysql.new_database(server)
        self._clocks: list[mysql.Clock] = []

    def store(self, of: Modules) -> Store:
        self._clocks.append(mysql.Clock(self._patch, _of(of, MysqlWire)))
        self.move(*BEGIN)
        url = f"{self._server.url_of(self._database)}?restart_wait=0"
        store: Store = of("stores.mysql").open_mysql(url).store()
        return store

    def move(self, now: float, wall: float) -> None:
        for clock in self._clocks:
            clock.stands_at = int(wall * 1e6)

    def texts(self) -> dict[str, bytes]:
        return dict(self._server.sql("SELECT name,rest FROM incumbent_lease", self._database))

    def clear(self) -> None:
        for table in ("lease", "beside"):
            self._server.sql(f"DELETE FROM incumbent_{table}", self._database)


class KubernetesShelf(Shelf):
    """A namespace, of which each client counts by the clock that is moved, without a margin."""

    def __init__(self, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._server, self._patch = server, monkeypatch
        self.clear()

    def store(self, of: Modules) -> Store:
        modules = of("stores.kubernetes.known"), of("stores.kubernetes.objects")
        self._patch.setattr(modules[1], "_SLOW", 1.0)
        for module in modules:
            self._patch.setattr(module, "SKEW", 0)
        known = _of(of, Known)
        self._patch.setattr(known, "now", staticmethod(lambda: self._at[0]))
        self._patch.setattr(known, "wall", lambda _: int(self._at[1] * 1e6))
        place = _of(of, Endpoint)(self._server.host, self._server.port)
        login = _of(of, Login)(self._server.token)
        where = "kubernetes://test"
        site = _of(of, KubernetesSite)(where, place, "", self._namespace, login, None, 0.0)
        store: Store = _of(of, KubernetesEngine)(site).store()
        self._clients.append(store)
        return store

    def move(self, now: float, wall: float) -> None:
        self._at = now, wall

    def texts(self) -> dict[str, bytes]:
        for client in self._clients:
            # Each counts from when it saw a version first.
            client.scan("default", "", soon(30.0))
        found = [it["metadata"]["annotations"] for it in self._server.leases(self._namespace)]
        return {it[KEY]: opened(it[RECORD])["record"].encode() for it in found if KEY in it}

    def clear(self) -> None:
        self._clients.clear()
        self._namespace = a_namespace(self._server)
        self.move(*BEGIN)


ENGINES = ("dict", "sqlite", "postgresql", "mysql", "kubernetes")


@contextmanager
def shelf_of(
    engine: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shelf]:
    """An empty store of that engine."""
    match engine:
        case "sqlite":
            yield SqliteShelf(request.getfixturevalue("tmp_path"))
        case "postgresql":
            server = request.getfixturevalue("postgres_server")
            url = server.url_of(moved_database(server, BEGIN[1]))
            with psycopg.connect(url, autocommit=True) as operator:
                yield PostgresShelf(operator, url, monkeypatch)
        case "mysql":
            yield MysqlShelf(request.getfixturevalue("maria_server"), monkeypatch)
        case "kubernetes":
            yield KubernetesShelf(request.getfixturevalue("api_server"), monkeypatch)
        case _:
            yield Shelf()
