"""64 shards over 8 processes whose servers are killed, frozen, replaced, emptied and cut off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.crc import key_slot

from incumbent import Group, clock
from incumbent.errors import StoreError
from tests import tiers
from tests.history.checker import check
from tests.history.events import History
from tests.shards.fleet import TTL, Fleet
from tests.stores.mysql import world as mysqls
from tests.stores.postgresql.world import make_template, new_database
from tests.stores.quorum.world import DURABLE, Members
from tests.support.etcd_cluster import EtcdCluster
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.LONG)]

WAIT = f"?restart_wait={TTL + 1}s"
"""Longer than any lease of these fleets, as a user's has to be."""
OUTAGE = 2.0
BACK = 60.0
"""Seconds in which all shards have to be at work again after a fault, on a busy machine too."""

Faults = tuple[str, list[Callable[[], None]]]


def one_redis(ends: ExitStack) -> Faults:
    server = ends.enter_context(RedisServer(DURABLE))

    def killed() -> None:
        server.kill()
        time.sleep(OUTAGE)
        server.start()

    def frozen() -> None:
        server.freeze()
        time.sleep(OUTAGE)
        server.thaw()

    def emptied() -> None:
        server.cli("FLUSHALL")

    return server.url + WAIT, [killed, frozen, emptied]


def sentinel(ends: ExitStack) -> Faults:
    sentinels = ends.enter_context(Sentinels())

    def killed() -> None:
        before = sentinels.master
        before.server.kill()
        sentinels.wait_for_failover(before)
        before.server.start()

    def cut_off() -> None:
        before = sentinels.master
        before.proxy.blackhole()
        sentinels.wait_for_failover(before)
        before.proxy.heal()

    return sentinels.url + WAIT, [killed, cut_off]


def cluster(ends: ExitStack) -> Faults:
    nodes = ends.enter_context(RedisCluster(replicas=3))

    def killed() -> None:
        nodes.nodes[0].kill()
        eventually(lambda: "role:master" in nodes.replicas[0].cli("INFO", "replication"))
        nodes.wait_until_well()
        nodes.nodes[0].start()

    def roster_moved() -> None:
        nodes.wait_until_agreed()
        slot = key_slot(b"{default/orders}")
        other = next(one for one in nodes.nodes[1:] if one is not nodes.node_of(slot))
        nodes.move(slot, other)

    return nodes.url + WAIT, [killed, roster_moved]


def quorum(ends: ExitStack) -> Faults:
    members = Members()
    for one in members.all:
        ends.callback(one.close)

    def killed(count: int) -> None:
        for one in members.all[:count]:
            one.begin("killed")
        time.sleep(OUTAGE)
        for one in members.all[:count]:
            one.end()

    def cut_off() -> None:
        members.all[2].begin("cut off")
        time.sleep(OUTAGE)
        members.all[2].end()

    def wiped() -> None:
        members.all[1].begin("wiped")

    return members.url(WAIT[1:]), [lambda: killed(1), lambda: killed(2), wiped, cut_off]


def etcd(ends: ExitStack) -> Faults:
    members = ends.enter_context(EtcdCluster())

    def killed() -> None:
        leader = members.leader
        leader.kill()
        time.sleep(OUTAGE)
        leader.start()

    def frozen() -> None:
        leader = members.leader
        leader.freeze()
        time.sleep(2 * OUTAGE)
        leader.thaw()

    return members.store_url(), [killed, frozen]


def postgresql(ends: ExitStack) -> Faults:
    server = ends.enter_context(PostgresServer())
    make_template(server)

    def killed() -> None:
        server.kill()
        server.start()

    return server.url_of(new_database(server)) + WAIT, [killed]


def mysql(ends: ExitStack) -> Faults:
    server = ends.enter_context(MariaServer())

    def killed() -> None:
        server.kill()
        server.start()

    def frozen() -> None:
        server.freeze()
        time.sleep(2 * OUTAGE)
        server.thaw()

    return server.url_of(mysqls.new_database(server)) + WAIT, [killed, frozen]


@pytest.fixture(params=[one_redis, sentinel, cluster, quorum, etcd, postgresql, mysql])
def faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    with ExitStack() as ends:
        yield request.param(ends)


def members(url: str) -> int | None:
    """How many there are; None: the store did not answer in time."""
    try:
        return len(Group("orders", store=url).members())
    except StoreError:
        return None


def test_64_shards_have_one_member_each_whatever_happens_to_their_servers(
    faults: Faults, tmp_path: Path
) -> None:
    url, begin = faults
    fleet = Fleet(url, tmp_path)
    try:
        for _ in range(8):
            fleet.start()
        eventually(lambda: members(url) == 8, BACK)
        for fault in (lambda: None, *begin):
            fault()
            over = clock.now()
            eventually(lambda over=over: fleet.all_beat_since(over), BACK)  # type: ignore[misc]  # a default for the loop's variable
        assert [process.poll() for process in fleet.running] == [None] * 8
        eventually(lambda: members(url) == 8, BACK)
        fleet.close()
    finally:
        fleet.kill_all()
    assert check(History(list(fleet.witnesses()))) == []
    eventually(lambda: members(url) == 0)
