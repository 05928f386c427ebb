"""One party behind a faulty network, and one that reaches the same server directly.

`here` and `direct` are those of Redis, `far` and `near` those of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import postgresql_world
from tests.faults.redis_world import Party, party
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as faulty:
        yield faulty


@pytest.fixture
def here(proxy: FaultProxy) -> Iterator[Party]:
    with party(proxy.url) as one:
        yield one


@pytest.fixture
def direct(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """One of its own, with the schema."""
    return postgresql_world.new_database(postgres_server)


@pytest.fixture
def network(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_server.port) as faulty:
        yield faulty


@pytest.fixture
def far(
    postgres_server: PostgresServer, database: str, network: FaultProxy
) -> Iterator[postgresql_world.Party]:
    with postgresql_world.party(postgres_server.url_of(database, port=network.port)) as one:
        yield one


@pytest.fixture
def near(
    postgres_server: PostgresServer, database: str, far: postgresql_world.Party
) -> Iterator[postgresql_world.Party]:
    """It asks for the same key."""
    with postgresql_world.party(postgres_server.url_of(database)) as one:
        one.key = far.key
        yield one
