"""Missing rights, dead tokens, edited objects: a clear error, and nothing is granted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Field, Gone, Granted, Key, Refused, Renewed, Stored, Unproved
from incumbent.net.tls import Tls
from incumbent.stores.kubernetes.engine import KubernetesEngine
from incumbent.stores.kubernetes.login import Login
from incumbent.stores.kubernetes.objects import MARKER, RECORD, object_name, opened
from incumbent.stores.kubernetes.site import KubernetesSite
from incumbent.stores.url import Endpoint
from tests import tiers
from tests.stores.kubernetes.world import a_namespace, open_at, url_of
from tests.stores.party import Party, new_claim, soon
from tests.support.etcd_tls import EtcdTls
from tests.support.kubernetes import ApiServer, Lease
from tests.support.waiting import eventually


def fails(party: Party) -> StoreUnavailable:
    """The error of a take, which certainly did nothing."""
    with pytest.raises(StoreUnavailable) as caught:
        party.take(new_claim())
    assert not isinstance(caught.value, OutcomeUnknown)
    return caught.value


# -- rights ----------------------------------------------------------------------------------------


@pytest.mark.left(tiers.FORMS, "create")
@pytest.mark.parametrize("verb", ["get", "create"])
def test_a_missing_right_is_named_with_the_commands_that_give_it(
    own_api_server: ApiServer, verb: str
) -> None:
    own_api_server.deny(verb)
    party = Party(open_at(url_of(own_api_server, "default")))
    error = fails(party)
    assert error.permanent
    assert f"may not {verb} leases in default" in str(error)
    assert "create role incumbent --verb=get,list,watch,create,update" in str(error)
    assert "--serviceaccount=default:incumbent" in str(error)
    party.store.close()


def test_who_may_not_watch_is_told_and_may_take_all_the_same(
    own_api_server: ApiServer, alone: Party
) -> None:
    granted = alone.take()
    refused = alone.refused()
    own_api_server.deny("watch")
    with pytest.raises(StoreUnavailable, match="may not watch leases in default"):
        alone.store.wait_change(alone.key, refused.seen, soon(30))
    assert alone.store.renew([alone.renewal(granted)], soon()) == [Renewed()]


@pytest.mark.left(tiers.LONG)
def test_a_right_that_is_taken_away_costs_the_lease_its_proof(
    own_api_server: ApiServer, alone: Party
) -> None:
    granted = alone.take()
    own_api_server.deny("update")
    with pytest.raises(StoreUnavailable, match="we may not update leases in default: kubectl"):
        alone.store.renew([alone.renewal(granted)], soon(3))
    own_api_server.allow_all()
    assert alone.store.renew([alone.renewal(granted)], soon()) == [Renewed()]


# -- tokens and certificates -----------------------------------------------------------------------


def test_a_token_that_is_over_is_said_and_is_not_shown(own_api_server: ApiServer) -> None:
    own_api_server.expire_token(own_api_server.token)
    party = Party(open_at(url_of(own_api_server, "default")))
    error = fails(party)
    assert error.permanent
    assert "does not accept our credentials (401)" in str(error)
    assert own_api_server.token not in str(error)
    party.store.close()


def test_a_token_that_was_replaced_is_read_anew_within_the_request(
    own_api_server: ApiServer, tmp_path: Any
) -> None:
    path = tmp_path / "token"
    path.write_text(own_api_server.token)
    place = Endpoint(own_api_server.host, own_api_server.port)
    site = KubernetesSite(
        "kubernetes:///default", place, "", "default", Login(file=str(path)), None, 0.0
    )
    party = Party(KubernetesEngine(site))
    granted = party.take()
    path.write_text(own_api_server.add_token())
    own_api_server.expire_token(own_api_server.token)
    assert party.store.renew([party.renewal(granted)], soon()) == [Renewed()]
    party.store.close()


@pytest.mark.left(tiers.LONG)
def test_a_server_of_another_authority_is_not_asked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tls, others = (EtcdTls(tmp_path_factory.mktemp(name)) for name in ("one", "other"))
    with ApiServer(tls=tls) as server:
        good = Party(open_at(url_of(server, "default")))
        granted = good.take()
        assert good.store.renew([good.renewal(granted)], soon()) == [Renewed()]
        place = Endpoint(server.host, server.port)
        login, trusts = Login(server.token), Tls(str(others.ca))
        bad = Party(
            KubernetesEngine(
                KubernetesSite("kubernetes://x/default", place, "", "default", login, trusts, 0.0)
            )
        )
        error = fails(bad)
        assert error.permanent
        assert "certificate verify failed" in str(error)
        for party in (good, bad):
            party.store.close()


# -- namespaces ------------------------------------------------------------------------------------


def test_a_namespace_that_is_not_there_is_said(api_server: ApiServer) -> None:
    party = Party(open_at(url_of(api_server, "nowhere")))
    error = fails(party)
    assert error.permanent
    assert "there is no namespace nowhere: kubectl create namespace nowhere" in str(error)
    party.store.close()


def test_a_namespace_made_anew_grants_nothing_for_a_while_and_holders_notice(
    own_api_server: ApiServer,
) -> None:
    name = a_namespace(own_api_server)
    party = Party(open_at(url_of(own_api_server, name)))
    stranger = Party(open_at(url_of(own_api_server, name, wait=60.0)), party.key)
    granted = party.take()
    # Then the marker is old enough for the stranger.
    own_api_server.set_clock(3600.0)
    assert isinstance(stranger.refused(), Refused)
    own_api_server.delete_namespace(name)
    own_api_server.create_namespace(name)
    with pytest.raises(StoreUnavailable, match="was made anew, or restored,"):
        stranger.take()
    assert own_api_server.lease(name, object_name(party.key)) is None
    (outcome,) = party.store.renew([party.renewal(granted)], soon())
    assert isinstance(outcome, Gone)
    for each in (party, stranger):
        each.store.close()


def test_who_meets_a_namespace_that_another_process_has_marked_anew_marks_it_no_more(
    own_api_server: ApiServer,
) -> None:
    """If each did, each would have the others wait once more, without an end."""
    name = a_namespace(own_api_server)
    first, second = (Party(open_at(url_of(own_api_server, name))) for _ in range(2))
    for each in (first, second):
        each.take()
    own_api_server.delete_namespace(name)
    own_api_server.create_namespace(name)
    for each in (first, second):
        each.key = Key("default", new_claim())
        eventually(partial(is_granted, each))
    marker = own_api_server.lease(name, MARKER)
    assert marker is not None
    assert opened(marker["metadata"]["annotations"][RECORD])["turn"] == 0
    for each in (first, second):
        each.store.close()


def is_granted(party: Party) -> bool:
    try:
        return isinstance(party.take(), Granted)
    except StoreError:
        return False


# -- objects ---------------------------------------------------------------------------------------


def edit(server: ApiServer, namespace: str, party: Party, change: Callable[[Lease], None]) -> None:
    server.edit(namespace, object_name(party.key), change)


def to(**spec: Any) -> Callable[[Lease], None]:
    return lambda lease: lease["spec"].update(spec)


@pytest.mark.parametrize("holder", ["", "me"])
def test_an_edited_holder_loses_the_lease_and_nobody_is_granted_it_before_its_ttl(
    api_server: ApiServer, place: str, one: Party, other: Party, holder: str
) -> None:
    granted = one.take()
    edit(api_server, place, one, to(holderIdentity=holder))
    assert isinstance(other.refused(), Refused)
    assert one.store.renew([one.renewal(granted)], soon()) == [Gone()]
    assert isinstance(one.refused(), Refused)


def test_a_deleted_lease_is_free_and_its_holder_notices(
    api_server: ApiServer, place: str, one: Party, other: Party
) -> None:
    granted = one.take()
    api_server.delete(place, object_name(one.key))
    assert one.store.renew([one.renewal(granted)], soon()) == [Gone()]
    assert other.take(new_claim()).token > granted.token


def _broken(lease: Lease) -> None:
    lease["metadata"]["annotations"][RECORD] += " "


def _of_another_format(lease: Lease) -> None:
    text = lease["metadata"]["annotations"][RECORD]
    lease["metadata"]["annotations"][RECORD] = f"9{text[1:]}"


def _owned(lease: Lease) -> None:
    lease["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "1"}
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_broken, "was cut short, or edited"),
        (_of_another_format, "has format 9"),
        (_owned, "is owned by Node n1"),
        (to(strategy="OldestEmulationVersion"), "has a strategy"),
    ],
)
def test_an_object_that_is_not_as_we_write_it_is_granted_to_nobody(
    api_server: ApiServer,
    place: str,
    one: Party,
    other: Party,
    change: Callable[[Lease], None],
    why: str,
) -> None:
    granted = one.take()
    edit(api_server, place, one, change)
    before = api_server.lease(place, object_name(one.key))
    error = fails(other)
    assert error.permanent
    assert why in str(error)
    (outcome,) = one.store.renew([one.renewal(granted)], soon(2))
    assert isinstance(outcome, Unproved)
    with pytest.raises(StoreError, match=why):
        other.store.read(one.key, soon())
    assert api_server.lease(place, object_name(one.key)) == before


def test_what_does_not_fit_is_refused_and_what_was_there_stays(one: Party) -> None:
    granted = one.take()
    kept = one.store.put(one.key, "small", b"1", None, soon())
    assert isinstance(kept, Stored)
    with pytest.raises(StoreUnavailable, match="a Lease has room for 250,000") as caught:
        one.store.put(one.key, "large", b"x" * 200_000, None, soon())
    assert caught.value.permanent
    record = one.store.read(one.key, soon())
    assert record.fields == {"small": Field(b"1", kept.version)}
    assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


# -- an etcd that was restored ---------------------------------------------------------------------


def test_an_older_etcd_grants_nothing_for_a_while_and_holders_notice(
    own_api_server: ApiServer,
) -> None:
    party = Party(open_at(url_of(own_api_server, "default")))
    knows = Party(open_at(url_of(own_api_server, "default", wait=60.0)), party.key)
    party.store.give(party.key, party.claim, party.take().token, soon())
    # Then the namespace's marker is old enough for `knows`.
    own_api_server.set_clock(3600.0)
    backup = own_api_server.snapshot()
    granted = party.take()
    assert isinstance(knows.refused(), Refused)
    own_api_server.restore(backup)
    with pytest.raises(StoreError, match=r"older state than it did|made anew, or restored"):
        knows.take()
    with pytest.raises(StoreError, match="made anew, or restored"):
        knows.take()
    outcomes = [party.store.renew([party.renewal(granted)], soon())[0] for _ in range(3)]
    assert outcomes[-1] == Gone("store_restarted")
    assert Renewed() not in outcomes
    for each in (party, knows):
        each.store.close()


@pytest.mark.left(tiers.LONG)
def test_a_clock_that_is_hours_off_changes_nothing(own_api_server: ApiServer, alone: Party) -> None:
    granted = alone.take()
    for ahead in (7200.0, -7200.0):
        own_api_server.set_clock(ahead)
        assert alone.store.renew([alone.renewal(granted)], soon()) == [Renewed()]
        assert isinstance(alone.refused(), Refused)
        again = Party(open_at(url_of(own_api_server, "default")), alone.key)
        assert isinstance(again.refused(), Refused)
        again.store.close()
    alone.store.give(alone.key, alone.claim, granted.token, soon())
    outcome = alone.take(new_claim())
    assert isinstance(outcome, Granted)
    assert outcome.token > granted.token
