"""Idle and busy connections notice that their server's data are others: see incarnation.py.

In each of these somebody still believes to hold a lease that the server has forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from incumbent import Client, clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Key, Renewal
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.redis.incarnation import CHECK_EVERY
from incumbent.stores.redis.records import slot_of
from incumbent.stores.redis.site import MARKER_KEY
from tests import tiers
from tests.quorum.walls import ShiftedServer
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.anonymous import AnonymousProxy
from tests.support.pace import lasted
from tests.support.redis_age import pretend_age
from tests.support.redis_cluster import RedisCluster
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

WAITED = "restart_wait=2s"
SHORT = Ask(2.0, "host-1")
REPLICA = ["--repl-diskless-sync-delay", "0"]


def settled(one: Party) -> Granted:
    """A grant, once the wait of a server that has just started is over."""
    for _ in range(2):
        try:
            return one.take()
        except StoreUnavailable as error:
            time.sleep((error.retry_after or 0.0) + 0.05)
    return one.take()


@contextmanager
def holder_and_asker(url: str) -> Iterator[tuple[Party, Party]]:
    """One that holds a lease, and another process's with a connection that has been used."""
    with party(url, WAITED) as holder, party(url, WAITED) as asker:
        settled(holder)
        asker.key = Key("faults", "warm-up")
        asker.take()
        asker.key = holder.key
        yield holder, asker


def replicate(server: RedisServer, other: RedisServer) -> None:
    server.cli("REPLICAOF", "127.0.0.1", str(other.port))
    eventually(lambda: "master_link_status:up" in server.cli("INFO", "replication"))


def assert_refused(asker: Party) -> None:
    with pytest.raises(StoreError, match="restart_wait") as caught:
        asker.store.take(asker.key, new_claim(), SHORT, soon())
    assert 0 < (caught.value.retry_after or 0.0) <= 2.1


# -- a master that was a replica in between


def test_an_idle_connection_notices_that_its_master_was_a_replica() -> None:
    with (
        RedisServer() as master,
        RedisServer(REPLICA) as other,
        holder_and_asker(master.url) as (_, asker),
    ):
        # Nobody uses the other while it is the master, and it lacks the newest lease.
        replicate(master, other)
        master.cli("REPLICAOF", "NO", "ONE")
        # For so long a connection trusts its last look.
        time.sleep(CHECK_EVERY)
        assert_refused(asker)


def test_an_idle_connection_on_asyncio_notices_that_its_master_was_a_replica() -> None:
    async def main(master: RedisServer, other: RedisServer) -> None:
        with party(master.url, WAITED) as asker:
            with pytest.raises(StoreUnavailable) as caught:
                await asker.take_async()
            await asyncio.sleep((caught.value.retry_after or 0.0) + 0.05)
            await asker.take_async()
            await asyncio.to_thread(replicate, master, other)
            await asyncio.to_thread(master.cli, "REPLICAOF", "NO", "ONE")
            await asyncio.sleep(CHECK_EVERY)
            with pytest.raises(StoreError, match="restart_wait"):
                await asker.take_async(new_claim())

    with RedisServer() as master, RedisServer(REPLICA) as other:
        asyncio.run(main(master, other))


def test_an_idle_connection_notices_a_switchover_that_left_the_marker_as_it_was() -> None:
    with (
        RedisServer(REPLICA) as master,
        RedisServer(REPLICA) as other,
        holder_and_asker(master.url) as (_, asker),
    ):
        replicate(other, master)
        other.cli("REPLICAOF", "NO", "ONE")
        replicate(master, other)
        master.cli("REPLICAOF", "NO", "ONE")
        time.sleep(CHECK_EVERY)
        assert_refused(asker)


def test_an_idle_connection_notices_a_switchover_there_and_back_with_a_client_in_between() -> None:
    with RedisServer(REPLICA) as master, RedisServer(REPLICA) as other:
        replicate(other, master)
        with holder_and_asker(master.url) as (holder, asker):
            other.cli("REPLICAOF", "NO", "ONE")
            replicate(master, other)
            with party(other.url) as between:
                between.take()
            eventually(lambda: master.cli("EXISTS", between.main) == "1")
            master.cli("REPLICAOF", "NO", "ONE")
            # For so long a connection trusts its last look.
            time.sleep(CHECK_EVERY)
            assert_refused(asker)
            # What was granted before is not renewed either, by a new connection.
            holder.store.close()
            granted = Granted(holder.claim, 1, 10.0, "an epoch of before")
            renewal = Renewal(holder.key, granted.claim, 1, 10.0, granted.epoch)
            assert holder.store.renew([renewal], soon()) == [Gone("store_restarted")]


# -- a wipe


def test_flushall_is_lost_data_for_new_idle_and_busy_connections() -> None:
    with (
        RedisServer() as server,
        holder_and_asker(server.url) as (_, idle),
        party(server.url, WAITED) as busy,
        party(server.url, WAITED) as new,
    ):
        busy.key = new.key = idle.key
        # It has looked a moment ago, and trusts its connection.
        busy.refused()
        server.cli("FLUSHALL")
        assert_refused(busy)
        assert_refused(idle)
        assert_refused(new)


def test_flushall_is_lost_data_for_a_key_that_other_clients_share() -> None:
    options = f"{WAITED}&key=lock:{{name}}"
    with RedisServer() as server, party(server.url, options) as one:
        settled(one)
        one.refused()
        server.cli("FLUSHALL")
        assert_refused(one)


def test_of_two_busy_connections_none_trusts_what_the_other_left_after_a_wipe() -> None:
    with (
        RedisServer() as server,
        holder_and_asker(server.url) as (_, first),
        party(server.url, WAITED) as second,
    ):
        second.key = first.key
        for _ in range(20):
            first.refused()
            second.refused()
        server.cli("FLUSHALL")
        for each in (first, second, first, second):
            assert_refused(each)


def test_who_waits_while_the_data_are_lost_is_granted_once_the_wait_is_over() -> None:
    with RedisServer() as server:
        pretend_age(server.url, server)
        with (
            Client(f"{server.url}?restart_wait=1s", ttl=1) as holder,
            Client(f"{server.url}?restart_wait=1s", ttl=1) as waiter,
            ThreadPoolExecutor(1) as pool,
        ):
            lease = holder.lock("lost").acquire()
            waiting = pool.submit(waiter.lock("lost", timeout=20).acquire)
            eventually(lambda: server.cli("ZCARD", "incumbent:{default/lost}:q") == "1")
            began = clock.now()
            server.cli("FLUSHALL")
            waiting.result().release()
            assert lasted(began, 1.0, 4.0)
            assert not lease.valid


def test_a_grant_that_is_given_back_may_be_asked_for_again() -> None:
    with RedisServer() as server, holder_and_asker(server.url) as (_, asker):
        asker.refused()
        server.cli("FLUSHALL")
        with pytest.raises(StoreError, match="restart_wait"):
            asker.take()
        with pytest.raises(StoreError, match="restart_wait") as caught:
            asker.take()
        time.sleep((caught.value.retry_after or 0.0) + 0.01)
        assert asker.take()


def test_the_first_use_of_a_name_is_no_wipe() -> None:
    with RedisServer() as server, party(server.url, WAITED) as one:
        settled(one)
        for number in range(3):
            one.key = Key("faults", f"first-{number}")
            one.take(new_claim())


def test_flushall_on_a_node_of_a_cluster_is_lost_data() -> None:
    with RedisCluster() as cluster, party(cluster.url, WAITED) as holder:
        settled(holder)
        node = cluster.node_of(slot_of(holder.main))
        with party(cluster.url, WAITED) as asker:
            asker.key = holder.key
            asker.refused()
            node.cli("FLUSHALL")
            assert_refused(asker)


# -- for how long


@pytest.mark.parametrize("kept", [False, True])
def test_a_restart_waits_for_the_longest_ttl_that_anybody_asked_for(kept: bool) -> None:
    options = ["--appendonly", "yes", "--appendfsync", "always"] if kept else []
    with RedisServer(options) as server:
        with party(server.url) as holder:
            holder.take(ask=Ask(40.0, "host-1"))
        server.restart(empty=not kept)
        with party(server.url, "") as asker:
            with pytest.raises(StoreUnavailable, match="restart_wait=0") as caught:
                asker.take(ask=SHORT)
            # What no data tell of any more cannot be learnt: but others have the default.
            wait = 40.0 if kept else TTL_DEFAULT
            assert wait - 10 < (caught.value.retry_after or 0.0) <= wait


def test_who_asks_for_a_longer_ttl_waits_for_longer() -> None:
    with RedisServer() as server, party(server.url, "") as asker:
        pretend_age(server.url, server)
        asker.key = Key("faults", "another")
        asker.take(ask=SHORT)
        with pytest.raises(StoreUnavailable, match="restart_wait=0") as caught:
            asker.take(new_claim(), ask=Ask(90.0, "host-1"))
        assert 0 < (caught.value.retry_after or 0.0) <= 31


@pytest.mark.parametrize(
    ("options", "ttl", "warned"),
    [
        ("", 15.0, ""),
        ("", 40.0, "40s"),
        ("restart_wait=1m", 40.0, ""),
        ("restart_wait=0", 5.0, "5s"),
    ],
)
def test_the_doctor_warns_where_a_wipe_would_be_forgotten_too_soon(
    options: str, ttl: float, warned: str
) -> None:
    with RedisServer() as server, party(server.url, options) as one:
        found = [
            todo for _, what, todo in one.engine.diagnose(ttl, soon()) if "after a wipe" in what
        ]
        assert found == ([f"name restart_wait={warned}"] if warned else [])


# -- a server that does not say which run it is


@pytest.mark.left(tiers.LONG)
def test_a_restart_is_noticed_without_a_run_id() -> None:
    kept = ["--appendonly", "yes", "--appendfsync", "always"]
    with (
        RedisServer(kept) as server,
        AnonymousProxy(server.port) as proxy,
        party(f"redis://127.0.0.1:{proxy.port}", WAITED) as one,
    ):
        granted = settled(one)
        assert "run_id" not in proxy.last_info
        time.sleep(3.0)
        server.restart(empty=False)
        renewal = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)
        assert one.store.renew([renewal], soon()) == [Gone("store_restarted")]
        one.key = Key("faults", "another")
        assert_refused(one)


def test_a_server_without_a_run_id_keeps_its_incarnation_over_new_connections() -> None:
    with (
        RedisServer() as server,
        AnonymousProxy(server.port) as proxy,
        party(f"redis://127.0.0.1:{proxy.port}") as one,
    ):
        granted = one.take()
        for _ in range(3):
            time.sleep(0.4)
            one.store.close()
            assert one.take().epoch == granted.epoch


# -- clocks


def test_a_clock_that_is_set_after_the_start_makes_no_young_server_old() -> None:
    with ShiftedServer(seconds=-3600.0) as server, party(server.url, "restart_wait=20s") as first:
        with pytest.raises(StoreUnavailable, match="restart_wait"):
            first.take()
        # Right from now on: by its clock it has been up for an hour.
        server.set_wall(0.0)
        with party(server.url, "restart_wait=20s") as second:
            for one in (first, second):
                one.store.close()
                with pytest.raises(StoreUnavailable, match="restart_wait") as caught:
                    one.take()
                assert (caught.value.retry_after or 0.0) > 2.0


# -- tokens of a promoted replica


@pytest.mark.parametrize("replicated", [False, True], ids=["new-name", "known-name"])
def test_a_promoted_replica_with_a_slow_clock_gives_larger_tokens(replicated: bool) -> None:
    # The master began an hour ago by its clock: its tokens are those of the clock by now.
    with (
        ShiftedServer(tuple(REPLICA), seconds=-3600.0) as master,
        ShiftedServer(seconds=-20.0) as replica,
    ):
        with party(master.url) as before:
            before.take()
        master.set_wall(0.0)
        replicate(replica, master)
        with party(master.url) as one, party(replica.url) as after:
            after.key = one.key
            if replicated:
                first = one.take()
                one.store.give(one.key, one.claim, first.token, soon())
                eventually(lambda: replica.cli("EXISTS", one.companion) == "1")
            # The newest grant is not replicated.
            replica.cli("REPLICAOF", "NO", "ONE")
            newest = one.take(new_claim())
            assert replica.cli("EXISTS", one.main) == "0"
            token = after.take(new_claim()).token
            assert token > newest.token


def floor_of(server: RedisServer) -> int:
    return int(server.cli("GET", MARKER_KEY).strip('"').rpartition(" ")[2])


def test_a_claim_that_was_granted_before_a_promotion_gets_a_token_of_after_it() -> None:
    with (
        RedisServer(REPLICA) as master,
        RedisServer(REPLICA) as replica,
        party(master.url) as one,
        party(replica.url) as after,
    ):
        # Whose answer was lost, so that the claim asks again.
        first = one.take()
        replicate(replica, master)
        replica.cli("REPLICAOF", "NO", "ONE")
        after.key = one.key
        again = after.take(one.claim)
        assert again.token >= floor_of(replica) > first.token
        # From now on a repeat is a repeat.
        assert after.take(one.claim).token == again.token
        assert after.refused().holders[0].token == again.token


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_take_by_a_connection_that_missed_a_promotion_has_a_token_of_after_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it had looked a moment ago.
    monkeypatch.setattr("incumbent.stores.redis.take.CHECK_EVERY", 60)
    with (
        RedisServer(REPLICA) as master,
        RedisServer(REPLICA) as other,
        party(master.url) as one,
        asyncio.Runner() as runner,
    ):

        def take() -> Granted:
            claim = new_claim()
            return one.take(claim) if how == "sync" else runner.run(one.take_async(claim))

        take()
        one.key = Key("faults", "missed-a-promotion")
        replicate(master, other)
        master.cli("REPLICAOF", "NO", "ONE")
        assert take().token >= floor_of(master)


def test_tokens_grow_where_a_promoted_replica_loses_its_data() -> None:
    with RedisServer(REPLICA) as master, RedisServer(REPLICA) as replica:
        pretend_age(master.url, master)
        replicate(replica, master)
        replica.cli("REPLICAOF", "NO", "ONE")
        tokens = []
        for _ in range(2):
            with party(replica.url) as one:
                tokens.append(one.take().token)
            replica.restart(empty=True)
        assert tokens == sorted(tokens)


def test_tokens_grow_over_two_promotions_in_a_row() -> None:
    with (
        RedisServer(REPLICA) as first,
        ShiftedServer(tuple(REPLICA), seconds=20.0) as second,
        ShiftedServer(tuple(REPLICA), seconds=-20.0) as third,
    ):
        replicate(second, first)
        tokens = []
        for server, replica in ((first, second), (second, third), (third, None)):
            with party(server.url) as one:
                one.key = Key("faults", "promoted-twice")
                tokens.append(one.take(new_claim()).token)
                # As if it had not been replicated.
                server.cli("DEL", one.main, one.companion)
                if replica is not None:
                    replicate(replica, server)
                    replica.cli("REPLICAOF", "NO", "ONE")
        assert tokens == sorted(tokens)
