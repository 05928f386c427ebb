"""Several names of one lock on a cluster, behind sentinels, with replicas: in few requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from incumbent import AsyncClient, Client, StoreUnavailable
from incumbent.model import Granted, Key, Released, Renewal, Renewed
from incumbent.stores.base import Give, Take
from incumbent.stores.redis.aio import AsyncRedisWire
from incumbent.stores.redis.records import slot_of
from incumbent.stores.redis.sync import RedisWire
from tests.stores.redis.world import ASK, names, new_claim, party, soon, third
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

SPACE = "several"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


@contextmanager
def exchanges() -> Iterator[list[bytes]]:
    """What is asked of servers meanwhile, a round trip at a time."""
    asked: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (RedisWire, AsyncRedisWire):

            def counted(self: Any, payload: bytes, *more: Any, ask: Any = kind.ask_all) -> Any:
                asked.append(payload)
                return ask(self, payload, *more)

            patch.setattr(kind, "ask_all", counted)
        yield asked


def counts(url: str, wanted: list[str]) -> list[int]:
    """Round trips of a lock on those names: to take them, to give them back; then with asyncio.

    The fewest of some: the first time also connects, and a take also looks at the server if the
    machine left half a second since the last look.
    """
    found: list[tuple[int, int]] = []
    with Client(url, namespace=SPACE) as client:
        lock = client.multi_lock(wanted, timeout=5)
        for _ in range(4):
            with exchanges() as asked, lock as lease:
                takes = len(asked)
                lease.check()
            found.append((takes, len(asked) - takes))

    async def scenario() -> list[tuple[int, int]]:
        made: list[tuple[int, int]] = []
        async with AsyncClient(url, namespace=SPACE) as client:
            lock = client.multi_lock(wanted, timeout=5)
            for _ in range(4):
                with exchanges() as asked:
                    async with lock as lease:
                        takes = len(asked)
                        lease.check()
                    made.append((takes, len(asked) - takes))
        return made

    return [
        min(each) for side in (found, asyncio.run(scenario())) for each in zip(*side, strict=True)
    ]


def some(at: int, count: int) -> list[str]:
    """Names of the node at that place, each in a slot of its own."""
    found = names(third(at), SPACE)
    return [next(found).name for _ in range(count)]


def slot(name: str) -> int:
    return slot_of(f"incumbent:{{{SPACE}/{name}}}")


def test_each_node_of_a_cluster_is_asked_once_and_once_to_give_them_back(
    cluster: RedisCluster,
) -> None:
    url = f"{cluster.url}?restart_wait=0"
    one = some(0, 1)[0]
    same = next(key.name for key in names(lambda it: it == slot(one), SPACE) if key.name != one)
    assert counts(url, [one, same]) == [1, 1, 1, 1]
    assert counts(url, some(0, 3)) == [1, 1, 1, 1]
    assert counts(url, some(0, 2) + some(1, 1) + some(2, 2)) == [3, 3, 3, 3]


def test_all_that_the_nodes_granted_is_renewed(cluster: RedisCluster) -> None:
    with Client(f"{cluster.url}?restart_wait=0", namespace=SPACE) as client:
        with client.multi_lock(some(0, 2) + some(1, 2), timeout=5) as lease:
            assert lease.renew() > 10
        other = client.lock(some(1, 1)[0]).acquire()
        assert client.multi_lock(some(0, 2) + some(1, 2)).try_acquire() is None
        eventually(lambda: sum(len(it.holdings) for it in client.scan()) == 1)
        other.release()


@pytest.mark.parametrize("how", ["moved", "moving"])
def test_a_name_whose_slot_moved_is_found_where_it_is(cluster: RedisCluster, how: str) -> None:
    first, second = some(0, 2)
    with party(cluster.url) as here, asyncio.Runner() as runner:
        takes = [Take(Key(SPACE, name), new_claim(), ASK) for name in (first, second)]
        store: Any = here.store
        for granted in store.take_all(takes, soon()):
            assert isinstance(granted, Granted)
        source = cluster.begin_to_move(slot(second), cluster.nodes[2])
        cluster.move_keys(slot(second), source, cluster.nodes[2])
        if how == "moved":
            cluster.end_move(slot(second), cluster.nodes[2])

        async def take_async() -> Any:
            store: Any = here.engine.async_store()
            return await store.take_all(takes, soon())

        # Each says which node granted it: another one renews what moved to it.
        nodes = [cluster.nodes[0].address, cluster.nodes[2].address]
        renewals: list[Renewal] = []
        for outcomes in (store.take_all(takes, soon()), runner.run(take_async())):
            renewals = [
                Renewal(it.key, it.claim, granted.token, 10.0, granted.epoch)
                for it, granted in zip(takes, outcomes, strict=True)
            ]
            assert [it.epoch.partition(" ")[0] for it in renewals] == nodes
            if how == "moved":
                assert store.renew(renewals, soon()) == [Renewed()] * 2
        cluster.end_move(slot(second), cluster.nodes[2])
        gives = [Give(it.key, it.claim, it.token) for it in renewals]
        assert store.give_all(gives, soon()) == [Released()] * 2
        cluster.move(slot(second), cluster.nodes[0])


def test_behind_sentinels_all_are_asked_for_at_once_and_no_replica_means_none_of_them() -> None:
    with Sentinels(replicas=1) as running:
        url = f"{running.url}?restart_wait=0"
        assert counts(url, ["a", "b", "c"]) == [1, 1, 1, 1]
        url += "&wait_replicas=1:1s"
        # The replicas are asked once for all of them.
        assert counts(url, ["a", "b", "c"]) == [2, 1, 2, 1]
        replica = next(node for node in running.nodes if node is not running.master)
        with Client(url) as client:
            with client.multi_lock(["a", "b"]) as lease:
                lease.check()
            replica.server.freeze()
            try:
                with pytest.raises(StoreUnavailable, match="given back"):
                    client.multi_lock(["a", "b"]).acquire(0)
            finally:
                replica.server.thaw()
            assert not any(found.holdings for found in client.scan())
