"""The parties of `interleavings` on the registers of real stores, whose rules can be left out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from incumbent.stores.kubernetes import known
from incumbent.stores.kubernetes.objects import object_name
from incumbent.stores.mysql import open_mysql, statements
from incumbent.stores.mysql.engine import MysqlEngine
from incumbent.stores.mysql.exchange import MysqlExchange
from incumbent.stores.postgresql.engine import PostgresEngine
from incumbent.stores.registers import Swap
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.host import Host
from tests.rules.interleavings import KEY, SECOND, Party
from tests.rules.registers import RegistersOf
from tests.stores.kubernetes.world import open_at, url_of
from tests.stores.mysql import world as mysql
from tests.stores.party import soon
from tests.stores.postgresql.world import AGED, MovedWorld
from tests.stores.sqlite.test_same_as_model import Hands
from tests.support.kubernetes import ApiServer
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer

__all__ = ["KubernetesParty", "MysqlParty", "PostgresParty", "SqliteParty"]

WALL = 1_800_000_000
_NEXT = "greatest(r.version + 1, now), written"
_NOT_IN_SQL: dict[str, tuple[tuple[str, str], ...]] = {
    "nothing": (),
    "renewals": (
        (
            _NEXT,
            f"CASE WHEN n.token = r.token THEN r.version ELSE {_NEXT}".replace(", w", " END, w"),
        ),
    ),
    "versions": (
        (_NEXT, "r.version + 1, written"),
        ("SELECT p_key, highest, highest, highest", "SELECT p_key, highest, highest, 0"),
    ),
    "incarnation": (("OR NOT EXISTS (SELECT FROM incumbent.epoch WHERE id = s.epoch)", ""),),
}


def _planted(left_out: str, schema: str) -> str:
    for rule, instead in _NOT_IN_SQL[left_out]:
        assert rule in schema, rule
        schema = schema.replace(rule, instead)
    return schema


class PostgresParty(Party):
    """Of a database whose schema may lack a rule."""

    def __init__(self, left_out: str, server: PostgresServer) -> None:
        bug = partial(_planted, left_out) if left_out != "nothing" else None
        self._world = MovedWorld(server, WALL, bug)
        assert isinstance(self._world.engine, PostgresEngine)
        self._store = self._world.engine.store()
        super().__init__(RegistersOf(self._store.operations))
        self._sql(AGED)

    def _sql(self, asked: str) -> None:
        self._world.server.psql(asked, self._world.database)

    def pass_time(self, seconds: float) -> None:
        self._world.pass_time(seconds)

    def forget(self) -> None:
        self._sql("update incumbent.record set keep_until = 0, forget_on = '2000-01-01'")
        self._sql("select incumbent.sweep()")

    def copy(self) -> None:
        self._sql("create table public.replica as select * from incumbent.record")

    def fail_over_to(self, copy: None) -> None:
        self._sql(
            "delete from incumbent.record;"
            "insert into incumbent.record select * from public.replica;"
            "delete from incumbent.epoch; select incumbent.begin_epoch()"
        )

    def close(self) -> None:
        self._store.close()


class MysqlParty(Party):
    """Of a database for clients that may lack a rule."""

    def __init__(self, left_out: str, server: MariaServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._database = server, mysql.new_database(server)
        self._clock = mysql.Clock(monkeypatch)
        self._clock.stands_at = self._at = WALL * SECOND
        engine = open_mysql(server.url_of(self._database))
        assert isinstance(engine, MysqlEngine)
        self._store = engine.store()
        super().__init__(RegistersOf(self._store.operations))
        self._store.read(KEY, mysql.soon())
        mysql.aged(server, self._database)
        self._store.close()
        if left_out == "incarnation":
            monkeypatch.setattr(statements, "if_ours", lambda epoch, here: "1")
        elif left_out != "nothing":
            _leave_out(left_out, monkeypatch)

    def _sql(self, asked: str) -> tuple[tuple[Any, ...], ...]:
        return self._server.sql(asked, self._database)

    def pass_time(self, seconds: float) -> None:
        self._at += int(seconds * SECOND)
        self._clock.stands_at = self._at

    def forget(self) -> None:
        # It does not do so before a swap by what it had comes too late.
        self.pass_time(2 * 60.0 + 1.0)
        self._sql("DELETE FROM incumbent_lease")

    def copy(self) -> None:
        self._sql("CREATE TABLE replica AS SELECT * FROM incumbent_lease")

    def fail_over_to(self, copy: None) -> None:
        self._sql("DELETE FROM incumbent_lease")
        self._sql("INSERT INTO incumbent_lease SELECT * FROM replica")
        self._sql("UPDATE incumbent_lease SET epoch='second'")
        self._sql(f"UPDATE incumbent_marker SET id='second',born={self._at}")

    def close(self) -> None:
        self._store.close()


def _leave_out(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a client's swaps: renewals keep the version, or versions count from 1 on."""
    written, grows = MysqlExchange._written, "version=GREATEST(version+1,written)"

    def without(it: MysqlExchange, swap: Swap) -> str:
        asked = written(it, swap)
        assert grows in asked
        if rule == "versions":
            return asked.replace(grows, "version=version+1")
        renews = swap.record.token == swap.seen.record.token
        return asked.replace(grows, "version=version") if renews else asked

    monkeypatch.setattr(MysqlExchange, "_written", without)
    monkeypatch.setattr(statements, "LATE", 10**15)


class KubernetesParty(Party):
    """Of a namespace whose etcd can be restored."""

    def __init__(self, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server, self._at = server, 1000.0
        monkeypatch.setattr(known.Known, "now", staticmethod(lambda: self._at))
        # The marker is a minute old, and more, once it is looked at again.
        monkeypatch.setattr(known.Known, "wall", lambda _: int((WALL + self._at) * SECOND))
        self._store = open_at(url_of(server, "default", wait=None)).store()
        super().__init__(RegistersOf(self._store.operations))
        self._store.read(KEY, soon())
        self.pass_time(3600.0)

    def pass_time(self, seconds: float) -> None:
        self._at += seconds * 1.02

    def forget(self) -> None:
        self._server.delete("default", object_name(KEY))

    def copy(self) -> Path:
        return self._server.snapshot()

    def fail_over_to(self, copy: Path) -> None:
        self._server.restore(copy)

    def close(self) -> None:
        self._store.close()


class SqliteParty(Party):
    """Of a file whose operations do without the one rule that it has: one transaction for each."""

    def __init__(self, folder: Path) -> None:
        self._path, self._hands = folder / "leases.db", Hands()
        host = Host(self._hands.now, self._hands.wall, "boot")
        self._store = SqliteEngine(self._path, host=lambda: host).store()
        super().__init__(RegistersOf(self._store.operations))

    def _sql(self, asked: str) -> None:
        with closing(sqlite3.connect(self._path)) as other, other:
            other.execute(asked)

    def pass_time(self, seconds: float) -> None:
        self._hands.move(self._hands.now() + seconds, self._hands.wall() + seconds)

    def forget(self) -> None:
        self._sql("DELETE FROM lease")

    def copy(self) -> None:
        self._sql("CREATE TABLE replica AS SELECT * FROM lease")

    def fail_over_to(self, copy: None) -> None:
        self._sql("DELETE FROM lease")
        self._sql("INSERT INTO lease SELECT * FROM replica")

    def close(self) -> None:
        self._store.close()
