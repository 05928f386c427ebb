"""`redis://` keeps the contract on a real server, behind a network that fails on request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.stores.redis import open_store
from incumbent.stores.redis.engine import RedisEngine
from incumbent.testing.contract import NetworkWorld, StoreContract
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server


class RedisWorld(NetworkWorld):
    """One server behind one network."""

    def __init__(self, server: RedisServer, proxy: FaultProxy, options: str = "") -> None:
        # Not just any request: a new connection first says who it is and loads the scripts.
        super().__init__(open_store, f"{proxy.url}/0{options}", [proxy], b"EVALSHA")
        self._server = server

    def restart(self, *, empty: bool) -> None:
        self._server.restart(empty=empty)


class TestRedis(StoreContract):
    capabilities = RedisEngine.capabilities
    hooks = NetworkWorld.hooks
    ttl = 0.4

    @pytest.fixture
    def world(self, redis_server: RedisServer) -> Iterator[RedisWorld]:
        with FaultProxy(redis_server.port) as proxy:
            # The server is younger than the leases of this suite are long.
            yield RedisWorld(redis_server, proxy, "?restart_wait=0")


class TestRedisRestarts(StoreContract):
    """On servers of their own, which keep their data in an append-only file, or lose it."""

    capabilities = RedisEngine.capabilities
    hooks = frozenset({"restart", "wipe", "restart_wait"})
    only = frozenset({"restart", "wipe"})
    ttl = 0.4

    @pytest.fixture
    def world(self) -> Iterator[RedisWorld]:
        kept = ["--appendonly", "yes", "--appendfsync", "always"]
        with RedisServer(kept) as server, FaultProxy(server.port) as proxy:
            # Without it a server that lost its data would wait for leases of the default ttl.
            yield RedisWorld(server, proxy, "?restart_wait=1s")
