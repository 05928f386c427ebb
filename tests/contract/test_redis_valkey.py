"""`valkey://` keeps the contract on a real Valkey server (see chosen)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.stores.redis import open_store
from incumbent.stores.redis.engine import RedisEngine
from incumbent.testing.contract import World
from tests.contract.chosen import ChosenContract
from tests.support.needs import needs
from tests.support.servers import RedisServer
from tests.support.valkey import HAVE, WHY

pytestmark = [pytest.mark.server, needs(HAVE, WHY)]


@pytest.fixture(scope="module")
def valkey() -> Iterator[RedisServer]:
    with RedisServer(program="valkey-server") as running:
        yield running


class TestValkey(ChosenContract):
    capabilities = RedisEngine.capabilities
    ttl = 0.4

    @pytest.fixture
    def world(self, valkey: RedisServer) -> World:
        return World(open_store(f"valkey://127.0.0.1:{valkey.port}?restart_wait=0"))
