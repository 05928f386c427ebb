"""Locks of others, hands of operators, and what is left behind, on a real server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from incumbent import Client, LeaseLost, NotAcquired, clock
from incumbent.model import (
    Ask,
    Batch,
    ByClaim,
    Gone,
    Granted,
    Key,
    Notice,
    Refused,
    Released,
    Renewal,
    Renewed,
    Stale,
    Stored,
)
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.etcd.world import (
    ASK,
    Party,
    acquired_by,
    etcdctl_lock,
    new_claim,
    party,
    soon,
    watchers,
)
from tests.support.etcd import EtcdServer
from tests.support.pace import took
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

PREFIX = "/locks"


@pytest.fixture
def here(own_etcd: EtcdServer) -> Iterator[Party]:
    with party(own_etcd.store_url(PREFIX)) as one:
        yield one


def shared_name(one: Party) -> str:
    return f"{PREFIX}/{one.key}"


def key_of_lease(server: EtcdServer, one: Party) -> str:
    (key,) = server.keys(f"{shared_name(one)}/")
    return key


# -- etcdctl lock


def test_what_etcdctl_holds_is_refused_to_us_and_granted_when_it_lets_go(
    here: Party, own_etcd: EtcdServer
) -> None:
    with etcdctl_lock(own_etcd, shared_name(here)) as theirs:
        assert acquired_by(theirs).startswith(shared_name(here))
        refused = here.refused()
        assert refused.reason == "held"
        assert refused.holders[0].foreign
        # Their keepalive holds on to it for longer than any ttl.
        time.sleep(1.5)
        here.refused()
    here.take()


def test_what_we_hold_etcdctl_waits_for_and_gets_when_we_let_go(
    here: Party, own_etcd: EtcdServer
) -> None:
    granted = here.take()
    with etcdctl_lock(own_etcd, shared_name(here)) as theirs, ThreadPoolExecutor(1) as pool:
        got = pool.submit(acquired_by, theirs)
        eventually(lambda: len(own_etcd.keys(f"{shared_name(here)}/")) == 2)
        time.sleep(0.3)
        assert not got.done()
        # It stands in line already: who comes after it goes after it, we as well.
        assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
        assert got.result(30).startswith(shared_name(here))
        here.refused()


def test_a_waiter_of_ours_is_woken_when_etcdctl_lets_go(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url(PREFIX), namespace="shared") as client:
        with etcdctl_lock(own_etcd, f"{PREFIX}/shared/job", ttl=60) as theirs:
            acquired_by(theirs)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(client.lock("job", timeout=10).acquire)
                eventually(lambda: watchers(own_etcd) >= 1)
                assert not waiting.done()
                since = clock.now()
                theirs.terminate()
                etcd_lease = waiting.result(10)
                # Their tool ends first; who is not woken waits for as long as their ttl.
                assert took(since) < 5.0
        etcd_lease.release()


def test_both_ways_at_random_no_two_hold_it(here: Party, own_etcd: EtcdServer) -> None:
    for _ in range(5):
        granted = here.take(new_claim(), within=5)
        with etcdctl_lock(own_etcd, shared_name(here)) as theirs, ThreadPoolExecutor(1) as pool:
            got = pool.submit(acquired_by, theirs)
            assert not got.done()
            given = here.store.give(here.key, granted.claim, granted.token, soon())
            assert given == Released()
            got.result(30)
            here.refused()


def test_a_lease_that_joins_others_is_proved_for_what_they_have_left(here: Party) -> None:
    """All leases of one ttl share an etcd lease, which was proved when the first of them came."""
    proved = here.take().ttl
    before = clock.now()
    time.sleep(0.3)
    joined = here.store.take(Key("faults", secrets.token_hex(6)), new_claim(), ASK, soon())
    assert isinstance(joined, Granted)
    assert joined.ttl <= proved - 0.3
    assert clock.now() - before < ASK.ttl / 5


def test_who_knows_the_token_but_not_the_claim_can_do_nothing(here: Party) -> None:
    granted = here.take()
    theirs = ByClaim(new_claim(), granted.token)
    assert here.store.put(here.key, "cursor", b"1", theirs, soon()) == Stale()
    assert here.store.give(here.key, theirs.claim, granted.token, soon()) == Gone()
    stranger = Renewal(here.key, theirs.claim, granted.token, 10.0, granted.epoch)
    assert here.store.renew([stranger], soon()) == [Gone()]
    ours = ByClaim(here.claim, granted.token)
    assert isinstance(here.store.put(here.key, "cursor", b"1", ours, soon()), Stored)
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]


def test_a_claim_that_another_process_ends_is_one_holding_in_the_history(
    here: Party, own_etcd: EtcdServer
) -> None:
    granted = here.take()
    with party(own_etcd.store_url(PREFIX)) as other:
        assert other.store.give(here.key, here.claim, None, soon()) == Released()
    (past,) = here.store.read(here.key, soon()).history
    assert past.token == granted.token
    assert past.ended is not None


# -- operators


def test_a_key_that_an_operator_deletes_is_gone_at_the_next_renewal(
    here: Party, own_etcd: EtcdServer
) -> None:
    granted = here.take()
    own_etcd.etcdctl("del", key_of_lease(own_etcd, here))
    assert here.store.renew([here.renewal(granted)], soon()) == [Gone()]
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Gone()


def test_a_lease_that_an_operator_revokes_is_gone_at_the_next_renewal(
    here: Party, own_etcd: EtcdServer
) -> None:
    granted = here.take()
    for etcd_lease in own_etcd.leases():
        own_etcd.etcdctl("lease", "revoke", f"{etcd_lease:x}")
    # A keepalive of what is no more is answered well, and without a TTL.
    assert here.store.renew([here.renewal(granted)], soon()) == [Gone()]
    # The next one is not tied to what was revoked.
    again = here.take(new_claim())
    assert again.token > granted.token


def test_a_holder_is_told_that_its_key_was_deleted(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url(PREFIX)) as client:
        etcd_lease = client.lock("job", ttl=3).acquire()
        own_etcd.etcdctl("del", "--prefix", PREFIX)
        assert etcd_lease.wait_lost(timeout=20)
        with pytest.raises(LeaseLost):
            etcd_lease.check()


def test_a_server_that_lost_its_data_ends_what_was_believed(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url()) as client:
        etcd_lease = client.lock("job", ttl=3).acquire()
        own_etcd.restart(empty=True)
        assert etcd_lease.wait_lost(timeout=20)


# -- what is left behind


def test_tries_that_lose_leave_no_lease_behind(here: Party, own_etcd: EtcdServer) -> None:
    here.take()
    before = own_etcd.leases()
    with party(own_etcd.store_url(PREFIX)) as other:
        other.key = here.key
        for _ in range(20):
            other.refused()
    assert own_etcd.leases() == before


@pytest.mark.left(tiers.LONG)
def test_waiters_that_give_up_leave_no_lease_behind(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url()) as client, Client(own_etcd.store_url()) as other:
        etcd_lease = client.lock("job").acquire()
        before = own_etcd.leases()
        for _ in range(3):
            with pytest.raises(NotAcquired):
                other.lock("job", timeout=1).acquire()
        # Its place in the line of waiters goes with the last one.
        eventually(lambda: own_etcd.leases() == before)
        etcd_lease.release()


def test_a_process_that_loses_leaves_no_lease_behind(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url()) as client, client.lock("job").acquire():
        before = own_etcd.leases()
        done = incumbent("-s", own_etcd.store_url(), "run", "job", "--", "true")
        assert done.returncode == 75
        assert own_etcd.leases() == before


def test_a_closed_client_leaves_its_history_and_nothing_else(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url(PREFIX)) as client:
        client.lock("job", ttl=2).acquire().release()
    eventually(lambda: len(own_etcd.leases()) <= 1, within=20)
    assert not own_etcd.keys(f"{PREFIX}/default/")


def test_a_release_takes_the_key_away(here: Party, own_etcd: EtcdServer) -> None:
    granted = here.take()
    assert own_etcd.keys(f"{shared_name(here)}/")
    here.store.give(here.key, here.claim, granted.token, soon())
    assert not own_etcd.keys(f"{shared_name(here)}/")


def test_a_release_of_an_old_claim_leaves_the_next_holder_alone(here: Party) -> None:
    first = here.take()
    here.store.give(here.key, here.claim, first.token, soon())
    second = here.take(new_claim())
    assert here.store.give(here.key, here.claim, first.token, soon()) == Gone()
    assert here.store.give(here.key, second.claim, first.token, soon()) == Gone()
    assert here.refused().holders[0].claim == second.claim


def test_an_old_claim_beside_a_new_one_on_the_same_name_does_not_harm_it(
    here: Party, own_etcd: EtcdServer
) -> None:
    old = here.renewal(here.take())
    own_etcd.etcdctl("del", key_of_lease(own_etcd, here))
    claim = new_claim()
    new = here.take(claim)
    asked = [
        replace(old, meta=b"1"),
        Renewal(here.key, claim, new.token, 10.0, new.epoch, meta=b"2"),
    ]
    assert here.store.renew(asked, soon()) == [Gone(), Renewed()]
    (holding,) = here.store.read(here.key, soon()).holdings
    assert holding.meta == b"2"


# -- thousands at rest


MANY = 300


@pytest.fixture
def many(here: Party) -> Batch:
    """Leases that were renewed before, and are renewed again just so."""
    renewals = []
    for number in range(MANY):
        key, claim = one_of_many(here, number), new_claim()
        outcome = here.store.take(key, claim, ASK, soon())
        assert isinstance(outcome, Granted)
        renewals.append(Renewal(key, claim, outcome.token, ASK.ttl, outcome.epoch))
    batch = Batch(renewals)
    for _ in range(2):
        assert here.store.renew(batch, soon()) == [Renewed()] * MANY
    return batch


def one_of_many(here: Party, number: int) -> Key:
    return here.key._replace(name=f"many-{number}")


def gone_of(here: Party, batch: Batch) -> list[int]:
    outcomes = here.store.renew(batch, soon())
    assert len(outcomes) == len(batch)
    return [at for at, outcome in enumerate(outcomes) if outcome == Gone()]


def requests_of_a_renewal(here: Party, server: EtcdServer, batch: Batch) -> float:
    before = server.requests()
    assert here.store.renew(batch, soon()) == [Renewed()] * MANY
    return sum(server.requests().values()) - sum(before.values())


def test_hundreds_at_rest_cost_two_requests_while_nobody_writes(
    here: Party, own_etcd: EtcdServer, many: Batch
) -> None:
    assert requests_of_a_renewal(here, own_etcd, many) == 2
    own_etcd.etcdctl("put", "unrelated", "1")
    # Whatever it was that changed: all of them are looked at once more.
    assert requests_of_a_renewal(here, own_etcd, many) > 3
    assert requests_of_a_renewal(here, own_etcd, many) == 2


@pytest.mark.left(tiers.FORMS, "299")
@pytest.mark.parametrize("at", [0, 7, 8, 200, MANY - 1])
def test_of_hundreds_at_rest_one_that_is_deleted_is_gone_at_the_next_renewal(
    here: Party, own_etcd: EtcdServer, many: Batch, at: int
) -> None:
    own_etcd.etcdctl("del", "--prefix", f"{PREFIX}/{one_of_many(here, at)}/")
    assert gone_of(here, many) == [at]
    assert gone_of(here, many) == [at]


def test_of_hundreds_at_rest_one_that_was_granted_anew_is_not_what_it_was(
    here: Party, many: Batch
) -> None:
    key, claim = many[200].key, many[200].claim
    assert here.store.give(key, claim, many[200].token, soon()) == Released()
    again = here.store.take(key, claim, ASK, soon())
    assert isinstance(again, Granted)
    assert gone_of(here, many) == [200]
    renewal = Renewal(key, claim, again.token, ASK.ttl, again.epoch)
    assert here.store.renew(Batch([renewal]), soon()) == [Renewed()]


def test_of_hundreds_at_rest_one_is_told_of_a_pause(here: Party, many: Batch) -> None:
    here.store.put(many[200].key, "pause", b"{}", None, soon())
    outcomes = here.store.renew(many, soon())
    assert outcomes.pop(200) == Renewed((Notice("pause"),))
    assert outcomes == [Renewed()] * (MANY - 1)
    here.store.put(many[200].key, "pause", None, None, soon())
    assert here.store.renew(many, soon()) == [Renewed()] * MANY


def test_hundreds_at_rest_whose_session_is_revoked_are_gone(
    here: Party, own_etcd: EtcdServer, many: Batch
) -> None:
    for etcd_lease in own_etcd.leases():
        own_etcd.etcdctl("lease", "revoke", f"{etcd_lease:x}")
    assert gone_of(here, many) == list(range(MANY))


# -- requests


def test_a_thousand_leases_of_a_process_cost_few_keepalives(own_etcd: EtcdServer) -> None:
    with party(own_etcd.store_url()) as one:
        keys = [one.key._replace(name=f"many-{number}") for number in range(1000)]
        renewals = []
        for key in keys:
            outcome = one.store.take(key, one.claim, Ask(60.0, "h"), soon())
            assert isinstance(outcome, Granted)
            renewals.append(Renewal(key, one.claim, outcome.token, 60.0, outcome.epoch))
        before = own_etcd.requests()
        assert one.store.renew(renewals, soon(30)) == [Renewed()] * 1000
        after = own_etcd.requests()
        assert after["LeaseKeepAlive"] - before["LeaseKeepAlive"] <= 2
        assert sum(after.values()) - sum(before.values()) <= 20


def test_a_waiter_asks_nothing_while_it_waits(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url()) as client, Client(own_etcd.store_url()) as other:
        etcd_lease = client.lock("job", ttl=60).acquire()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.lock("job", ttl=60, timeout=10).acquire)
            eventually(lambda: watchers(own_etcd) >= 1)
            time.sleep(0.3)
            before = own_etcd.requests()
            time.sleep(2)
            after = own_etcd.requests()
            changed = {call: n - before[call] for call, n in after.items() if n != before[call]}
            assert sum(changed.values()) <= 1, changed
            etcd_lease.release()
            waiting.result(30).release()


# -- many at once


def test_many_threads_share_an_engine_and_one_lease_has_one_holder(here: Party) -> None:
    held: list[str] = []

    def compete(_: int) -> int:
        grants = 0
        for _ in range(15):
            claim = new_claim()
            outcome = here.store.take(here.key, claim, Ask(60.0, "h"), soon(30))
            if isinstance(outcome, Refused):
                continue
            assert isinstance(outcome, Granted)
            assert outcome.claim == claim
            held.append(claim)
            grants += 1
            assert held == [claim]
            held.remove(claim)
            assert here.store.give(here.key, claim, outcome.token, soon(30)) == Released()
        return grants

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(compete, range(8))) > 0
