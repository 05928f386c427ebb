"""`redis+sentinel://` and `redis+cluster://` keep the contract, on real servers (see chosen)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from incumbent.model import Ask, Queue, Queued
from incumbent.stores.redis import open_store
from incumbent.stores.redis.engine import RedisEngine
from incumbent.stores.redis.layers.cluster import slot_of
from incumbent.testing.contract import World
from tests.contract.chosen import ChosenContract
from tests.faults.redis_world import Party, new_claim, party, soon
from tests.support.proxy import FaultProxy
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server


class SentinelWorld(World):
    """Sentinels that are patient, so that a network that is cut is no failover."""

    def __init__(self, sentinels: Sentinels, options: str = "") -> None:
        super().__init__(open_store(f"{sentinels.url}?restart_wait=0{options}"))
        self._proxy: FaultProxy = sentinels.master.proxy

    @contextmanager
    def lose_reply(self) -> Iterator[None]:
        # Not just any request: a new connection first says who it is and loads the scripts.
        self._proxy.close_after_request(b"EVALSHA", times=10)
        yield
        self._proxy.heal()

    @contextmanager
    def cut(self) -> Iterator[None]:
        self._proxy.refuse()
        yield
        self._proxy.heal()


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(down_after=60.0, replicas=1) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


class TestSentinel(ChosenContract):
    capabilities = RedisEngine.capabilities
    hooks = frozenset({"lose_reply", "cut"})
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


# -- what is switched off where it cannot be trusted


IN_LINE = Ask(10.0, "second", queue=Queue(5.0, spare=5.0))


def word_in_line(one: Party, server: RedisServer) -> str:
    """Whether one in line may be handed the lease by a release: "h", or "-" if it has to ask."""
    one.take()
    assert isinstance(one.store.take(one.key, new_claim(), IN_LINE, soon()), Queued)
    with redis.Redis(port=server.port) as client:
        said: Any = client.zrange(f"{one.main}:q", 0, 0)
    return str(said[0].split(b" ")[4].decode())


def test_a_release_in_a_cluster_hands_nothing_over_for_its_word_would_reach_all_nodes(
    cluster: RedisCluster,
) -> None:
    here, there = cluster.nodes[:2]
    with cluster.client(here) as ears, cluster.client(there) as mouth, ears.pubsub() as heard:
        heard.subscribe("to-one")
        assert heard.get_message(timeout=5)
        # The script would count nobody, take the lease back, and be believed all the same.
        assert mouth.eval("return redis.call('PUBLISH', 'to-one', 'have')", 0) == 0
        message = heard.get_message(timeout=5)
        assert message
        assert message["data"] == b"have"
    with party(cluster.url) as one:
        assert word_in_line(one, cluster.node_of(slot_of(one.main))) == "-"


def test_a_release_hands_nothing_over_where_replicas_have_to_confirm(sentinels: Sentinels) -> None:
    server = sentinels.master.server
    with party(sentinels.url) as one:
        assert word_in_line(one, server) == "h"
    with party(sentinels.url, "restart_wait=0&wait_replicas=1") as one:
        assert word_in_line(one, server) == "-"
