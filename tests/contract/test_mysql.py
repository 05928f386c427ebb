"""`mysql://` keeps the contract on a real MariaDB, behind a network that fails on request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from incumbent import clock
from incumbent.stores.mysql import open_mysql
from incumbent.stores.mysql.engine import MysqlEngine
from incumbent.testing.contract import NetworkWorld, StoreContract
from tests.rules.registers import RegistersOf
from tests.support.mariadb import MariaServer
from tests.support.proxy import FaultProxy, Way

_DATABASE = "contract"
_CHANGES = re.compile(rb"incumbent_lease SET .*'contract-", re.DOTALL)

pytestmark = pytest.mark.server


class ChangesProxy(FaultProxy):
    """Loses the answers to what changed something. A first take of a name tries an UPDATE first."""

    def _forward(self, link: Any, way: Way, chunk: bytes) -> None:
        if way is Way.REQUEST:
            link.doomed = False
        doomed = link.doomed
        if way is Way.REPLY and not any(_affected(chunk)):
            link.doomed = False
        super()._forward(link, way, chunk)
        if way is Way.REPLY:
            link.doomed = doomed  # what was changed may come with the next bytes


def _affected(reply: bytes) -> Iterator[int]:
    """How many rows each statement changed: the second byte of an OK packet."""
    while len(reply) > 5:
        size = int.from_bytes(reply[:3], "little")
        if reply[4] == 0:
            yield reply[5]
        reply = reply[4 + size :]


class MysqlWorld(NetworkWorld):
    """One server behind one network."""

    def __init__(self, server: MariaServer, proxy: FaultProxy, options: str = "") -> None:
        server.sql(f"CREATE DATABASE IF NOT EXISTS {_DATABASE}")
        url = server.url_of(_DATABASE, port=proxy.port)
        # Not just any request: a new connection first asks about the server, and tries a swap.
        super().__init__(open_mysql, f"{url}{options}", [proxy], _CHANGES)
        self._server = server
        self._make_tables()

    def _make_tables(self) -> None:
        assert isinstance(self.engine, MysqlEngine)
        ((level, what, _),) = self.engine.fix(clock.now() + 20)
        assert level == "ok", what

    def registers(self) -> RegistersOf:
        assert isinstance(self.engine, MysqlEngine)
        return RegistersOf(self.engine.store().operations)

    def restart(self, *, empty: bool) -> None:
        self._server.restart(empty=empty)
        if empty:
            self._server.sql(f"CREATE DATABASE {_DATABASE}")
            self._make_tables()


class TestMysql(StoreContract):
    capabilities = MysqlEngine.capabilities
    hooks = NetworkWorld.hooks | {"registers"}
    ttl = 0.4

    @pytest.fixture
    def world(self, maria_server: MariaServer) -> Iterator[MysqlWorld]:
        with ChangesProxy(maria_server.port) as proxy:
            # The tables are younger than the leases of this suite are long.
            yield MysqlWorld(maria_server, proxy, "?restart_wait=0")


class TestMysqlRestarts(StoreContract):
    """On servers of their own, which crash and keep their data: leases outlive that."""

    capabilities = MysqlEngine.capabilities
    hooks = frozenset({"restart"})
    only = frozenset({"restart"})
    ttl = 0.4

    @pytest.fixture
    def world(self, own_maria: MariaServer) -> Iterator[MysqlWorld]:
        with ChangesProxy(own_maria.port) as proxy:
            yield MysqlWorld(own_maria, proxy, "?restart_wait=0")


class TestMysqlWipes(StoreContract):
    """On servers of their own, which lose their data."""

    capabilities = MysqlEngine.capabilities
    hooks = frozenset({"wipe", "restart_wait"})
    only = frozenset({"wipe"})
    ttl = 0.4

    @pytest.fixture
    def world(self, own_maria: MariaServer) -> Iterator[MysqlWorld]:
        with ChangesProxy(own_maria.port) as proxy:
            yield MysqlWorld(own_maria, proxy, "?restart_wait=1.5s")
