"""Fleets on every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, Place, locked_file
from tests.support.etcd import EtcdServer
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes and real time: `make quick` leaves them out."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=["sqlite", "redis", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store; the faults of servers are those of the process and of the network before it."""
    if request.param == "sqlite":
        with locked_file(tmp_path / "leases.db") as file:
            yield file
        return
    server: RedisServer | EtcdServer = RedisServer() if request.param == "redis" else EtcdServer()
    port = server.client_port if isinstance(server, EtcdServer) else server.port
    with server, FaultProxy(port) as proxy:
        etcd = f"etcd://127.0.0.1:{proxy.port}?restart_wait=0"
        yield Place(
            etcd if request.param == "etcd" else f"{proxy.url}?restart_wait=0",
            {
                "silent": (server.freeze, server.thaw),
                "killed": (server.kill, server.start),
                "black hole": (proxy.blackhole, proxy.heal),
                "one-way loss": (proxy.drop_replies, proxy.heal),
            },
        )
        server.thaw()


@pytest.fixture
def fleet(place: Place, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(place.url, tmp_path)
    yield fleet
    fleet.close()
