"""One party behind a faulty network (`far`), and one that reaches the server directly (`near`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.postgresql import world
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """One of its own, with the schema."""
    return world.new_database(postgres_server)


@pytest.fixture
def network(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_server.port) as faulty:
        yield faulty


@pytest.fixture
def far(
    postgres_server: PostgresServer, database: str, network: FaultProxy
) -> Iterator[world.Party]:
    with world.party(postgres_server.url_of(database, port=network.port)) as one:
        yield one


@pytest.fixture
def near(postgres_server: PostgresServer, database: str, far: world.Party) -> Iterator[world.Party]:
    """It asks for the same key."""
    with world.party(postgres_server.url_of(database)) as one:
        one.key = far.key
        yield one
