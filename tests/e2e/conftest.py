"""Fleets on every store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.e2e.fleet import Fleet, Place, locked_file
from tests.stores.postgresql.world import new_database
from tests.support.etcd import EtcdServer
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes and real time: `make quick` leaves them out."""
    here = Path(__file__).parent
    for item in items:
        # By its text: a path takes longer, and here is each test of the run.
        if str(item.path).startswith(f"{here}{os.sep}"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["sqlite", "redis", "etcd", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store; those behind a network have the faults of the process and of the network."""
    if request.param == "sqlite":
        with locked_file(tmp_path / "leases.db") as file:
            yield file
        return
    with _running(request.param) as server, FaultProxy(server.port) as proxy:
        yield Place(
            f"{_url(server, proxy)}?restart_wait=0",
            {
                "silent": (server.freeze, server.thaw),
                "killed": (server.kill, server.start),
                "black hole": (proxy.blackhole, proxy.heal),
                "one-way loss": (proxy.drop_replies, proxy.heal),
            },
        )
        server.thaw()


_SERVERS = {"redis": RedisServer, "etcd": EtcdServer, "postgresql": PostgresServer}
_Server: TypeAlias = "RedisServer | EtcdServer | PostgresServer"


def _running(store: str) -> _Server:
    server: _Server = _SERVERS[store]()
    return server


def _url(server: _Server, proxy: FaultProxy) -> str:
    if isinstance(server, RedisServer):
        return proxy.url
    if isinstance(server, EtcdServer):
        return f"etcd://127.0.0.1:{proxy.port}"
    return server.url_of(new_database(server), port=proxy.port)


@pytest.fixture
def fleet(place: Place, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(place.url, tmp_path)
    yield fleet
    fleet.close()
