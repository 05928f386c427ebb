"""Passwords, tokens that expire, rights on a prefix, certificates: each a clear answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from incumbent import Client, clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Parting, Released, Renewed, Slot
from tests import tiers
from tests.stores.etcd.world import Party, new_claim, party, soon
from tests.support.etcd import EtcdServer
from tests.support.etcd_tls import EtcdTls
from tests.support.pace import BUSY, took

pytestmark = pytest.mark.server

PREFIX = "/billing"
# Not the bare prefix: that would be the right to /billing-archive as well.
RIGHTS = (f"{PREFIX}/", f"{PREFIX}!")


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        server.enable_auth()
        server.add_user("billing", "sesame", *RIGHTS)
        server.add_user("elsewhere", "sesame", "/elsewhere/")
        yield server


@pytest.fixture
def here(guarded: EtcdServer) -> Iterator[Party]:
    with party(guarded.store_url(PREFIX, login="billing:sesame")) as one:
        yield one


def both_sides(one: Party) -> tuple[Callable[[], Granted], Callable[[], Granted]]:
    def blocking() -> Granted:
        return one.take()

    def on_asyncio() -> Granted:
        return asyncio.run(one.take_async())

    return blocking, on_asyncio


def test_rights_on_the_prefix_are_enough_for_everything(here: Party) -> None:
    granted = here.take(ask=Ask(10.0, "h", slot=Slot("s", 5)))
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]
    here.store.put(here.key, "pause", b"{}", None, soon())
    here.store.put(here.key, "pause", None, None, soon())
    assert here.store.scan("faults", here.key.name, soon())
    here.store.wait_change(here.key, here.refused().seen, soon(0.1))
    assert (
        here.store.give(here.key, here.claim, granted.token, soon(), parting=Parting(slot="s"))
        == Released()
    )
    assert not [it for it in here.engine.diagnose(15.0, soon(5)) if it[0] == "error"]


def test_rights_on_another_prefix_are_a_final_error_that_names_the_user_and_the_prefix(
    guarded: EtcdServer,
) -> None:
    with party(guarded.store_url(PREFIX, login="elsewhere:sesame")) as one:
        with pytest.raises(StoreUnavailable, match="permission") as caught:
            one.take()
        assert caught.value.permanent
        assert PREFIX.strip("/") in str(caught.value)


@pytest.mark.parametrize("user", ["billing", "nobody"])
def test_a_wrong_password_is_final_and_does_not_show(guarded: EtcdServer, user: str) -> None:
    with party(guarded.store_url(PREFIX, login=f"{user}:open-wrong")) as one:
        for ask in both_sides(one):
            began = clock.now()
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            assert took(began) < BUSY
            assert caught.value.permanent
            assert "open-wrong" not in f"{caught.value}{caught.value.__cause__!r}"
        assert "open-wrong" not in f"{one.engine!r}{one.engine.url}"


def test_no_password_where_one_is_needed_is_final(guarded: EtcdServer) -> None:
    with party(guarded.store_url(PREFIX)) as one, pytest.raises(StoreUnavailable) as caught:
        one.take()
    assert caught.value.permanent


def test_authentication_may_be_switched_on_and_off_under_a_holder() -> None:
    with EtcdServer() as server, party(server.store_url(PREFIX, login="billing:sesame")) as one:
        granted = one.take()
        server.enable_auth()
        server.add_user("billing", "sesame", *RIGHTS)
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        server.etcdctl("auth", "disable")
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()


def test_a_password_changed_later_is_an_outage_that_may_pass() -> None:
    with EtcdServer(["--auth-token-ttl", "1"]) as server:
        server.enable_auth()
        server.add_user("billing", "sesame", *RIGHTS)
        with party(server.store_url(PREFIX, login="billing:sesame")) as one:
            one.take()
            server.etcdctl("user", "delete", "billing")
            server.etcdctl("user", "add", "billing:changed")
            server.etcdctl("user", "grant-role", "billing", "billing")
            time.sleep(2.2)
            with pytest.raises(StoreUnavailable) as caught:
                one.take()
            assert not caught.value.permanent


@pytest.mark.left(tiers.LONG)
def test_a_token_that_expired_is_renewed_unseen() -> None:
    with EtcdServer(["--auth-token-ttl", "1"]) as server:
        server.enable_auth()
        server.add_user("billing", "sesame", *RIGHTS)
        with party(server.store_url(PREFIX, login="billing:sesame")) as one:
            granted = one.take()
            # etcd looks for old tokens once a second; using one makes it young again.
            time.sleep(2.2)
            assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
            time.sleep(2.2)
            assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()

            async def later() -> None:
                store = one.engine.async_store()
                await one.take_async(new_claim())
                await asyncio.sleep(2.2)
                await store.read(one.key, soon())
                await store.aclose()

            asyncio.run(later())


def test_a_restart_that_forgot_the_tokens_is_outlived() -> None:
    with EtcdServer() as server:
        server.enable_auth()
        server.add_user("billing", "sesame", *RIGHTS)
        with Client(server.store_url(PREFIX, login="billing:sesame")) as client:
            etcd_lease = client.lock("held", ttl=20).acquire()
            server.restart()
            time.sleep(3)
            assert etcd_lease.valid
            assert etcd_lease.renew() > 0
            etcd_lease.release()


def test_a_restored_cluster_is_noticed_though_it_waits_for_the_entry_that_an_old_token_names() -> (
    None
):
    with EtcdServer() as server:
        server.enable_auth()
        server.add_user("billing", "sesame", *RIGHTS)
        with party(server.store_url(PREFIX, login="billing:sesame")) as one:
            granted = one.take()
            server.restore(server.snapshot())
            with suppress(StoreError):
                one.store.renew([one.renewal(granted)], soon())
            renewed = one.store.renew([one.renewal(granted)], soon())
            assert renewed == [Gone("store_restarted")]
            Party(one.engine).take()


# -- TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> EtcdTls:
    return EtcdTls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def demanding(tls: EtcdTls) -> Iterator[EtcdServer]:
    with EtcdServer(tls=tls.demanding()) as server:
        yield server


def test_a_certificate_of_a_known_authority_is_trusted(tls: EtcdTls) -> None:
    with EtcdServer(tls=tls) as server, party(server.store_url()) as one:
        token = one.take().token
        assert asyncio.run(one.take_async()).token == token


def test_a_certificate_of_an_unknown_authority_is_final(tls: EtcdTls, tmp_path: Path) -> None:
    other = EtcdTls(tmp_path)
    with EtcdServer(tls=tls) as server, party(f"etcds://{server.endpoint}?ca={other.ca}") as one:
        for ask in both_sides(one):
            with pytest.raises(StoreUnavailable, match="certificate") as caught:
                ask()
            assert caught.value.permanent


def test_a_certificate_for_another_host_is_final(tmp_path: Path) -> None:
    elsewhere = EtcdTls(tmp_path, names="DNS:elsewhere.example")
    with EtcdServer(tls=elsewhere) as server, party(server.store_url()) as one:
        for ask in both_sides(one):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
                ask()
            assert caught.value.permanent


def test_a_client_certificate_is_shown_where_it_is_wanted(
    demanding: EtcdServer, tls: EtcdTls
) -> None:
    shown = tls.certificate("client", "/CN=client")
    with party(demanding.store_url()) as one, pytest.raises(StoreUnavailable):
        one.take()
    with party(demanding.store_url(certificate=shown)) as one:
        token = one.take().token
        assert asyncio.run(one.take_async()).token == token


def test_a_certificate_with_a_name_does_not_go_with_passwords(tmp_path: Path) -> None:
    tls = EtcdTls(tmp_path, demand=True)
    named, nameless = tls.certificate("named", "/CN=billing"), tls.certificate("nameless", "/O=us")
    with EtcdServer(tls=tls) as server:
        server.enable_auth()
        server.add_user("billing", "sesame", *RIGHTS)
        login = "billing:sesame"
        with party(server.store_url(PREFIX, login=login, certificate=named)) as one:
            with pytest.raises(StoreUnavailable, match="CN") as caught:
                one.take()
            assert caught.value.permanent
        with party(server.store_url(PREFIX, login=login, certificate=nameless)) as one:
            one.take()
            asyncio.run(one.take_async())


def test_plain_http_to_a_tls_server_and_the_reverse_are_clear_errors(
    demanding: EtcdServer, etcd_server: EtcdServer, tls: EtcdTls
) -> None:
    for url in (f"etcd://{demanding.endpoint}", f"etcds://{etcd_server.endpoint}?ca={tls.ca}"):
        # The one may have understood what was sent, for all that we know.
        with party(url) as one, pytest.raises(StoreError, match=r"(?i)tls|closed|reset"):
            one.take()
