"""A take that is held up on its way and delivered long after its claim was given up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from incumbent import Client, OutcomeUnknown, Policy, clock
from incumbent.model import Ask, Gone, Granted, Parting, Refused, Released, Slot
from tests.stores.etcd.world import ASK, Party, new_claim, party, soon
from tests.support.etcd import EtcdServer
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.server

TAKE = b"/v3/kv/txn"


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy(etcd_server.port) as one:
        yield one


@pytest.fixture
def other(etcd_server: EtcdServer) -> Iterator[Party]:
    with party(etcd_server.store_url()) as one:
        yield one


def url_of(proxy: FaultProxy) -> str:
    return f"etcd://127.0.0.1:{proxy.port}?restart_wait=0"


def test_a_take_that_arrives_after_ttl_and_timeout_leaves_no_lease_though_others_live(
    proxy: FaultProxy, other: Party
) -> None:
    """It attached to the etcd lease of its process, whose other leases kept it alive for ever."""
    with Client(url_of(proxy), namespace=other.key.namespace) as client:
        kept = client.lock("kept", ttl="3s", timeout=20).acquire()
        proxy.hold(TAKE)
        since = clock.now()
        policy = Policy("3s", request_timeout="0.9s")
        with pytest.raises(OutcomeUnknown):
            client.lock(other.key.name, timeout=0, policy=policy).acquire()
        assert proxy.holds
        # For as long as the claim was owed before: one ttl and one request_timeout.
        time.sleep(max(0.0, since + 3.0 + 0.9 + 0.3 - clock.now()))
        before = other.store.read(other.key, soon()).seen
        proxy.heal()
        time.sleep(0.3)
        record = other.store.read(other.key, soon())
        assert (record.holdings, record.seen) == ((), before)
        kept.check()
        other.take()
        kept.release()


def test_a_late_take_uses_no_slot(proxy: FaultProxy, other: Party) -> None:
    slot = Slot("today", 3600.0)
    with party(url_of(proxy)) as mine:
        mine.take(new_claim())
        claim = new_claim()
        late = Party(mine.engine, other.key, claim)
        proxy.hold(b'"request_put"')
        with pytest.raises(OutcomeUnknown):
            late.store.take(late.key, claim, Ask(10.0, "h", slot=slot), soon(1.5))
        assert (
            late.store.give(late.key, claim, None, soon(), parting=Parting(slot=slot.name))
            == Gone()
        )
        proxy.heal()
        time.sleep(0.2)
        assert other.store.read(other.key, soon()).slots == {}
        outcome = other.store.take(other.key, other.claim, Ask(10.0, "h", slot=slot), soon())
        assert isinstance(outcome, Granted)


def test_the_claim_that_was_given_up_is_refused_and_no_other(other: Party) -> None:
    claim = new_claim()
    assert other.store.give(other.key, claim, None, soon()) == Gone()
    outcome = other.store.take(other.key, claim, ASK, soon())
    assert isinstance(outcome, Refused)
    assert (outcome.reason, outcome.holders) == ("closed", ())
    granted = other.take()
    assert other.store.give(other.key, other.claim, granted.token, soon()) == Released()


def test_a_certain_release_leaves_no_mark(etcd_server: EtcdServer, other: Party) -> None:
    granted = other.take()
    other.store.give(other.key, other.claim, granted.token, soon())
    marks = f"/incumbent/{other.key.namespace}!x/{other.key.name}/"
    assert etcd_server.keys(marks) == []
    other.store.give(other.key, other.claim, None, soon())
    assert etcd_server.keys(marks) == [f"{marks}{other.claim}"]
