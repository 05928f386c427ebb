"""`redis+cluster://` finds its keys wherever the cluster has put them, and fails node by node."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import incumbent
from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import (
    Ask,
    Batch,
    Gone,
    Granted,
    Refused,
    Released,
    Renewed,
    RenewOutcome,
    Stored,
    Unproved,
)
from incumbent.stores.redis.incarnation import read_marker
from incumbent.stores.redis.records import slot_of
from tests import tiers
from tests.stores.redis.world import (
    ASK,
    Party,
    another,
    give_back,
    names,
    new_claim,
    party,
    renewal,
    renewed,
    renewed_async,
    slot,
    soon,
    take_everywhere,
    third,
)
from tests.support.forks import in_a_child
from tests.support.pace import BUSY, took
from tests.support.proxy import FaultProxy
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.servers import RedisServer, find_server
from tests.support.waiting import eventually

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


@pytest.fixture
def here(cluster: RedisCluster) -> Iterator[Party]:
    with party(cluster.url) as one:
        yield one


# -- many slots


def test_leases_of_all_nodes_are_renewed_in_one_call(here: Party) -> None:
    taken = take_everywhere(here, 20)
    assert here.store.renew(taken, soon()) == [Renewed()] * 60

    async def renew() -> list[RenewOutcome]:
        return await here.engine.async_store().renew(taken, soon())

    assert asyncio.run(renew()) == [Renewed()] * 60
    give_back(here, taken)
    assert here.store.renew(taken[::7], soon()) == [Gone()] * len(taken[::7])


def test_scripts_that_the_nodes_forgot_are_sent_again(here: Party, cluster: RedisCluster) -> None:
    taken = take_everywhere(here, 3)
    for node in cluster.nodes:
        node.cli("SCRIPT", "FLUSH")
    assert here.store.renew(taken, soon()) == [Renewed()] * 9
    give_back(here, taken)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_what_was_packed_for_a_batch_serves_until_its_keys_move(
    cluster: RedisCluster, how: str
) -> None:
    with party(cluster.url) as here, asyncio.Runner() as runner:
        batch = Batch(take_everywhere(here, 5))

        async def renew_async() -> list[RenewOutcome]:
            return await here.engine.async_store().renew(batch, soon())

        def check() -> object:
            outcomes = (
                here.store.renew(batch, soon()) if how == "sync" else runner.run(renew_async())
            )
            assert outcomes == [Renewed()] * 15
            return batch.prepared

        kept = check()
        assert check() is kept
        store: Any = here.store
        known = store.operations._cluster
        # Asked again, and told the same.
        known.must_ask, known.asked = True, known.asked - 1
        assert check() is kept
        assert not known.must_ask
        for node in cluster.nodes:
            node.cli("SCRIPT", "FLUSH")
        assert check() is kept
        moved = slot_of(f"incumbent:{{{batch[3].key}}}")
        target = another(cluster, cluster.node_of(moved))
        cluster.begin_to_move(moved, target)
        check()
        cluster.move_keys(moved, cluster.node_of(moved), target)
        check()
        cluster.end_move(moved, target)
        check()
        eventually(lambda: check() is not kept)
        kept = check()
        assert check() is kept
        give_back(here, batch)
        outcomes = here.store.renew(batch, soon())
        assert outcomes == [Gone()] * 15


# -- resharding


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_lease_is_held_while_its_slot_moves(cluster: RedisCluster, how: str) -> None:
    with party(cluster.url) as here, asyncio.Runner() as runner:

        def check(granted: Granted) -> None:
            outcome = (
                renewed(here, granted)
                if how == "sync"
                else runner.run(renewed_async(here, granted))
            )
            assert outcome == Renewed()

        granted = here.take()
        source = cluster.node_of(slot(here))
        target = another(cluster, source)
        cluster.begin_to_move(slot(here), target)
        check(granted)
        # The lease, what stands beside it, and whatever else lies in this slot.
        assert cluster.move_keys(slot(here), source, target) >= 2
        check(granted)
        # By one who knows nothing yet of where the key is.
        with party(cluster.url) as stranger:
            stranger.key = here.key
            assert stranger.refused().holders[0].token == granted.token
            pause = stranger.store.put(here.key, "note", b"x", None, soon())
            assert isinstance(pause, Stored)
            stranger.store.put(here.key, "note", None, None, soon())
        check(granted)
        cluster.end_move(slot(here), target)
        check(granted)
        assert cluster.node_of(slot(here)) is target
        assert here.store.read(here.key, soon()).holdings[0].token == granted.token
        assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
        assert here.take().token > granted.token


def test_a_new_name_in_a_slot_that_moves_is_unavailable_not_free(cluster: RedisCluster) -> None:
    with party(cluster.url) as here:
        source = cluster.node_of(slot(here))
        target = another(cluster, source)
        cluster.begin_to_move(slot(here), target)
        with pytest.raises(StoreUnavailable, match="TRYAGAIN") as caught:
            here.take()
        assert caught.value.retry_after is not None
        cluster.end_move(slot(here), target)
        here.take()


@pytest.mark.left(tiers.LONG)
def test_leases_are_held_while_redis_cli_reshards(cluster: RedisCluster) -> None:
    with party(cluster.url) as here:
        taken = take_everywhere(here, 5)
        moved = slot_of(f"incumbent:{{{taken[0].key}}}")
        cluster.wait_until_agreed()
        source = cluster.node_of(moved)
        target = another(cluster, source)
        command = [
            *(str(find_server("redis-cli")), "--cluster", "reshard", cluster.nodes[0].address),
            *("--cluster-from", source.id, "--cluster-to", target.id),
            *("--cluster-slots", str(1 + moved), "--cluster-yes", "--cluster-pipeline", "100"),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as cli:
            said: list[bytes] = []
            reading = threading.Thread(target=lambda: said.append(cli.stdout.read()))  # type: ignore[union-attr]
            reading.start()
            while cli.poll() is None:
                # What is between two nodes for a moment is not proved, and asked again.
                outcomes = here.store.renew(taken, soon())
                assert {type(each) for each in outcomes} <= {Renewed, Unproved}
                time.sleep(0.02)
            reading.join()
        assert cli.returncode == 0, said[0].decode()[-2000:]
        assert cluster.node_of(moved) is target
        assert here.store.renew(taken, soon()) == [Renewed()] * 15
        give_back(here, taken)


# Where it has no hostname to announce, it says "?".
@pytest.mark.parametrize("kind", ["unknown-endpoint", "hostname"])
def test_a_node_that_names_only_a_port_means_its_own_host(cluster: RedisCluster, kind: str) -> None:
    how = "cluster-preferred-endpoint-type"
    for node in cluster.nodes:
        node.cli("CONFIG", "SET", how, kind)
    try:
        with party(cluster.url) as here:
            granted = here.take()
            for _ in range(2):
                cluster.move(slot(here), another(cluster, cluster.node_of(slot(here))))
                assert renewed(here, granted) == Renewed()
                assert here.refused().holders[0].token == granted.token
    finally:
        for node in cluster.nodes:
            node.cli("CONFIG", "SET", how, "ip")


# -- nodes that are lost


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_frozen_node_costs_the_leases_of_the_others_nothing(
    cluster: RedisCluster, how: str
) -> None:
    with party(cluster.url) as here, asyncio.Runner() as runner:

        async def renew(within: float) -> list[RenewOutcome]:
            return await here.engine.async_store().renew(taken, soon(within))

        def ask(within: float = 2.0) -> list[RenewOutcome]:
            return (
                here.store.renew(taken, soon(within))
                if how == "sync"
                else runner.run(renew(within))
            )

        taken = Batch(take_everywhere(here, 4))
        assert ask() == [Renewed()] * 12
        lost = cluster.node_of(slot_of(f"incumbent:{{{taken[0].key}}}"))
        lost.freeze()
        try:
            began = clock.now()
            outcomes = ask()
            assert took(began) < 2.0 + BUSY
        finally:
            lost.thaw()
        unproved = [isinstance(each, Unproved) for each in outcomes]
        assert unproved == [
            cluster.node_of(slot_of(f"incumbent:{{{each.key}}}")) is lost for each in taken
        ]
        assert outcomes.count(Renewed()) == unproved.count(False) > 0
        assert ask() == [Renewed()] * 12
        give_back(here, taken)


def _is_at(cluster: RedisCluster, node: ClusterNode, slot: int) -> bool:
    return cluster.node_of(slot) is node


def _is_longer(client: Any, main: str) -> bool:
    return bool(client.pttl(main) > 5000)


@pytest.mark.left(tiers.LONG)
def test_a_frozen_node_delays_no_renewal_at_the_others(cluster: RedisCluster, here: Party) -> None:
    held, others = [], []
    for node in cluster.nodes:
        # Wherever the tests before this one have moved their slots.
        here.key = next(names(partial(_is_at, cluster, node)))
        held.append(renewal(here, here.take(new_claim()), here.key))
        others.append((cluster.client(node), here.main))
    frozen = cluster.nodes[0]
    others.pop(0)[0].close()
    here.store.renew(held, soon())
    for client, main in others:
        client.pexpire(main, 3000)
    frozen.freeze()
    try:
        with ThreadPoolExecutor(1) as pool:
            began = clock.now()
            renewing = pool.submit(here.store.renew, held, began + 6.0)
            for client, main in others:
                eventually(partial(_is_longer, client, main))
            # One after the other, each would wait for its share of the time behind the frozen one.
            assert took(began) < 2.0
            outcomes = renewing.result(20)
    finally:
        frozen.thaw()
    assert [type(it) for it in outcomes] == [Unproved, Renewed, Renewed]
    for client, _ in others:
        client.close()
    # On a busy machine it was away for longer than the others do without it.
    cluster.wait_until_well()
    give_back(here, held)


def test_a_node_that_dies_is_replaced_and_believed_after_one_ttl() -> None:
    with RedisCluster(replicas=1) as cluster, party(cluster.url) as here:
        keys = [next(names(third(at))) for at in range(2)]
        held = []
        for here.key in keys:
            granted = here.take(new_claim())
            held.append(renewal(here, granted))
        cluster.wait_until_copied()
        cluster.nodes[0].kill()
        said: set[str] = set()
        outcomes: list[RenewOutcome] = []
        until = time.monotonic() + 40
        # The other nodes do not hear in the same instant that the slots are served again.
        while outcomes != [Gone("store_restarted"), Renewed()] and time.monotonic() < until:
            try:
                outcomes = here.store.renew(held, soon(1.0))
            except StoreError as error:
                said.add("CLUSTERDOWN" if "CLUSTERDOWN" in str(error) else "away")
                continue
            said.add(type(outcomes[0]).__name__)
            time.sleep(0.02)
        assert outcomes == [Gone("store_restarted"), Renewed()]
        assert "Unproved" in said
        with party(cluster.url, "restart_wait=2s") as careful:
            careful.key = keys[0]
            with pytest.raises(StoreUnavailable, match="promoted") as caught:
                careful.take(ask=Ask(2.0, "h"))
            time.sleep((caught.value.retry_after or 0.0) + 0.01)
            # The replica had it, and its ttl is not over.
            assert careful.refused(ask=Ask(2.0, "h")).holders[0].token == held[0].token


def test_leases_of_a_promoted_node_are_held_when_the_slots_of_its_marker_move() -> None:
    with RedisCluster(replicas=3) as cluster, party(cluster.url) as here:
        promoted = cluster.replicas[0]
        cluster.promote(promoted)
        here.key = next(names(third(0)))
        granted = here.take()
        with cluster.client(promoted) as client:
            markers = list(client.scan_iter(match="incumbent:{*}:server:*", count=1000))
        assert len(markers) == 3
        for marker in (markers[0], markers[1]):
            moving = slot_of(marker.decode())
            source = cluster.begin_to_move(moving, cluster.nodes[1])
            cluster.move_keys(moving, source, cluster.nodes[1])
            cluster.end_move(moving, cluster.nodes[1])
            # By connections that know nothing of the node yet.
            here.store.close()
            assert renewed(here, granted) == Renewed()
            assert here.refused().holders[0].token == granted.token


def test_every_copy_of_a_nodes_marker_tells_of_the_longest_ttl() -> None:
    with RedisCluster() as cluster, party(cluster.url) as here:
        here.take(ask=Ask(40.0, "h"))
        node = cluster.node_of(slot(here))
        with cluster.client(node) as client:
            markers = client.scan_iter(match="incumbent:{*}:server:*", count=1000)
            told = [read_marker(client.get(key), "here", "key") for key in markers]
        assert [mark and mark.longest for mark in told] == [40_000] * 3


def test_a_cluster_without_all_its_slots_is_unavailable_not_free() -> None:
    with RedisCluster() as cluster, party(cluster.url) as here:
        here.key = next(names(third(1)))
        granted = here.take()
        cluster.nodes[1].cli("CLUSTER", "DELSLOTSRANGE", "16000", "16001")
        cluster.nodes[2].cli("CLUSTER", "DELSLOTSRANGE", "16000", "16001")
        time.sleep(0.3)
        with pytest.raises(StoreUnavailable, match="CLUSTERDOWN"):
            renewed_or_down(cluster, here, granted)
        here.key = next(names(lambda slot: slot == 16000))
        with pytest.raises(StoreUnavailable, match=r"no node has the slot|CLUSTERDOWN"):
            here.take()


def renewed_or_down(cluster: RedisCluster, here: Party, granted: Granted) -> None:
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        assert renewed(here, granted) == Renewed()
        time.sleep(0.02)


@pytest.mark.left(tiers.LONG)
def test_the_leases_of_a_node_that_died_are_lost_and_no_others() -> None:
    partial = ["--cluster-require-full-coverage", "no"]
    with RedisCluster(options=partial) as cluster, ExitStack() as stack:
        client = stack.enter_context(incumbent.Client(f"{cluster.url}?restart_wait=0"))
        keys = [next(names(third(at), "default")) for at in range(3)]
        leases = [client.lock(key.name, ttl=5).acquire() for key in keys]
        cluster.nodes[0].kill()
        eventually(lambda: leases[0].lost)
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert [lease.valid for lease in leases] == [False, True, True]
            time.sleep(0.02)
        for lease in leases[1:]:
            lease.release()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forks_child_has_connections_of_its_own(cluster: RedisCluster) -> None:
    with party(cluster.url) as one, asyncio.Runner() as runner:
        granted = one.take()
        assert runner.run(renewed_async(one, granted)) == Renewed()
        assert in_a_child(lambda: 0 if isinstance(one.refused(), Refused) else 2) == 0
        assert renewed(one, granted) == Renewed()
        assert runner.run(renewed_async(one, granted)) == Renewed()


# -- what is no cluster


def test_a_single_server_is_no_cluster_and_says_so_for_good(redis_server: RedisServer) -> None:
    with party(f"redis+cluster://127.0.0.1:{redis_server.port}") as one:
        with pytest.raises(StoreUnavailable, match="part of no cluster") as caught:
            one.take()
        assert caught.value.permanent


def test_a_node_of_a_cluster_asked_as_a_single_server_says_what_to_write(
    cluster: RedisCluster,
) -> None:
    with party(f"redis://{cluster.nodes[0].address}") as one:
        one.key = next(names(third(2)))
        with pytest.raises(StoreUnavailable, match=r"MOVED"):
            one.take()


def test_a_seed_that_swallows_everything_costs_no_time(cluster: RedisCluster) -> None:
    with FaultProxy(cluster.nodes[1].port) as hole:
        hole.blackhole()
        url = f"redis+cluster://127.0.0.1:{hole.port},{cluster.nodes[0].address}"
        with party(url) as one, party(url) as other:
            began = clock.now()
            one.take(within=30.0)
            asyncio.run(other.take_async(within=30.0))
            assert took(began) < 5.0


def test_a_seed_that_is_down_is_no_matter(cluster: RedisCluster) -> None:
    with party(f"redis+cluster://127.0.0.1:1,{cluster.nodes[2].address}") as one:
        one.take()
        asyncio.run(one.take_async())
        assert isinstance(one.store.take(one.key, one.claim, ASK, soon()), Granted)
