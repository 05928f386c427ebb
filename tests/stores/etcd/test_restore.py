"""A cluster that is brought back to an earlier state: its id, its revisions and its leases return.

What a holder from before believes, what its process may be granted, and what a new process may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

import pytest

from incumbent import Client, LeaseLost, clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Batch, Gone, Granted, Key, Released, Renewal, RenewOutcome
from incumbent.stores.etcd.engine import EtcdEngine
from incumbent.stores.etcd.kv import TXN, GatewayRequest, b64
from tests import tiers
from tests.stores.etcd.world import ASK, Party, new_claim, party, soon
from tests.support.etcd import EtcdServer
from tests.support.etcd_cluster import EtcdCluster, url_of

pytestmark = pytest.mark.server

WAIT = "60s"
MARKER = "/incumbent!born"


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    """One whose present incarnation is an hour old, as its marker says."""
    with EtcdServer() as one:
        make_old(one)
        yield one


def make_old(server: EtcdServer) -> None:
    with party(server.store_url()) as first:
        granted = first.take()
        first.store.give(first.key, first.claim, granted.token, soon())
    marker = json.loads(server.etcdctl("get", "--print-value-only", MARKER))
    server.etcdctl("put", MARKER, json.dumps(marker | {"at": marker["at"] - 3600}))


@pytest.fixture
def another(server: EtcdServer) -> Iterator[Callable[..., Party]]:
    """Another process: what it remembers is its own."""
    with ExitStack() as stack:

        def make(restart_wait: str = "0", key: Key | None = None) -> Party:
            one = stack.enter_context(party(server.store_url(restart_wait=restart_wait)))
            return Party(one.engine, key or Key("faults", "job"))

        yield make


def wait_from_now_on(one: Party) -> None:
    """As a process that was admitted long ago, and has the usual restart_wait."""
    assert isinstance(one.engine, EtcdEngine)
    one.engine._site.restart_wait = 60.0


def renewed(one: Party, granted: Granted) -> RenewOutcome:
    """The answer to its renewal, as a keeper gets it: a failure is no answer, and it asks again."""
    batch = Batch([one.renewal(granted)])
    for _ in range(5):
        try:
            return one.store.renew(batch, soon())[0]
        except StoreError:
            continue
    raise AssertionError("it was never answered")


def refused_for_now(one: Party) -> float:
    """Seconds until it grants; a take in doubt is given up, and asked again with another claim."""
    for _ in range(5):
        claim = new_claim()
        try:
            outcome = one.store.take(one.key, claim, ASK, soon())
        except OutcomeUnknown:
            one.store.give(one.key, claim, None, soon())
        except StoreUnavailable as error:
            if error.retry_after is not None:
                return error.retry_after
        else:
            raise AssertionError(f"granted, or refused for good: {outcome}")
    raise AssertionError("it was never answered")


def work(one: Party, times: int, key: Key | None = None) -> Granted:
    """So many takes and gives; the last one is held."""
    key, granted = key or one.key, None
    for _ in range(times):
        if granted is not None:
            assert one.store.give(key, granted.claim, granted.token, soon()) == Released()
        one.claim = new_claim()
        outcome = one.store.take(key, one.claim, ASK, soon())
        assert isinstance(outcome, Granted), outcome
        granted = outcome
    assert granted is not None
    return granted


# -- etcdctl snapshot save, etcdctl snapshot restore


def test_after_a_restore_nobody_is_granted_while_a_holder_from_before_may_believe(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    old = another()
    work(old, 3)
    old.store.give(old.key, old.claim, None, soon())
    snapshot = server.snapshot()
    held = work(old, 10)
    cluster = json.loads(server.etcdctl("endpoint", "status", "-w", "json"))
    server.restore(snapshot)
    again = json.loads(server.etcdctl("endpoint", "status", "-w", "json"))
    ids = [it[0]["Status"]["header"]["cluster_id"] for it in (cluster, again)]
    assert ids[0] == ids[1]
    assert 50 < refused_for_now(another(WAIT)) <= 60
    after = another()
    assert after.take().token > held.token
    assert renewed(old, held) == Gone("store_restarted")


def test_a_restore_to_the_moment_of_the_marker_is_noticed(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    """Its new log is hardly shorter than the first one was then."""
    old = another()
    snapshot = server.snapshot()
    held = work(old, 1)
    server.restore(snapshot)
    assert 50 < refused_for_now(another(WAIT)) <= 60
    assert renewed(old, held) == Gone("store_restarted")


def test_a_restored_cluster_is_noticed_by_whoever_was_connected_before(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    old, waiter = another(), another()
    work(old, 3)
    assert waiter.refused().reason == "held"
    old.store.give(old.key, old.claim, None, soon())
    snapshot = server.snapshot()
    held = work(old, 10)
    server.restore(snapshot)
    wait_from_now_on(waiter)
    assert 50 < refused_for_now(waiter) <= 60
    assert renewed(old, held) == Gone("store_restarted")
    wait_from_now_on(old)
    # It accepts what the other one has found out, and does not begin anew.
    marker = server.etcdctl("get", "--print-value-only", MARKER)
    assert 50 < refused_for_now(old) <= 60
    assert server.etcdctl("get", "--print-value-only", MARKER) == marker


def test_a_snapshot_that_was_restored_twice_is_noticed_twice(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    old = another()
    tokens = [work(old, 3).token]
    old.store.give(old.key, old.claim, None, soon())
    snapshot = server.snapshot()
    epochs = []
    for _ in range(2):
        server.restore(snapshot)
        after = another()
        granted = work(after, 5)
        epochs.append(granted.epoch)
        tokens.append(granted.token)
    assert epochs[0] != epochs[1]
    assert tokens == sorted(set(tokens))


def test_tokens_grow_over_a_restore_also_where_a_clock_is_behind(
    server: EtcdServer, another: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = another()
    work(old, 3)
    old.store.give(old.key, old.claim, None, soon())
    snapshot = server.snapshot()
    held = work(old, 30)
    server.restore(snapshot)
    wall = clock.wall
    monkeypatch.setattr("incumbent.clock.wall", lambda: wall() - 86_400)
    assert another().take().token > held.token


def write(server: EtcdServer, times: int) -> None:
    """Each is a revision."""
    body = json.dumps({"key": "c29tZXRoaW5n", "value": "bW9yZQ=="})
    with closing(HTTPConnection(server.endpoint, timeout=60)) as connection:
        for _ in range(times):
            connection.request("POST", "/v3/kv/put", body)
            assert json.load(connection.getresponse())["header"]


def test_the_first_token_is_the_clocks_however_much_was_written_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster's age must not put its tokens ahead, for with the data it is forgotten."""
    wall = clock.wall()
    monkeypatch.setattr("incumbent.clock.wall", lambda: wall)
    with EtcdServer() as server:
        write(server, 200)
        with party(f"{server.url}?restart_wait=0") as one:
            assert 0 < one.take().token - int(wall * 1e6) < 100


def test_the_lock_of_a_client_is_lost_after_a_restore_and_acquired_again_after_the_wait(
    server: EtcdServer,
) -> None:
    with Client(server.store_url(), namespace="faults") as client:
        client.lock("job", ttl="2s", timeout=20).acquire().release()
        snapshot = server.snapshot()
        etcd_lease = client.lock("job", ttl="2s", timeout=20).acquire()
        server.restore(snapshot)
        with pytest.raises(LeaseLost):
            etcd_lease.wait_lost(20)
            etcd_lease.check()
        again = client.lock("job", ttl="2s", timeout=20).acquire()
        assert again.fencing_token > etcd_lease.fencing_token
        again.release()


def test_a_restart_that_keeps_everything_is_no_restore(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    old = another()
    held = work(old, 20)
    for _ in range(3):
        server.restart()
        assert renewed(old, held).__class__.__name__ == "Renewed"
        new = another(WAIT, key=Key("faults", new_claim()))
        assert work(new, 2).epoch == held.epoch


def test_doctor_says_that_a_cluster_was_restored_and_when_it_grants(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    work(another(), 3)
    assert "it has not been restored" in findings(another())["ok"]
    server.restore(server.snapshot())
    one = another(WAIT)
    assert "is of an earlier incarnation" in findings(one)["warning"]
    refused_for_now(one)
    assert "it grants in" in findings(another(WAIT))["warning"]


def findings(one: Party) -> dict[str, str]:
    """What doctor says, by its levels."""
    found = one.engine.diagnose(15.0, soon(5))
    return {level: "; ".join(what for it, what, _ in found if it == level) for level, *_ in found}


def test_what_another_process_found_out_counts_on_connections_that_live_on(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    """A proxy may keep them while the cluster behind it is another one: the marker is compared."""
    old, waiter = another(), another()
    held = work(old, 1)
    waiter.refused()
    marker = json.loads(server.etcdctl("get", "--print-value-only", MARKER))
    found_out = marker | {"epoch": "another", "base": marker["base"] + 10**6}
    before = server.requests()["Status"]
    server.etcdctl("put", MARKER, json.dumps(found_out))
    outcome = waiter.store.take(Key("faults", "free"), new_claim(), ASK, soon())
    assert isinstance(outcome, Granted)
    assert outcome.epoch == "another"
    assert outcome.token > held.token + 900_000
    assert renewed(old, held) == Gone("store_restarted")
    # Nobody was asked for its status because of a new connection: each has learnt it once.
    assert server.requests()["Status"] - before <= 2


# -- what brings back the log as well


def test_a_holder_whose_cluster_was_put_back_is_told_at_its_next_renewal(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    """Also where the next holder was granted at the very revision that was the old one's."""
    old, other = another(), another()
    work(old, 2)
    work(other, 1, Key("faults", "warm"))
    old.store.give(old.key, old.claim, None, soon())
    copy = server.copy_data()
    held = work(old, 1)
    server.put_back(copy)
    work(other, 1)
    assert isinstance(renewed(old, held), Gone)


def test_whoever_has_seen_a_later_state_notices_that_an_earlier_one_was_put_back(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    old, waiter = another(), another()
    work(old, 2)
    old.store.give(old.key, old.claim, None, soon())
    copy = server.copy_data()
    held = work(old, 10)
    assert waiter.refused().reason == "held"
    server.put_back(copy)
    wait_from_now_on(waiter)
    assert 50 < refused_for_now(waiter) <= 60
    # From now on new processes know it too, and tokens grow.
    assert 50 < refused_for_now(another(WAIT)) <= 60
    assert another().take().token > held.token


def test_a_new_process_is_told_by_an_operator_who_puts_a_folder_back(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    """It cannot know by itself; removing the marker, as the documentation says, makes it wait."""
    old = another()
    work(old, 2)
    old.store.give(old.key, old.claim, None, soon())
    copy = server.copy_data()
    held = work(old, 10)
    server.put_back(copy)
    server.etcdctl("del", MARKER)
    assert 50 < refused_for_now(another(WAIT)) <= 60
    assert another().take().token > held.token
    assert renewed(old, held) == Gone("store_restarted")


def test_a_lagging_member_that_is_made_the_cluster_is_noticed() -> None:
    """`--force-new-cluster`: its log goes on where it was, without what the others had."""
    with EtcdCluster() as cluster, ExitStack() as stack:
        lagging = cluster.followers[0]
        others = [member for member in cluster.members if member is not lagging]
        make_old(others[0])
        old, waiter, new = (
            Party(stack.enter_context(party(url_of(members))).engine, Key("faults", "job"))
            for members in (others, [*others, lagging], [lagging])
        )
        first = work(old, 2)
        old.store.give(old.key, first.claim, first.token, soon())
        lagging.freeze()
        held = work(old, 20)
        assert waiter.refused().reason == "held"
        for member in others:
            member.kill()
        lagging.kill()
        lagging.options.append("--force-new-cluster")
        lagging.start()
        assert isinstance(waiter.engine, EtcdEngine)
        waiter.engine._site.restart_wait = 60.0
        assert 50 < refused_for_now(waiter) <= 60
        # The other process learns of it by the marker, and tokens grow.
        assert work(new, 1, Key("faults", "another")).token > held.token


# -- another cluster


def test_the_marker_of_another_cluster_is_not_believed(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    """Keys that were mirrored into a cluster of its own: only the cluster's id tells."""
    with EtcdServer() as origin:
        with party(origin.store_url()) as there:
            first = Party(there.engine, Key("faults", "job"))
            epoch = work(first, 1).epoch
        marker = origin.etcdctl("get", "--print-value-only", MARKER).strip()
    for _ in range(5):
        # Entries of the log that write nothing: by its numbers it could be a later state.
        server.etcdctl("lease", "grant", "60")
    server.etcdctl("put", MARKER, marker)
    assert 50 < refused_for_now(another(WAIT)) <= 60
    assert another().take().epoch != epoch


# -- the longest ttl


def test_the_wait_after_a_restore_counts_the_longest_ttl_that_was_asked_for(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    old = another()
    outcome = old.store.take(old.key, old.claim, Ask(90.0, "me"), soon())
    assert isinstance(outcome, Granted)
    server.restore(server.snapshot())
    one = another()
    assert isinstance(one.engine, EtcdEngine)
    one.engine._site.restart_wait = None
    with pytest.raises(StoreUnavailable) as caught:
        one.store.take(Key("faults", "else"), new_claim(), Ask(2.0, "me"), soon())
    assert caught.value.retry_after is not None
    assert 80 < caught.value.retry_after <= 90


def noted_ttl(server: EtcdServer) -> float:
    """The longest ttl that a new process would learn."""
    noted = server.etcdctl("get", "--print-value-only", f"{MARKER}-ttl")
    return float(json.loads(noted)["ttl"]) if noted else 0.0


@pytest.mark.left(tiers.MEET, "all data-60.0", "what was written since the snapshot-90.0")
@pytest.mark.parametrize("ttl", [60.0, 90.0])
@pytest.mark.parametrize("lost", ["all data", "what was written since the snapshot"])
def test_a_long_ttl_is_noted_in_each_incarnation(
    server: EtcdServer, another: Callable[..., Party], lost: str, ttl: float
) -> None:
    old, snapshot = another(), server.snapshot()
    held = old.take(ask=Ask(60.0, "me"))
    Party(old.engine).take(ask=Ask(70.0, "me"))
    if lost == "all data":
        server.restart(empty=True)
    else:
        server.restore(snapshot)
    assert renewed(old, held) == Gone("store_restarted")
    Party(old.engine).take(ask=Ask(ttl, "me"))
    assert noted_ttl(server) == ttl


def test_a_ttl_is_granted_only_once_it_is_noted_whoever_notes_another_at_the_same_moment(
    server: EtcdServer, another: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = another(), another()
    assert isinstance(one.engine, EtcdEngine)
    operations = one.engine.store().operations
    call, note = operations.send_to_any_member, b64("/incumbent!born-ttl").encode()

    async def overtaken(request: GatewayRequest, until: float) -> Any:
        if request.path == TXN and note in request.body:
            monkeypatch.undo()
            other.store.take(Key("faults", "shorter"), new_claim(), Ask(60.0, "you"), soon())
        return await call(request, until)

    monkeypatch.setattr(operations, "send_to_any_member", overtaken)
    one.take(ask=Ask(90.0, "me"))
    assert noted_ttl(server) == 90.0


@pytest.mark.left(tiers.FORMS, "2.0", "40.0")
@pytest.mark.parametrize("ttl", [2.0, 15.0, 40.0])
def test_a_new_cluster_grants_nothing_for_the_default_ttl_at_least(
    server: EtcdServer, another: Callable[..., Party], ttl: float
) -> None:
    server.restart(empty=True)
    one = another()
    assert isinstance(one.engine, EtcdEngine)
    one.engine._site.restart_wait = None
    with pytest.raises(StoreUnavailable) as caught:
        one.store.take(one.key, one.claim, Ask(ttl, "me"), soon())
    assert caught.value.retry_after is not None
    assert max(15.0, ttl) - 10 < caught.value.retry_after <= max(15.0, ttl)
    assert "restart_wait=0" in str(caught.value)


# -- another format


def test_the_marker_of_another_format_is_refused_for_good_and_left_alone(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    marker = json.dumps({"format": 2, "epoch": "e", "base": 5, "cluster": "1", "at": 1.5})
    server.etcdctl("put", MARKER, marker)
    one = another()
    asked: list[Callable[[], object]] = [
        one.take,
        lambda: one.store.give(one.key, one.claim, None, soon()),
        lambda: one.store.renew([Renewal(one.key, one.claim, 7, 10.0, "e")], soon()),
    ]
    for ask in asked:
        with pytest.raises(StoreUnavailable, match="format 2, and this version speaks 1") as caught:
            ask()
        assert caught.value.permanent
        assert f"etcdctl del '{MARKER}'" in str(caught.value)
    assert server.etcdctl("get", "--print-value-only", MARKER).strip() == marker


def test_a_lease_of_another_format_is_refused_for_good_and_left_alone(
    server: EtcdServer, another: Callable[..., Party]
) -> None:
    one = another()
    work(one, 1, Key("faults", "warm"))
    key = "/incumbent/faults/job/held"
    fields = {"claim": "a" * 32, "holder": "old", "ttl": 9.0, "since": 1.0, "meta": ""}
    value = json.dumps({"format": 2, **fields})
    server.etcdctl("put", key, value)
    for ask in (one.take, lambda: one.store.read(one.key, soon())):
        with pytest.raises(StoreUnavailable, match="has format 2") as caught:
            ask()
        assert caught.value.permanent
    assert server.etcdctl("get", "--print-value-only", key).strip() == value
    # Whoever is not of ours at all has no format.
    server.etcdctl("put", key, "somebody's")
    assert one.refused().holders[0].foreign
