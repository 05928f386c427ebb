"""One party behind a faulty network (`far`), and one that reaches the server directly (`near`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.mysql import world
from tests.support.mariadb import MariaServer
from tests.support.proxy import FaultProxy


@pytest.fixture
def database(maria_server: MariaServer) -> str:
    """One of its own, with the tables."""
    return world.new_database(maria_server)


@pytest.fixture
def network(maria_server: MariaServer) -> Iterator[FaultProxy]:
    with FaultProxy(maria_server.port) as faulty:
        yield faulty


@pytest.fixture
def far(maria_server: MariaServer, database: str, network: FaultProxy) -> Iterator[world.Party]:
    with world.party(maria_server.url_of(database, port=network.port)) as one:
        yield one


@pytest.fixture
def near(maria_server: MariaServer, database: str, far: world.Party) -> Iterator[world.Party]:
    """It asks for the same key."""
    with world.party(maria_server.url_of(database)) as one:
        one.key = far.key
        yield one


@pytest.fixture
def here(maria_server: MariaServer, database: str) -> Iterator[world.Party]:
    """A party without a network between."""
    with world.party(maria_server.url_of(database)) as one:
        yield one
