"""A replica that was promoted behind an address that stays (a failover of a hosted service)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Gone, Granted, Renewal, Renewed
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

SHORT, LONG = 0.6, 60.0
"""Seconds of `restart_wait`: over soon, and never over before somebody looks."""


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A master, and a replica that has been up for some time."""
    diskless = ["--repl-diskless-sync-delay", "0"]
    with RedisServer(diskless) as master, RedisServer() as replica:
        replica.cli("REPLICAOF", "127.0.0.1", str(master.port))
        eventually(lambda: "master_link_status:up" in replica.cli("INFO", "replication"))
        yield master, replica


def uptime(server: RedisServer) -> int:
    said = server.cli("INFO", "server")
    return int(said.partition("uptime_in_seconds:")[2].split()[0])


def renewal(one: Party, granted: Granted) -> Renewal:
    return Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)


def test_a_promoted_replica_grants_nothing_for_one_ttl_from_the_first_look(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = pair
    with FaultProxy(master.port) as address, party(address.url) as holder:
        granted = holder.take()
        # Whole seconds, of which one may not count.
        eventually(lambda: uptime(replica) >= 3)
        master.kill()
        replica.cli("REPLICAOF", "NO", "ONE")
        address.target = ("127.0.0.1", replica.port)
        address.cut()
        eventually(
            lambda: (
                holder.store.renew([renewal(holder, granted)], soon())[0] == Gone("store_restarted")
            )
        )
        other = holder.key._replace(name="other")
        wait = f"restart_wait={LONG}"
        with party(address.url, wait) as first, party(address.url, wait) as second:
            first.key = second.key = other
            # Its process is old enough, and it may lack what its master granted last.
            with pytest.raises(StoreUnavailable, match="promoted") as caught:
                first.take()
            left = caught.value.retry_after or 0.0
            assert 0 < left <= LONG
            time.sleep(0.2)
            with pytest.raises(StoreUnavailable, match="promoted") as caught:
                asyncio.run(second.take_async())
            # All count from the same look.
            assert (caught.value.retry_after or 0.0) <= left - 0.15
        wait = f"restart_wait={SHORT}"
        with party(address.url, wait) as first, party(address.url, wait) as second:
            first.key = second.key = other
            time.sleep(SHORT + 0.01)
            fresh = first.take()
            assert first.store.renew([renewal(first, fresh)], soon()) == [Renewed()]
            assert second.take(first.claim).token == fresh.token


def test_one_that_is_demoted_and_promoted_again_is_another_incarnation(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    master, other = pair
    with party(master.url) as one:
        granted = one.take()
        master.cli("REPLICAOF", "127.0.0.1", str(other.port))
        with pytest.raises(StoreUnavailable, match=r"READONLY|replica"):
            one.take(new_claim())
        master.cli("REPLICAOF", "NO", "ONE")
        assert one.store.renew([renewal(one, granted)], soon()) == [Gone("store_restarted")]
        with (
            party(master.url, "") as careful,
            pytest.raises(StoreUnavailable, match="promoted"),
        ):
            careful.take(new_claim())


# -- refusals that the other files do not make


def test_a_server_without_a_free_connection_is_unavailable(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        own_redis.cli("CONFIG", "SET", "maxclients", "1")
        with party(own_redis.url) as late:
            one.take()
            with pytest.raises(StoreUnavailable, match="max number of clients") as caught:
                late.take()
            with pytest.raises(StoreUnavailable, match="max number of clients"):
                asyncio.run(late.take_async())
        assert not caught.value.permanent


def test_a_server_that_cannot_write_its_snapshot_grants_nothing() -> None:
    with RedisServer(["--save", "1 1"]) as server, party(server.url) as one:
        one.take()
        # A folder of that name cannot be replaced by the snapshot's file.
        (server.folder / "dump.rdb").mkdir()
        server.cli("BGSAVE")
        eventually(lambda: "rdb_last_bgsave_status:err" in server.cli("INFO", "persistence"))
        with pytest.raises(StoreUnavailable, match="MISCONF"):
            one.take(new_claim())
