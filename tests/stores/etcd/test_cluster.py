"""Three members: losing a minority costs moments, losing the majority stops everybody in time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from incumbent import AsyncClient, Client, Lease, LockError, clock
from incumbent.errors import StoreError
from incumbent.model import Ask, Granted, Key
from tests import tiers
from tests.cli.tool import start
from tests.e2e.fleet import TIMES, TTL, WORKER, Fleet, died_within
from tests.stores.etcd.world import Party, new_claim, party, soon, watchers
from tests.support.etcd import EtcdServer
from tests.support.etcd_cluster import EtcdCluster, url_of
from tests.support.needs import needs
from tests.support.network import CAN_PART
from tests.support.pace import took
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

PARTABLE = needs(CAN_PART, "network namespaces need root and ip")
# At default settings: what a client may need to act again when its endpoint went.
AGAIN_WITHIN = 2.5
# As above, and the members elect a leader first: 1 to 2 s of theirs.
ELECTED_WITHIN = 6.0


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster() as three:
        yield three


@pytest.fixture
def apart() -> Iterator[EtcdCluster]:
    with EtcdCluster(apart=True) as three:
        yield three


def acts(client: Client, name: str, seconds: float) -> None:
    """Takes and gives back another lease within `seconds`, as a caller would."""
    began = clock.now()
    client.lock(name, timeout=seconds).acquire().release()
    assert took(began) <= seconds


FAULTS: dict[str, Callable[[EtcdServer], None]] = {
    "frozen": EtcdServer.freeze,
    "killed": EtcdServer.kill,
}


@pytest.mark.left(tiers.CRASHES, "frozen")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_acts_again_soon_after_its_endpoint_went(cluster: EtcdCluster, fault: str) -> None:
    mine = cluster.followers[0]
    with Client(cluster.store_url(mine)) as client:
        etcd_lease = client.lock("held").acquire()
        acts(client, "before", AGAIN_WITHIN)
        since = clock.now()
        FAULTS[fault](mine)
        acts(client, "after", AGAIN_WITHIN)
        while not renewed(etcd_lease.renew):
            assert took(since) < AGAIN_WITHIN
        assert etcd_lease.remaining > 15 - 5
        assert etcd_lease.valid
        etcd_lease.release()


def believes_no_longer_than(etcd_lease: Lease, since: float, seconds: float) -> None:
    while True:
        # Read before the look: what is found valid was valid then, however late the look.
        after = took(since)
        if not etcd_lease.valid:
            return
        assert after < seconds
        time.sleep(0.005)


def renewed(renew: Callable[[], float]) -> bool:
    try:
        return renew() > 0
    except LockError:
        return False


@pytest.mark.left(tiers.CRASHES, "killed")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_coroutine_acts_again_soon_after_its_endpoint_went(
    cluster: EtcdCluster, fault: str
) -> None:
    mine = cluster.followers[0]

    async def main() -> float:
        async with AsyncClient(cluster.store_url(mine)) as client:
            async with client.lock("before"):
                pass
            FAULTS[fault](mine)
            began = clock.now()
            async with client.lock("after", timeout=AGAIN_WITHIN):
                return took(began)

    assert asyncio.run(main()) <= AGAIN_WITHIN


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize(("fault", "seconds"), [("killed", AGAIN_WITHIN), ("frozen", 4.5)])
def test_a_waiter_whose_member_went_hears_of_the_release_elsewhere(
    cluster: EtcdCluster, fault: str, seconds: float
) -> None:
    # A frozen member keeps a watch open and says nothing: a waiter asks again after one ttl.
    mine, theirs = cluster.followers
    with Client(url_of([theirs])) as holder, Client(cluster.store_url(mine)) as waiter:
        etcd_lease = holder.lock("job", ttl=4).acquire()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(waiter.lock("job", ttl=4, timeout=15).acquire)
            eventually(lambda: watchers(mine) >= 1)
            FAULTS[fault](mine)
            etcd_lease.release()
            began = clock.now()
            waiting.result(20).release()
            assert took(began) < seconds


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_leader_costs_an_election_and_no_lease(cluster: EtcdCluster, fault: str) -> None:
    leader = cluster.leader
    with Client(cluster.store_url(leader)) as client:
        etcd_lease = client.lock("held").acquire()
        FAULTS[fault](leader)
        acts(client, "after", ELECTED_WITHIN)
        eventually(lambda: renewed(etcd_lease.renew))
        assert etcd_lease.release()


@pytest.mark.left(tiers.CRASHES, "parted*")
@PARTABLE
@pytest.mark.parametrize("how", ["parted from the others", "unplugged"])
def test_a_client_of_a_leader_that_is_cut_off_goes_to_the_others(
    apart: EtcdCluster, how: str
) -> None:
    leader = apart.leader
    with Client(apart.store_url(leader)) as client:
        etcd_lease = client.lock("held").acquire()
        (apart.part if how != "unplugged" else apart.unplug)(leader)
        acts(client, "after", ELECTED_WITHIN)
        eventually(lambda: renewed(etcd_lease.renew))
        assert etcd_lease.release()


@PARTABLE
def test_a_minority_that_is_reached_alone_grants_and_proves_nothing(apart: EtcdCluster) -> None:
    leader = apart.leader
    with Client(url_of([leader])) as client:
        etcd_lease = client.lock("held", ttl=4).acquire()
        apart.part(leader)
        since = clock.now()
        believes_no_longer_than(etcd_lease, since, 4)
        with pytest.raises(LockError):
            client.lock("more", timeout=1).acquire()
        # The majority grants it once the store's ttl is over, never before the holder stopped.
        stopped = time.monotonic()
        others = [member for member in apart.members if member is not leader]
        with Client(url_of(others)) as there:
            there.lock("held", timeout=20).acquire().release()
        assert time.monotonic() > stopped


# -- without a quorum


@pytest.mark.left(tiers.CRASHES, "frozen")
@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_quorum_a_holder_stops_believing_inside_its_lease(
    cluster: EtcdCluster, fault: str
) -> None:
    pair = (cluster.leader, cluster.followers[0])
    with Client(cluster.store_url()) as client:
        etcd_lease = client.lock("held", ttl=3).acquire()
        for member in pair:
            FAULTS[fault](member)
        # Until now a renewal may have been proved.
        since = clock.now()
        believes_no_longer_than(etcd_lease, since, 3)
        with pytest.raises(LockError):
            client.lock("more", timeout=1).acquire()


@pytest.mark.left(tiers.LONG)
def test_without_a_quorum_a_supervised_command_is_dead_inside_the_lease(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    # For these members a lease lives whole seconds: the command must be dead by its own clock.
    fleet = Fleet(cluster.store_url(), tmp_path)
    pair = (cluster.leader, cluster.followers[0])
    only = fleet.begin("--wait=5", worker=("--stubborn",))
    try:
        for member in pair:
            member.kill()
        # Until now a renewal may have been proved.
        since = clock.now()
        died_within(fleet, since, TTL)
        assert only.wait(60) == 123
    finally:
        fleet.close()


@pytest.mark.left(tiers.LONG)
def test_a_leader_that_lead_supervises_stops_and_one_leads_again(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    fleet = Fleet(cluster.store_url(), tmp_path)
    pair = (cluster.leader, cluster.followers[0])
    command = [sys.executable, "-S", str(WORKER), str(tmp_path)]
    leads: list[subprocess.Popen[str]] = [
        start("-s", fleet.store, "lead", "job", *TIMES, "--holder", name, "--", *command)
        for name in "ab"
    ]
    fleet.started += leads
    try:
        eventually(lambda: len(fleet.begun) == 1)
        for member in pair:
            member.freeze()
        # Until now a renewal may have been proved.
        since = clock.now()
        died_within(fleet, since, TTL)
        for member in pair:
            member.thaw()
        eventually(lambda: len(fleet.begun) >= 2, within=30)
        fleet.judge()
    finally:
        for member in pair:
            member.thaw()
        fleet.close()


# -- leases and their clocks


@pytest.mark.left(tiers.LONG)
def test_a_new_leader_starts_every_ttl_again_and_ours_waits_for_it(cluster: EtcdCluster) -> None:
    leader = cluster.leader
    others = [member for member in cluster.members if member is not leader]
    with party(url_of(others)) as one:
        # Nobody renews it: its holder died with the leader, two thirds into its ttl.
        one.take(ask=Ask(6.0, "dead"))
        granted = time.monotonic()
        time.sleep(4)
        leader.kill()
        elected = clock.now()
        cluster.another_leader(leader)
        refused_for = 0.0
        while not_granted(one):
            refused_for = time.monotonic() - granted
            assert refused_for < 20
            time.sleep(0.05)
        # Later than its ttl, by what the election took away: that is never a reason to believe.
        assert refused_for > 6
        assert took(elected) < 6 + ELECTED_WITHIN


def not_granted(one: Party) -> bool:
    try:
        outcome = one.store.take(one.key, new_claim(), Ask(6.0, "next"), soon(1))
    except StoreError:
        return True
    return not isinstance(outcome, Granted)


def test_what_a_frozen_leader_ends_as_soon_as_it_runs_again_has_no_lease_of_ours(
    cluster: EtcdCluster,
) -> None:
    leader, others = cluster.leader, cluster.followers
    with Client(url_of(others)) as client, party(url_of(others)) as rival:
        rival.key = Key("default", "held")
        with client.lock("held", ttl=4) as etcd_lease:
            of_before = others[0].leases()
            leader.freeze()
            cluster.another_leader(leader)
            eventually(lambda: renewed(etcd_lease.renew))
            # As it may do, whatever its successor kept alive: etcd issue 15247.
            for granted in of_before:
                others[0].etcdctl("lease", "revoke", f"{granted:x}")
            rival.refused()
            eventually(lambda: renewed(etcd_lease.renew))


@pytest.mark.left(tiers.LONG)
def test_a_member_that_comes_back_empty_handed_is_no_reason_to_stop(cluster: EtcdCluster) -> None:
    with Client(cluster.store_url()) as client:
        etcd_lease = client.lock("held", ttl=30).acquire()
        for member in cluster.members:
            member.restart()
            cluster.wait_until_healthy()
            cluster.leader  # noqa: B018 - waits until there is one
        assert etcd_lease.valid
        assert etcd_lease.release()
