"""The stores that the driver is tried on."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stores.mysql import world as mysql
from tests.stores.postgresql.world import new_database
from tests.tooz_driver.world import World


@pytest.fixture(params=["redis", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    store = f"sqlite://{tmp_path}/leases.db"
    if request.param == "redis":
        store = request.getfixturevalue("redis_server").url
    if request.param == "etcd":
        # Each process tells the age of a new cluster by whole seconds: they differ by one.
        store = f"etcd://{request.getfixturevalue('etcd_server').endpoint}?restart_wait=0"
    if request.param == "mysql":
        maria = request.getfixturevalue("maria_server")
        store = f"{maria.url_of(mysql.new_database(maria))}?restart_wait=0"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        store = server.url_of(new_database(server))
    with ExitStack() as ends:
        yield World(store, f"tooz-{secrets.token_hex(6)}", ends)
