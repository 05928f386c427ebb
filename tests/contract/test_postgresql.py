"""`postgresql://` keeps the contract on a real server, behind a network that fails on request."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from incumbent import clock
from incumbent.stores.postgresql import open_postgresql
from incumbent.stores.postgresql.engine import PostgresEngine
from incumbent.testing.contract import NetworkWorld, StoreContract
from tests.rules.registers import RegistersOf
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.server

_CHANGES = re.compile(rb"incumbent\.(take|renew|give|swap|join_line)\(\$1")


class PostgresWorld(NetworkWorld):
    """One server behind one network."""

    def __init__(self, server: PostgresServer, proxy: FaultProxy, options: str = "") -> None:
        url = server.url_of("postgres", port=proxy.port)
        super().__init__(open_postgresql, f"{url}{options}", [proxy], _CHANGES)
        self._server = server
        self._make_schema()

    def _make_schema(self) -> None:
        assert isinstance(self.engine, PostgresEngine)
        ((level, what, _),) = self.engine.fix(clock.now() + 20)
        assert level == "ok", what

    def registers(self) -> RegistersOf:
        assert isinstance(self.engine, PostgresEngine)
        return RegistersOf(self.engine.store().operations)

    def restart(self, *, empty: bool) -> None:
        self._server.restart(empty=empty)
        if empty:
            self._make_schema()


class TestPostgresql(StoreContract):
    capabilities = PostgresEngine.capabilities
    hooks = NetworkWorld.hooks | {"registers"}
    ttl = 0.4

    @pytest.fixture
    def world(self, postgres_server: PostgresServer) -> Iterator[PostgresWorld]:
        with FaultProxy(postgres_server.port) as proxy:
            # The schema is younger than the leases of this suite are long.
            yield PostgresWorld(postgres_server, proxy, "?restart_wait=0")


class TestPostgresqlRestarts(StoreContract):
    """On servers of their own, which crash and keep their data, or lose it."""

    capabilities = PostgresEngine.capabilities
    hooks = frozenset({"restart", "wipe", "restart_wait"})
    only = frozenset({"restart", "wipe"})
    ttl = 0.4

    @pytest.fixture
    def world(self, own_postgres: PostgresServer) -> Iterator[PostgresWorld]:
        with FaultProxy(own_postgres.port) as proxy:
            yield PostgresWorld(own_postgres, proxy, "?restart_wait=1.5s")
