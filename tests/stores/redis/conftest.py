"""One party behind a faulty network, and one that reaches the same server directly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.redis.world import Party, party
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
