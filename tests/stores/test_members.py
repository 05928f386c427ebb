"""A member of a store that gives no answer is logged once, counted, and logged when it is back."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from incumbent import Client, clock
from incumbent.errors import StoreUnavailable
from incumbent.metrics import text
from incumbent.runtime.link import link_for
from incumbent.stores.members import SAID_AFTER, Members
from tests import tiers
from tests.stores.quorum.world import Member
from tests.stores.quorum.world import Members as QuorumServers
from tests.support.etcd_cluster import EtcdCluster
from tests.support.waiting import eventually

Watched = tuple[Members, Callable[[float], None]]
"""Members, and what moves their clock on."""
GONE = StoreUnavailable("b cannot be reached: refused")


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Watched:
    now = [1_000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return Members("redis+quorum://a,b,c", ["a", "b", "c"], 2, asks_all=True), wait


def test_a_member_that_is_away_for_a_moment_is_no_line(
    members: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watch, wait = members
    watch.note_failed("b", GONE)
    wait(SAID_AFTER / 2)
    watch.note_failed("b", GONE)
    watch.note_answered("b")
    wait(SAID_AFTER)
    watch.note_failed("b", GONE)
    assert caplog.messages == []
    assert set(watch.down) == {"b"}


def test_a_member_that_stays_away_is_logged_once_with_how_many_are_left(
    members: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watch, wait = members
    for _ in range(5):
        watch.note_failed("b", GONE)
        wait(3.0)
    (line,) = caplog.messages
    assert "member b has failed for 3s: b cannot be reached: refused" in line
    assert "2 of 3 members are left, and 2 are needed" in line


def test_its_return_is_logged_once(members: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watch, wait = members
    watch.note_failed("b", GONE)
    wait(3.0)
    watch.note_failed("b", GONE)
    wait(9.0)
    for _ in range(3):
        watch.note_answered("b")
    assert caplog.messages[1:] == ["redis+quorum://a,b,c: member b works again, after 12s"]
    assert watch.down == {}


def test_each_member_has_a_series_before_it_ever_fails(members: Watched) -> None:
    watch, _ = members
    watch.note_failed("b", GONE)
    found = {labels: value for _, labels, value, _ in watch.samples()}
    assert found == {(("member", name),): name != "b" for name in "abc"}


# -- real servers ----------------------------------------------------------------------------------


def said_of(name: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about one member: other engines, and members that are slow, have lines, too."""
    return [line for line in caplog.messages if f"member {name}" in line]


def is_down(client: Client, name: str) -> bool:
    """Whether this process knows it, after another lease was taken and given back."""
    client.lock("other").acquire().release()
    return f'incumbent_store_member_up{{member="{name}/0"}} 0' in text()


@pytest.mark.left(tiers.CRASHES, "frozen")
@pytest.mark.server
@pytest.mark.parametrize("fault", ["killed", "frozen", "refusing"])
def test_the_first_dead_member_of_a_quorum_is_seen_while_leases_go_on(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "incumbent.store")
    with QuorumServers(3) as servers, Client(servers.url("restart_wait=0")) as client:
        dead: Member = servers.all[1]
        with client.lock("job") as lease:
            eventually(lambda: not is_down(client, dead.address), within=30)
            dead.begin(fault)
            eventually(lambda: is_down(client, dead.address), within=30)
            eventually(
                lambda: is_down(client, dead.address) and said_of(dead.address, caplog), within=30
            )
            line = said_of(dead.address, caplog)[-1]
            assert "of 3 members are left, and 2 are needed" in line
            assert lease.valid
            dead.end()
            eventually(lambda: not is_down(client, dead.address), within=30)
        assert any("works again" in line for line in said_of(dead.address, caplog))


@pytest.mark.server
@pytest.mark.slow
def test_a_dead_member_of_an_etcd_cluster_is_logged_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "incumbent.store")
    with EtcdCluster() as cluster:
        first = cluster.followers[0]
        with Client(cluster.store_url(first)) as client:
            client.lock("job").acquire().release()
            first.kill()
            eventually(lambda: client.lock("job", timeout=5).acquire().release(), within=30)
            (line,) = said_of(first.endpoint, caplog)
            assert "2 of 3 members are left, and 2 are needed" in line
            site = link_for(client).engine._site  # type: ignore[attr-defined]
            assert list(site.health.down)
