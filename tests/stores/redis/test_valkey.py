"""Valkey does as Redis does where leases depend on it: failover, moved slots, rights, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Gone, Granted, Released, Renewal, Renewed
from incumbent.stores.redis import sentinel
from incumbent.stores.redis.records import slot_of
from tests import tiers
from tests.stores.redis.test_server import LOCKER
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.needs import needs
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer
from tests.support.valkey import HAVE, WHY

pytestmark = [pytest.mark.server, needs(HAVE, WHY)]

VALKEY = "valkey-server"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(program=VALKEY) as running:
        yield running


def renewal(one: Party, granted: Granted) -> Renewal:
    return Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)


def url_of(server: RedisServer) -> str:
    return f"valkey://127.0.0.1:{server.port}"


def test_the_doctor_knows_valkey(server: RedisServer) -> None:
    with party(url_of(server)) as one:
        found = one.engine.diagnose(15.0, soon())
    assert "Valkey 8" in str(found)
    assert not [finding for finding in found if finding[0] == "error"]


def test_a_restart_ends_what_was_believed(server: RedisServer) -> None:
    with party(url_of(server)) as one, party(url_of(server), "") as careful:
        granted = one.take()
        assert asyncio.run(one.take_async()) == granted
        server.cli("SCRIPT", "FLUSH")
        assert one.store.renew([renewal(one, granted)], soon()) == [Renewed()]
        server.restart()
        assert one.store.renew([renewal(one, granted)], soon()) == [Gone("store_restarted")]
        with pytest.raises(StoreUnavailable, match="restart_wait"):
            careful.take()


def test_a_user_with_the_least_rights_can_do_everything(server: RedisServer) -> None:
    server.cli("ACL", "SETUSER", "locker", *LOCKER.split())
    with party(f"valkey://locker:secret@127.0.0.1:{server.port}") as one:
        granted = one.take()
        assert one.store.renew([renewal(one, granted)], soon()) == [Renewed()]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()


@pytest.mark.left(tiers.STORES)
def test_after_a_failover_only_the_new_master_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "OLD_MASTER_FOR", 0.3)
    with (
        Sentinels(program=VALKEY, replicas=1) as sentinels,
        party(sentinels.url.replace("redis", "valkey")) as one,
    ):
        granted = one.take()
        before = sentinels.master
        before.server.freeze()
        sentinels.wait_for_failover(before)
        before.server.thaw()
        assert one.store.renew([renewal(one, granted)], soon()) == [Gone("store_restarted")]
        with (
            party(sentinels.url, "") as careful,
            pytest.raises(StoreUnavailable, match="promoted"),
        ):
            careful.take(new_claim())


def test_a_lease_is_held_while_its_slot_moves() -> None:
    with RedisCluster(program=VALKEY) as cluster, party(cluster.url) as one:
        granted = one.take()
        slot = slot_of(one.main)
        source = cluster.node_of(slot)
        target = next(node for node in cluster.nodes if node is not source)
        cluster.begin_to_move(slot, target)
        assert cluster.move_keys(slot, source, target) == 2
        assert one.store.renew([renewal(one, granted)], soon()) == [Renewed()]
        cluster.end_move(slot, target)
        assert one.store.renew([renewal(one, granted)], soon()) == [Renewed()]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
