"""The etcd servers under the tests do what they say: a fault that does not happen shows nothing."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests import tiers
from tests.support.etcd import EtcdServer
from tests.support.etcd_cluster import EtcdCluster
from tests.support.etcd_tls import EtcdTls
from tests.support.needs import needs
from tests.support.network import CAN_PART
from tests.support.servers import ServerFailed

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.left(tiers.NET)]


def works(member: EtcdServer) -> bool:
    """A write at this very member is agreed on within a second."""
    command = member.etcdctl_command("--command-timeout=1s", "put", "k", "v")
    env = {"ETCDCTL_API": "3"}
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def test_data_outlives_a_restart_unless_it_should_not(own_etcd: EtcdServer) -> None:
    own_etcd.etcdctl("put", "a", "1")
    endpoint = own_etcd.endpoint
    own_etcd.restart()
    assert own_etcd.keys() == ["a"]
    own_etcd.restart(empty=True)
    assert own_etcd.keys() == []
    assert own_etcd.endpoint == endpoint


def test_a_frozen_server_is_silent_and_comes_back(own_etcd: EtcdServer) -> None:
    own_etcd.freeze()
    assert not works(own_etcd)
    own_etcd.thaw()
    assert works(own_etcd)


def test_requests_and_leases_are_counted(own_etcd: EtcdServer) -> None:
    before = own_etcd.requests()
    own_etcd.etcdctl("put", "a", "1")
    own_etcd.etcdctl("lease", "grant", "60")
    after = own_etcd.requests()
    assert {call for call in after if after[call] != before.get(call, 0)} == {"Put", "LeaseGrant"}
    assert len(own_etcd.leases()) == 1


def test_an_option_that_etcd_refuses_fails_loudly() -> None:
    with pytest.raises(ServerFailed, match="not-an-option"):
        EtcdServer(["--not-an-option"])


def test_with_auth_nobody_without_a_password_gets_in(own_etcd: EtcdServer) -> None:
    own_etcd.enable_auth()
    own_etcd.add_user("billing", "sesame", "/billing/")
    assert own_etcd.etcdctl("user", "list").split() == ["billing", "root"]
    own_etcd.password = ""
    assert not works(own_etcd)


def test_only_a_server_that_demands_them_wants_client_certificates(tmp_path: Path) -> None:
    import ssl

    tls = EtcdTls(tmp_path)
    trusting = ssl.create_default_context(cafile=str(tls.ca))

    def version(server: EtcdServer) -> bytes:
        with urllib.request.urlopen(f"{server.http}/version", context=trusting) as answer:
            return bytes(answer.read())

    with EtcdServer(tls=tls) as server:
        assert b"etcdserver" in version(server)
    with EtcdServer(tls=tls.demanding()) as server, pytest.raises(OSError, match=r"(?i)alert"):
        version(server)


def test_a_cluster_outlives_one_of_its_members_and_not_two() -> None:
    with EtcdCluster() as cluster:
        leader = cluster.leader
        leader.kill()
        second = cluster.another_leader(leader)
        assert works(second)
        second.freeze()
        last = next(it for it in cluster.members if it not in (leader, second))
        assert not works(last)
        second.thaw()
        leader.start()
        cluster.wait_until_healthy()
        assert works(last)


@needs(CAN_PART, "network namespaces need root and ip")
def test_a_member_that_is_parted_is_reached_and_of_no_use() -> None:
    with EtcdCluster(apart=True) as cluster:
        leader = cluster.leader
        cluster.part(leader)
        assert works(cluster.another_leader(leader))
        assert not works(leader)
        # It answers, though.
        assert leader.metrics()
        cluster.join(leader)
        cluster.wait_until_healthy()
        assert works(leader)


@needs(CAN_PART, "network namespaces need root and ip")
def test_a_member_that_is_unplugged_is_not_even_refused() -> None:
    with EtcdCluster(apart=True) as cluster:
        leader = cluster.leader
        cluster.unplug(leader)
        began = time.monotonic()
        with pytest.raises(urllib.error.URLError):
            leader.metrics()
        assert time.monotonic() - began > 1.5
        assert works(cluster.another_leader(leader))
