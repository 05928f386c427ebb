"""`redis+sentinel://` and `redis+cluster://` keep the contract, on real servers (see chosen)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.stores.redis import open_store
from incumbent.stores.redis.engine import RedisEngine
from incumbent.testing.contract import NetworkWorld, World
from tests.contract.chosen import ChosenContract
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels

pytestmark = pytest.mark.server


class SentinelWorld(NetworkWorld):
    """Sentinels that are patient, so that a network that is cut is no failover."""

    def __init__(self, sentinels: Sentinels, options: str = "") -> None:
        url = f"{sentinels.url}?restart_wait=0{options}"
        # Not just any request: a new connection first says who it is and loads the scripts.
        super().__init__(open_store, url, [sentinels.master.proxy], b"EVALSHA")


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(replicas=1) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


class TestSentinel(ChosenContract):
    capabilities = RedisEngine.capabilities
    hooks = NetworkWorld.hooks - {"slow_names"}
    ttl = 0.4

    @pytest.fixture
    def world(self, sentinels: Sentinels) -> World:
        return SentinelWorld(sentinels)


class TestCluster(ChosenContract):
    capabilities = RedisEngine.capabilities
    ttl = 0.4

    @pytest.fixture
    def world(self, cluster: RedisCluster) -> World:
        return World(open_store(f"{cluster.url}?restart_wait=0"))
