"""Ours and foreign clients (`etcdctl lock`) in one line: who is next, and never two at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from incumbent import AcquireTimeout, Client
from incumbent.model import (
    Ask,
    Gone,
    Granted,
    Key,
    Queue,
    Queued,
    Refused,
    Released,
    Renewal,
    Renewed,
)
from incumbent.stores.etcd.foreign import contenders
from incumbent.stores.etcd.kv import KeyValue, Names
from incumbent.stores.etcd.taking import EtcdTake
from tests import tiers
from tests.stores.etcd.world import (
    ASK,
    PREFIX,
    Party,
    acquired_by,
    created_of,
    etcdctl_lock,
    lease_of,
    new_claim,
    operations,
    place,
    put_foreign,
    sent,
    soon,
)
from tests.support.etcd import ETCDCTL, EtcdServer
from tests.support.waiting import eventually

server = pytest.mark.server

LONG = replace(ASK, ttl=60.0)
WAITS = replace(LONG, queue=Queue(5.0))
CANDIDATE = replace(LONG, candidacy=60.0, queue=Queue(5.0))
NAMES = Names("/p", Key("n", "job"))


# -- what the keys say


def key(name: str, created: int) -> KeyValue:
    return KeyValue(NAMES.contenders + name, b"", created, created, "1")


@pytest.mark.parametrize(
    ("keys", "holders", "turn"),
    [
        ({}, (), 0),
        ({"ticket": 3}, (), 0),
        ({"held": 5}, ("held",), 0),
        ({"held": 5, "ticket": 3, "7f": 4}, ("held",), 0),
        ({"shared/2/0": 5, "shared/2/1": 7, "7f": 6}, ("shared/2/0", "shared/2/1"), 0),
        ({"7f": 4}, ("7f",), 0),
        ({"7f": 4, "6e": 2}, ("6e",), 0),
        ({"7f": 4, "ticket": 5}, ("7f",), 0),
        ({"7f": 4, "ticket": 3}, (), 3),
        ({"7f": 4, "6e": 2, "ticket": 3}, ("6e",), 0),
    ],
)
def test_the_oldest_key_has_the_name_and_a_ticket_is_the_turn_of_ours(
    keys: dict[str, int], holders: tuple[str, ...], turn: int
) -> None:
    found = contenders(NAMES, [key(*each) for each in keys.items()])
    assert [entry.key for entry in found.holders] == [NAMES.contenders + key for key in holders]
    assert found.ticket_in_turn == turn
    assert NAMES.ticket not in [entry.key for entry in found.keys]


# -- on a server


def wait_behind_a_holder(server: EtcdServer, here: Party, other: Party) -> None:
    """`other` waits for what `here` held; a foreign client came after it."""
    granted = here.take(ask=LONG)
    queued = other.store.take(other.key, other.claim, WAITS, soon())
    assert isinstance(queued, Queued)
    eventually(lambda: wait_a_bit(server, other, queued))
    put_foreign(server, here)
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


def wait_a_bit(server: EtcdServer, one: Party, queued: Queued) -> bool:
    one.store.wait_change(one.key, queued.seen, soon(0.5))
    return place(one, "ticket") in server.keys(place(one))


def take_by_ticket(server: EtcdServer, here: Party, other: Party) -> Granted:
    wait_behind_a_holder(server, here, other)
    granted = other.take(ask=WAITS)
    assert set(server.keys(place(here))) == {place(here, k) for k in ("7f", "held", "ticket")}
    return granted


@server
def test_a_waiter_that_came_before_etcdctl_has_its_turn_before_it(own_etcd: EtcdServer) -> None:
    name = f"{PREFIX}/default/job"
    with Client(own_etcd.store_url(PREFIX)) as client, ThreadPoolExecutor(3) as pool:
        first = client.lock("job", ttl=60).acquire()
        ours = pool.submit(client.lock("job", ttl=60, timeout=30).acquire)
        eventually(lambda: len(own_etcd.keys(f"{name}/")) == 2)
        with etcdctl_lock(own_etcd, name) as one, etcdctl_lock(own_etcd, name) as two:
            eventually(lambda: len(own_etcd.keys(f"{name}/")) == 4)
            theirs = [pool.submit(acquired_by, process) for process in (one, two)]
            first.release()
            etcd_lease = ours.result(30)
            # Long enough for theirs, were they let in.
            time.sleep(0.5)
            assert not any(each.done() for each in theirs)
            etcd_lease.release()
            eventually(lambda: any(each.done() for each in theirs))


_LOOP = """
while :; do {lock} -- sh -c 'echo in >> {log}; sleep 0.01; echo out >> {log}'; done
"""


@contextmanager
def loop_of_etcdctl(server: EtcdServer, name: str, log: Path) -> Iterator[None]:
    lock = " ".join(server.etcdctl_command("lock", "--ttl", "5", name))
    process = subprocess.Popen(
        # It ends with the first lock that fails: a loop of failures would fill the disk.
        ["/bin/sh", "-ec", _LOOP.format(lock=lock, log=log)],
        env={**os.environ, **(ETCDCTL or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.left(tiers.LONG)
@server
def test_beside_two_loops_of_etcdctl_ours_gets_its_share_and_nobody_overlaps(
    own_etcd: EtcdServer, tmp_path: Path
) -> None:
    name, log = f"{PREFIX}/default/job", tmp_path / "log"
    loop = partial(loop_of_etcdctl, own_etcd, name, log)
    with Client(own_etcd.store_url(PREFIX)) as client, loop(), loop():
        eventually(lambda: log.exists() and log.read_text().count("in\n") > 2)
        begun = log.read_text().count("in\n")
        with log.open("a", buffering=1) as note:
            for _ in range(20):
                with client.lock("job", ttl=60, timeout=60):
                    note.write("in\n")
                    time.sleep(0.01)
                    note.write("out\n")
        lines = log.read_text().split()
    # A third, where each is back at once; without a place in their line, one of a hundred.
    assert lines.count("in") - begun <= 20 * 8
    assert lines == ["in", "out"] * (len(lines) // 2) + ["in"] * (len(lines) % 2)


@server
def test_a_ticket_serves_for_one_lease_and_then_it_is_their_turn(own_etcd: EtcdServer) -> None:
    """Else a foreign client would wait for all of ours."""
    name, order = f"{PREFIX}/default/job", list[str]()
    with Client(own_etcd.store_url(PREFIX)) as client, ThreadPoolExecutor(4) as pool:
        first = client.lock("job", ttl=60).acquire()

        def ours() -> None:
            with client.lock("job", ttl=60, timeout=60):
                order.append("ours")

        waiting = [pool.submit(ours) for _ in range(3)]
        eventually(lambda: len(own_etcd.keys(f"{name}/")) == 2)
        with etcdctl_lock(own_etcd, name) as theirs:
            eventually(lambda: len(own_etcd.keys(f"{name}/")) == 3)
            first.release()
            acquired_by(theirs)
            order.append("theirs")
        for each in waiting:
            each.result(60)
    assert order == ["ours", "theirs", "ours", "ours"]


@server
def test_by_a_ticket_the_lease_keeps_foreign_clients_out_until_it_ends(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = here.take(ask=LONG)
    queued = other.store.take(other.key, other.claim, WAITS, soon())
    assert isinstance(queued, Queued)
    eventually(lambda: wait_a_bit(own_etcd, other, queued))
    with etcdctl_lock(own_etcd, place(here)[:-1]) as theirs, ThreadPoolExecutor(1) as pool:
        got = pool.submit(acquired_by, theirs)
        eventually(lambda: len(own_etcd.keys(place(here))) == 3)
        assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
        mine = other.take(ask=WAITS)
        assert mine.token > granted.token
        assert other.store.renew([other.renewal(mine)], soon()) == [Renewed()]
        assert other.store.read(other.key, soon()).holdings[0].token == mine.token
        time.sleep(0.5)
        assert not got.done()
        assert other.store.give(other.key, other.claim, mine.token, soon()) == Released()
        got.result(30)
        assert here.refused().holders[0].foreign


@server
def test_a_take_whose_ticket_went_meanwhile_is_refused(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    wait_behind_a_holder(own_etcd, here, other)
    take = by_ticket(other, own_etcd)
    own_etcd.etcdctl("del", place(here, "ticket"))
    own_etcd.etcdctl("put", place(here, "ticket"), "")
    assert not sent(other, take)
    # It is that of the foreign client now.
    assert other.refused(ask=WAITS).holders[0].foreign


@server
def test_a_take_whose_ticket_was_older_is_refused_while_an_older_foreign_key_is_there(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    put_foreign(own_etcd, here, "5d")
    queued = other.store.take(other.key, other.claim, WAITS, soon())
    assert isinstance(queued, Queued)
    eventually(lambda: wait_a_bit(own_etcd, other, queued))
    assert not sent(other, by_ticket(other, own_etcd))


@server
def test_a_take_without_a_ticket_is_refused_if_a_foreign_key_waits(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    wait_behind_a_holder(own_etcd, here, other)
    plain = by_ticket(other, own_etcd)
    plain.ticket = 0
    assert not sent(other, plain)


def by_ticket(one: Party, server: EtcdServer) -> EtcdTake:
    """A take that has seen the ticket as it is."""
    cluster = operations(one).cluster
    take = EtcdTake(cluster, one.key, one.claim, WAITS)
    take.incarnation = cluster.incarnation
    take.ticket = created_of(server, place(one, "ticket"))
    return take


@server
def test_a_ticket_moves_with_its_lease_to_another_etcd_lease(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = take_by_ticket(own_etcd, here, other)
    before = lease_of(own_etcd, place(here, "held"))
    assert before == lease_of(own_etcd, place(here, "ticket"))
    longer = replace(other.renewal(granted), ttl=120.0)
    assert other.store.renew([longer], soon()) == [Renewed()]
    after = lease_of(own_etcd, place(here, "held"))
    assert before != after == lease_of(own_etcd, place(here, "ticket"))


@server
def test_another_process_that_goes_on_with_a_lease_keeps_its_ticket(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = take_by_ticket(own_etcd, here, other)
    longer = Renewal(here.key, granted.claim, granted.token, 120.0, granted.epoch)
    assert here.store.renew([longer], soon()) == [Renewed()]
    assert lease_of(own_etcd, place(here, "held")) == lease_of(own_etcd, place(here, "ticket"))
    again = here.take(claim=granted.claim, ask=replace(ASK, ttl=240.0))
    assert again.token == granted.token
    assert lease_of(own_etcd, place(here, "held")) == lease_of(own_etcd, place(here, "ticket"))
    given = here.store.give(here.key, granted.claim, granted.token, soon())
    assert given == Released()
    assert own_etcd.keys(place(here)) == [place(here, "7f")]


@server
def test_a_lease_whose_ticket_was_deleted_is_gone_at_the_next_renewal(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    granted = take_by_ticket(own_etcd, here, other)
    own_etcd.etcdctl("del", place(here, "ticket"))
    assert other.store.renew([other.renewal(granted)], soon()) == [Gone()]
    given = other.store.give(other.key, other.claim, granted.token, soon())
    assert given == Released()
    assert own_etcd.keys(place(here)) == [place(here, "7f")]


@server
def test_a_claim_that_ends_although_its_session_lives_takes_its_ticket_along(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    short = replace(WAITS, ttl=1.0)
    wait_behind_a_holder(own_etcd, here, other)
    other.take(ask=short)
    key, beside = Key("faults", "beside"), new_claim()

    def is_gone() -> bool:
        # It keeps the session alive, of which the other claim is overdue.
        other.store.take(key, beside, Ask(1.0, "h"), soon())
        return own_etcd.keys(place(here)) == [place(here, "7f")]

    eventually(is_gone, within=30)


@server
def test_an_earlier_release_does_not_know_a_claim_with_a_ticket(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    """It would move the lease, and leave the ticket behind."""
    take_by_ticket(own_etcd, here, other)
    value = json.loads(own_etcd.etcdctl("get", place(here, "held"), "--print-value-only"))
    assert "claim" not in value


@pytest.mark.left(tiers.LONG)
@server
def test_who_waits_no_more_takes_its_ticket_away_though_it_waits_for_others(
    own_etcd: EtcdServer,
) -> None:
    url, name = own_etcd.store_url(PREFIX), f"{PREFIX}/default/job"
    with Client(url) as client, Client(url) as waiter, ThreadPoolExecutor(1) as pool:
        etcd_lease, beside = client.lock("job").acquire(), client.lock("beside").acquire()
        waiting = pool.submit(waiter.lock("beside", timeout=60).acquire)
        eventually(lambda: len(own_etcd.keys(f"{PREFIX}/default/beside/")) == 2)
        with pytest.raises(AcquireTimeout):
            waiter.lock("job", timeout=2).acquire()
        eventually(lambda: own_etcd.keys(f"{name}/") == [f"{name}/held"])
        etcd_lease.release()
        beside.release()
        waiting.result(30).release()


@server
def test_a_name_that_is_only_waited_for_is_not_listed(
    own_etcd: EtcdServer, here: Party, other: Party
) -> None:
    own_etcd.etcdctl("put", place(here, "ticket"), "")
    assert here.store.scan("faults", "", soon()) == ()
    assert here.store.read(here.key, soon()).seen == ""
    assert isinstance(other.take(), Granted)
    assert not isinstance(other.take(), Refused)


# -- candidates


@server
def test_a_candidate_has_its_turn_among_foreign_clients(own_etcd: EtcdServer, here: Party) -> None:
    put_foreign(own_etcd, here, "5d")
    assert here.refused(here.claim, ask=CANDIDATE).holders[0].foreign
    put_foreign(own_etcd, here)
    assert here.refused(here.claim, ask=CANDIDATE).holders[0].foreign
    own_etcd.etcdctl("del", place(here, "5d"))
    granted = here.take(ask=CANDIDATE)
    assert lease_of(own_etcd, place(here, "held")) == lease_of(own_etcd, place(here, "ticket"))
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert own_etcd.keys(place(here)) == [place(here, "7f")]


@server
def test_a_candidate_that_needs_no_ticket_any_more_leaves_none(
    own_etcd: EtcdServer, here: Party
) -> None:
    put_foreign(own_etcd, here)
    here.refused(here.claim, ask=CANDIDATE)
    assert place(here, "ticket") in own_etcd.keys(place(here))
    assert here.store.give(here.key, here.claim, None, soon()) == Gone()
    assert own_etcd.keys(place(here)) == [place(here, "7f")]
    claim = new_claim()
    here.refused(claim, ask=CANDIDATE)
    own_etcd.etcdctl("del", place(here, "7f"))
    here.take(claim, ask=CANDIDATE)
    assert own_etcd.keys(place(here)) == [place(here, "held")]
