"""Each kind of store that groups are tried on, with a server that is of this test alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from tests.stores.mysql import world as mysql
from tests.stores.postgresql.world import new_database
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer

SERVERS = ("redis", "cluster", "sentinel", "quorum", "etcd", "postgresql", "mysql")


@pytest.fixture(params=["sqlite", *(pytest.param(of, marks=pytest.mark.server) for of in SERVERS)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that grants at once."""
    with ExitStack() as ends:
        match request.param:
            case "redis":
                where = ends.enter_context(RedisServer()).url
            case "cluster":
                where = ends.enter_context(RedisCluster()).url
            case "sentinel":
                # So patient that a busy machine is no failover.
                where = ends.enter_context(Sentinels(replicas=1)).url
            case "quorum":
                ports = [ends.enter_context(RedisServer()).port for _ in range(3)]
                where = f"redis+quorum://{','.join(f'127.0.0.1:{port}' for port in ports)}"
            case "etcd":
                endpoint = request.getfixturevalue("etcd_server").endpoint
                where = f"etcd://{endpoint}/{uuid4().hex}"
            case "postgresql":
                server = request.getfixturevalue("postgres_server")
                where = server.url_of(new_database(server))
            case "mysql":
                maria = request.getfixturevalue("maria_server")
                where = maria.url_of(mysql.new_database(maria))
            case _:
                yield f"sqlite:///{tmp_path}/leases.db"
                return
        yield f"{where}?restart_wait=0"
