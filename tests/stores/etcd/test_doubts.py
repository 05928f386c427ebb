"""A doubt stays one: no later failure of a request says what became of its first try."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Ask, Key, Parting, Renewed
from incumbent.net.pool import Broken
from incumbent.stores.etcd import open_etcd
from incumbent.stores.etcd.dialect import _EtcdGive
from incumbent.stores.etcd.kv import TXN, GatewayRequest
from incumbent.stores.etcd.site import GatewayError, LeaseMissing, OtherIncarnation
from incumbent.stores.plan import run_blocking
from tests.stores.etcd.world import new_claim, party, soon
from tests.support.etcd import EtcdServer
from tests.support.proxy import FaultProxy

MISSING = "etcdserver: requested lease not found"
Call = Callable[[], Any]


def call_that_meets(
    monkeypatch: pytest.MonkeyPatch, *failures: Exception, repeatable: bool = True
) -> tuple[Call, list[Exception]]:
    """A request whose tries end so, one after the other; and those that are left."""
    client, left = open_etcd("etcd://e1,e2,e3").store().operations, list(failures)

    async def fail(*_: object) -> None:
        raise left.pop(0)

    monkeypatch.setattr(client, "_send_to", fail)
    until = clock.now() + 5
    return lambda: run_blocking(
        client.send_to_any_member(GatewayRequest(TXN, b"", repeatable), until)
    ), left


@pytest.mark.parametrize("then", [OtherIncarnation("e1"), GatewayError(MISSING)])
def test_a_request_that_may_have_been_carried_out_stays_in_doubt(
    monkeypatch: pytest.MonkeyPatch, then: Exception
) -> None:
    lost = Broken("cut", sent=True)
    never_sent = Broken("not for this incarnation", sent=False)
    call, left = call_that_meets(monkeypatch, lost, then, never_sent)
    with pytest.raises(OutcomeUnknown):
        call()
    assert left == [never_sent]


@pytest.mark.parametrize(
    ("first", "kind"),
    [(OtherIncarnation("e1"), OtherIncarnation), (GatewayError(MISSING), LeaseMissing)],
)
def test_without_an_earlier_try_it_is_certain(
    monkeypatch: pytest.MonkeyPatch, first: Exception, kind: type[Exception]
) -> None:
    call, _ = call_that_meets(monkeypatch, Broken("refused", sent=False), first)
    with pytest.raises(kind):
        call()


@pytest.mark.server
def test_a_release_whose_answer_was_lost_with_its_cluster_is_in_doubt(
    etcd_server: EtcdServer,
) -> None:
    """Its second try meets another cluster, which is not asked: that says nothing of the first."""
    with (
        EtcdServer() as another,
        FaultProxy(etcd_server.port) as proxy,
        party(f"etcd://127.0.0.1:{proxy.port}?restart_wait=0") as one,
    ):
        granted = one.take()
        proxy.target = ("127.0.0.1", another.port)
        proxy.close_after_request(b"/v3/kv/txn")
        with pytest.raises(OutcomeUnknown):
            one.store.give(one.key, one.claim, granted.token, soon())
        assert another.keys(f"/incumbent/{one.key.namespace}") == []
        proxy.target = ("127.0.0.1", etcd_server.port)
        assert one.store.read(one.key, soon()).holdings == ()


@pytest.mark.server
def test_a_lease_whose_move_was_in_doubt_ends_in_its_time_though_others_live(
    etcd_server: EtcdServer,
) -> None:
    """It moved to the etcd lease of others, which they keep alive, and nobody heard of it."""
    with (
        FaultProxy(etcd_server.port) as proxy,
        party(f"etcd://127.0.0.1:{proxy.port}?restart_wait=0") as one,
        party(etcd_server.store_url()) as other,
    ):
        others = replace(one, key=one.key._replace(name="others"), claim=new_claim())
        renewal = others.renewal(others.take(ask=Ask(2.0, "me")), 2.0)
        granted = one.take(ask=Ask(1.0, "me"))
        proxy.hold(b"request_put")
        with pytest.raises(OutcomeUnknown):
            one.store.renew([one.renewal(granted, 2.0)], soon(0.3))
        proxy.heal()
        sent = clock.now()
        held = True
        while held and clock.now() < sent + 10.0:
            assert one.store.renew([renewal], soon()) == [Renewed()]
            time.sleep(0.05)
            held = other.store.read(one.key, soon()).holdings != ()
        assert not held
        assert clock.now() > sent + 1.5


@pytest.mark.server
def test_a_move_whose_first_answer_was_lost_is_proved_by_the_second(
    etcd_server: EtcdServer,
) -> None:
    with (
        FaultProxy(etcd_server.port) as proxy,
        party(f"etcd://127.0.0.1:{proxy.port}?restart_wait=0") as one,
    ):
        granted = one.take(ask=Ask(1.0, "me"))
        proxy.close_after_request(b"request_put")
        assert one.store.renew([one.renewal(granted, 2.0)], soon()) == [Renewed()]
        assert one.store.renew([one.renewal(granted, 2.0)], soon()) == [Renewed()]


def test_a_give_whose_key_changes_before_each_try_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def returns(value: object) -> Callable[..., Any]:
        def program(*_: object) -> Any:
            yield from ()
            return value

        return program

    cluster = SimpleNamespace(
        sessions=None, prefix="/p", site=SimpleNamespace(where="etcd://e1"),
        identify=returns(SimpleNamespace(token_base=0)),
    )  # fmt: skip
    give = _EtcdGive(cast(Any, cluster), Key("n", "job"), "claim", 7, Parting())
    monkeypatch.setattr(give, "_held", returns("state"))
    monkeypatch.setattr(give, "_give", returns(False))
    with pytest.raises(StoreUnavailable, match="the key of 'job' was changed before each try"):
        next(give.run())
