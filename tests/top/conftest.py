"""Each kind of store, for what a lock or an election promises on all of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stores.mysql import world as mysql
from tests.stores.postgresql.world import new_database
from tests.support.servers import RedisServer

_SERVERS = ("redis", "postgresql", "etcd", "quorum", "mysql")


@pytest.fixture(
    params=["memory", "sqlite", *(pytest.param(of, marks=pytest.mark.server) for of in _SERVERS)]
)
def every_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that is of this test alone, and that grants at once."""
    with ExitStack() as ends:
        match request.param:
            case "redis":
                server = request.getfixturevalue("own_redis")
                yield f"{server.url}?restart_wait=0"
            case "postgresql":
                postgres = request.getfixturevalue("postgres_server")
                yield postgres.url_of(new_database(postgres))
            case "mysql":
                maria = request.getfixturevalue("maria_server")
                yield f"{maria.url_of(mysql.new_database(maria))}?restart_wait=0"
            case "etcd":
                endpoint = request.getfixturevalue("etcd_server").endpoint
                yield f"etcd://{endpoint}/{secrets.token_hex(6)}?restart_wait=0"
            case "quorum":
                ports = [ends.enter_context(RedisServer()).port for _ in range(3)]
                hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
                yield f"redis+quorum://{hosts}?restart_wait=0"
            case "sqlite":
                yield f"sqlite:///{tmp_path}/leases.db"
            case _:
                yield f"memory:{tmp_path}"
