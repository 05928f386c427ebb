"""Whatever befalls the store or the command, no two workers live at once; flock judges.

A worker has to be dead one ttl after the fault at the latest: the store counts the ttl from a
request that was sent before it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from incumbent import clock
from tests import tiers
from tests.cli.tool import answer
from tests.e2e.fleet import TTL, Fleet, Place, died_within
from tests.support.pace import BUSY
from tests.support.proxy import FaultProxy
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.timing(tiers.PROCESSES)

FAULTS = [
    ("sqlite", "silent"),
    ("redis", "silent"),
    ("redis", "killed"),
    ("redis", "black hole"),
    ("redis", "one-way loss"),
    ("etcd", "silent"),
    ("etcd", "killed"),
    ("etcd", "black hole"),
    ("etcd", "one-way loss"),
    ("postgresql", "silent"),
    ("postgresql", "killed"),
    ("postgresql", "black hole"),
]


@pytest.mark.left(
    tiers.MEET,
    "obedient-sqlite-silent",
    "obedient-etcd-one-way loss",
    "stubborn-redis-killed",
    "stubborn-postgresql-black hole",
)
@pytest.mark.parametrize(("place", "fault"), FAULTS, indirect=["place"])
@pytest.mark.parametrize("worker", [(), ("--stubborn",)], ids=["obedient", "stubborn"])
def test_the_worker_dies_inside_the_lease_when_the_store_is_away(
    place: Place, fleet: Fleet, fault: str, worker: tuple[str, ...]
) -> None:
    begin, end = place.faults[fault]
    first = fleet.begin(worker=worker)
    second = fleet.start("--wait=60")
    time.sleep(0.3)
    begin()
    # Until now a renewal may have been proved.
    since = clock.now()
    died_within(fleet, since, TTL)
    _, said = first.communicate()
    assert first.returncode == 123, said
    assert "could not be renewed in time; stopped after" in said
    end()
    eventually(lambda: len(fleet.begun) == 2)
    second.terminate()
    # A busy machine may have cost it the lease before it was told.
    assert second.wait(40) in {128 + signal.SIGTERM, 123}
    fleet.judge()


@pytest.mark.left(tiers.STORES, "redis")
def test_a_short_outage_stops_nobody(place: Place, fleet: Fleet) -> None:
    begin, end = place.faults["silent"]
    # Long enough for a busy machine; a renewal, every 1.2 s, falls into the outage.
    only = fleet.begin("--ttl", "6", worker=("--for", "6.2"))
    begin()
    time.sleep(1.3)
    end()
    assert only.wait(40) == 0
    fleet.judge()


def test_a_signal_during_a_slow_take_leaves_nothing_in_the_store(
    proxy: FaultProxy, own_redis: RedisServer, tmp_path: Path
) -> None:
    fleet = Fleet(f"{proxy.url}?restart_wait=0", tmp_path)
    # The first use of a database takes one exchange more.
    pretend_age(own_redis.url, own_redis)
    # To connect is three pieces of replies, each as late, within a second.
    proxy.delay(0.0, reply=0.2)
    only = fleet.start("--ttl", "10s")
    eventually(lambda: "cmdstat_evalsha" in own_redis.cli("INFO", "commandstats"))
    # Faster again, but slow enough that an exit has to wait for the clean-up.
    proxy.delay(0.0, reply=0.1)
    only.terminate()
    assert only.wait(40) == 128 + signal.SIGTERM
    record = answer("-s", f"{own_redis.url}?restart_wait=0", "status", "job")
    assert record["state"] == "free"
    assert not fleet.begun
    fleet.close()


def test_the_worker_is_stopped_when_the_record_is_gone(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    fleet = Fleet(f"{own_redis.url}?restart_wait=0", tmp_path)
    first = fleet.begin()
    own_redis.cli("FLUSHALL")
    died_within(fleet, clock.now(), TTL)
    assert first.wait(40) == 123
    fleet.close()


@pytest.mark.left(tiers.STORES, "etcd")
def test_an_instance_that_is_killed_takes_its_worker_along(place: Place, fleet: Fleet) -> None:
    first = fleet.begin()
    second = fleet.start("--wait=60")
    first.kill()
    died_within(fleet, clock.now(), TTL)
    eventually(lambda: len(fleet.begun) == 2)
    second.terminate()
    fleet.judge()


@pytest.mark.left(tiers.LONG)
def test_an_instance_that_was_frozen_past_its_lease_kills_at_once(fleet: Fleet) -> None:
    first = fleet.begin(worker=("--stubborn",))
    first.send_signal(signal.SIGSTOP)
    time.sleep(1.3 * TTL)
    first.send_signal(signal.SIGCONT)
    died_within(fleet, clock.now(), BUSY)
    assert first.wait(40) == 123


@pytest.mark.left(tiers.STORES, "postgresql")
def test_what_the_command_leaves_behind_is_stopped_before_the_release(
    place: Place, fleet: Fleet
) -> None:
    first = fleet.begin(worker=("--stubborn", "--orphan"))
    second = fleet.start("--wait=60", worker=("--for", "0.1"))
    assert second.wait(40) == 0
    assert first.wait(40) == 0
    fleet.judge()
    assert answer("-s", place.url, "status", "job")["state"] == "free"


@pytest.mark.left(tiers.LONG)
def test_a_stopped_worker_keeps_its_lease_and_dies_when_the_store_is_away(
    place: Place, fleet: Fleet
) -> None:
    first = fleet.begin(worker=("--stubborn",))
    second = fleet.start("--wait=60")
    (worker,) = children_of(first.pid)
    send(worker, signal.SIGSTOP)
    time.sleep(1.3 * TTL)
    assert len(fleet.begun) == 1
    assert fleet.worker_lives()
    place.faults["silent"][0]()
    died_within(fleet, clock.now(), TTL)
    place.faults["silent"][1]()
    assert first.wait(40) == 123
    eventually(lambda: len(fleet.begun) == 2)
    second.terminate()
    fleet.judge()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    children = [int(child) for child in text.split()]
    guards = "incumbent-guard\n"
    return [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() != guards]


def send(pid: int, signum: int) -> None:
    os.kill(pid, signum)
