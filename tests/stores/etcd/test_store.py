"""Leases that share one etcd lease, on a real server: each ends by itself, and all cost little."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import clock
from incumbent.errors import OutcomeUnknown
from incumbent.model import Ask, Gone, Granted, Key, Released, Renewal, Renewed, TakeOutcome
from incumbent.stores.base import Store
from incumbent.stores.etcd import open_etcd
from incumbent.stores.etcd.incarnation import Cluster, ClusterMarker
from incumbent.stores.etcd.kv import as_of
from incumbent.stores.etcd.renewing import check_all
from incumbent.stores.etcd.sessions import ClaimState, Session
from incumbent.stores.etcd.taking import EtcdTake
from tests.support.etcd import EtcdServer
from tests.support.proxy import FaultProxy

TTL = 2.0
INCARNATION = ClusterMarker("e", 0, "bWFya2Vy", 0.0)
SPACE = f"unit-{secrets.token_hex(4)}"


@pytest.fixture
def mine(etcd_server: EtcdServer) -> Iterator[Store]:
    engine = open_etcd(etcd_server.store_url())
    yield engine.store()
    engine.store().close()


@pytest.fixture
def other(etcd_server: EtcdServer) -> Iterator[Store]:
    engine = open_etcd(etcd_server.store_url())
    yield engine.store()
    engine.store().close()


def soon() -> float:
    return clock.now() + 5


def key() -> Key:
    return Key(SPACE, secrets.token_hex(6))


def take(store: Store, name: Key, claim: str = "", ttl: float = TTL) -> TakeOutcome:
    return store.take(name, claim or secrets.token_hex(16), Ask(ttl, "somebody"), soon())


def granted(store: Store, name: Key, claim: str = "", ttl: float = TTL) -> Granted:
    outcome = take(store, name, claim, ttl)
    assert isinstance(outcome, Granted), outcome
    return outcome


def renewal(name: Key, grant: Granted, ttl: float = TTL) -> Renewal:
    return Renewal(name, grant.claim, grant.token, ttl, grant.epoch)


def keep_alive(store: Store, name: Key, grant: Granted, seconds: float) -> None:
    until = clock.now() + seconds
    while clock.now() < until:
        assert store.renew([renewal(name, grant)], soon()) == [Renewed()]
        time.sleep(0.2)


@pytest.mark.server
def test_a_claim_that_is_not_renewed_ends_though_its_session_lives(
    mine: Store, other: Store
) -> None:
    kept, left = key(), key()
    keeper, forgotten = granted(mine, kept), granted(mine, left)
    assert not isinstance(take(other, left), Granted)
    keep_alive(mine, kept, keeper, TTL + 1.0)
    assert granted(other, left).token > forgotten.token
    assert mine.renew([renewal(left, forgotten), renewal(kept, keeper)], soon()) == [
        Gone(),
        Renewed(),
    ]


@pytest.mark.server
def test_a_claim_that_another_process_adopted_outlives_what_its_first_one_remembers(
    mine: Store, other: Store
) -> None:
    kept, parted = key(), key()
    keeper, given = granted(mine, kept), granted(mine, parted)
    adopted = granted(other, parted, given.claim)
    assert adopted.token == given.token
    until = clock.now() + TTL + 1.0
    while clock.now() < until:
        assert mine.renew([renewal(kept, keeper)], soon()) == [Renewed()]
        assert other.renew([renewal(parted, adopted)], soon()) == [Renewed()]
        time.sleep(0.2)


@pytest.mark.server
def test_a_take_of_which_nobody_heard_ends_though_its_session_lives(
    etcd_server: EtcdServer, other: Store
) -> None:
    with FaultProxy(etcd_server.port) as proxy:
        store = open_etcd(f"etcd://127.0.0.1:{proxy.port}?restart_wait=0").store()
        kept, lost = key(), key()
        keeper = granted(store, kept)
        proxy.close_after_request(b"/v3/kv/txn")
        with pytest.raises(OutcomeUnknown):
            take(store, lost)
        assert not isinstance(take(other, lost), Granted)
        keep_alive(store, kept, keeper, TTL + 1.0)
        granted(other, lost)
        store.close()


@pytest.mark.server
def test_a_take_that_never_arrived_does_not_cost_the_next_one_its_lease(
    etcd_server: EtcdServer, other: Store
) -> None:
    store, name = open_etcd(etcd_server.store_url()).store(), key()
    kept = granted(store, name)
    sessions = store.operations.cluster.sessions
    session = sessions.claims[name, kept.claim].session
    sessions.remember(ClaimState(name, "0" * 32, session, clock.now(), "me", 0.0, TTL))
    keep_alive(store, name, kept, TTL / 4)
    assert not isinstance(take(other, name), Granted)
    assert (name, "0" * 32) not in sessions.claims
    store.close()


@pytest.mark.server
def test_hundreds_of_leases_cost_one_keep_alive(etcd_server: EtcdServer, mine: Store) -> None:
    names = [key() for _ in range(300)]
    # Whoever is the first on the server writes the marker, and what comes before that.
    granted(mine, key(), ttl=30.0)
    before = etcd_server.requests()
    batch = [renewal(name, granted(mine, name, ttl=30.0), 30.0) for name in names]
    taken = etcd_server.requests()
    assert mine.renew(batch, soon()) == [Renewed()] * len(batch)
    after = etcd_server.requests()
    # One for the leases, one for what is kept of them.
    assert taken["LeaseGrant"] - before.get("LeaseGrant", 0) <= 2
    # Two that look.
    assert taken["Txn"] - before["Txn"] <= len(names) + 2
    assert after.get("LeaseKeepAlive", 0) - taken.get("LeaseKeepAlive", 0) == 1
    assert after["Txn"] - taken["Txn"] <= 3


def take_of(name: Key, claim: str, revision: int = 0) -> tuple[Cluster, EtcdTake, ClaimState]:
    cluster = open_etcd("etcd://e1").store().operations.cluster
    state = ClaimState(name, claim, Session("7", 2, 0.0), 0.0, "me", 0.0, 2.0, revision=revision)
    take = EtcdTake(cluster, name, claim, Ask(2.0, "me"))
    take.incarnation = INCARNATION
    return cluster, take, state


def test_every_proof_reads_something_that_must_be_linearizable() -> None:
    """Comparisons alone are answered by a member that lost its cluster."""
    cluster, take, held = take_of(key(), "c", 5)
    again = take.repeat(held, "7", write=False)
    for proof in (check_all(cluster, INCARNATION, [held]), again):
        assert proof.body.count(b"request_range") == 2
        assert b"serializable" not in proof.body


def test_a_take_that_is_repeated_moves_its_key_only_from_where_it_was_seen() -> None:
    """Else one that comes late moves it back to an etcd lease that nobody keeps alive."""
    _, take, held = take_of(key(), "c", 5)
    assert b'"target":"LEASE","lease":"6"' in take.repeat(held, "6", write=True).body


def test_whoever_takes_a_name_writes_the_same_key() -> None:
    """Etcd looks at each key that ever was in a range: a key of each claim would slow all down."""
    name, keys = key(), []
    for claim in ("a" * 32, "b" * 32):
        _, take, held = take_of(name, claim)
        asked = json.loads(take.request(held, "").body)
        keys.append(asked["success"][0]["request_put"]["key"])
    assert keys[0] == keys[1]


@given(st.sampled_from(["cluster_id", "raft_term", "revision"]))
def test_an_answer_of_another_state_is_not_taken_for_the_same(field: str) -> None:
    header = {"cluster_id": "1", "raft_term": "2", "revision": "3"}
    known = as_of({"header": header})
    assert known is not None
    assert as_of({"header": dict(header)}) == known
    assert as_of({"header": header | {field: "9"}}) != known
    assert as_of({"header": header}, dialled=1) != known
    del header["revision"]
    # One that does not say of which state it is proves nothing of others.
    assert as_of({"header": header}) is None


@pytest.mark.server
def test_a_pair_is_two_requests_and_a_new_connection_one_more(own_etcd: EtcdServer) -> None:
    engine = open_etcd(own_etcd.store_url())
    store, name = engine.store(), key()

    def cost_of_a_pair() -> dict[str, int]:
        before = own_etcd.requests()
        # Long ones: a busy machine could come to a keepalive of short ones.
        grant = granted(store, name, ttl=60.0)
        assert store.give(name, grant.claim, grant.token, soon()) == Released()
        after = own_etcd.requests()
        return {it: n - before.get(it, 0) for it, n in after.items() if n != before.get(it, 0)}

    cost_of_a_pair()
    assert cost_of_a_pair() == {"Txn": 2}
    store.close()
    assert cost_of_a_pair() == {"Txn": 2, "Status": 1}
    assert cost_of_a_pair() == {"Txn": 2}
    store.close()
