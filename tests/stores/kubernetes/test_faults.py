"""What a bad day does to it: logins that end, lost answers, objects that vanish."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Gone, Key, Renewal, Renewed
from incumbent.net.tls import Tls
from incumbent.stores.kubernetes import client, watching
from incumbent.stores.kubernetes.engine import KubernetesEngine
from incumbent.stores.kubernetes.errors import KubernetesAnswer
from incumbent.stores.kubernetes.login import Login, PluginCommand
from incumbent.stores.kubernetes.objects import MARKER, object_name
from incumbent.stores.kubernetes.site import KubernetesSite
from incumbent.stores.url import Endpoint
from tests import tiers
from tests.stores.kubernetes.world import open_at, url_of
from tests.stores.party import ASK, Party, new_claim, soon
from tests.support.etcd_tls import EtcdTls
from tests.support.kubernetes import ApiServer
from tests.support.kubernetes.server import Lease
from tests.support.waiting import eventually

pytestmark = pytest.mark.left(tiers.LONG)
LONG = replace(ASK, ttl=600.0)


def with_login(server: ApiServer, login: Login, key: Key | None = None) -> Party:
    tls = Tls(str(server.ca)) if server.tls else None
    place = Endpoint(server.host, server.port)
    site = KubernetesSite("kubernetes://test/default", place, "", "default", login, tls, 0.0)
    engine = KubernetesEngine(site)
    return Party(engine) if key is None else Party(engine, key)


def plugin(folder: Path, script: str) -> PluginCommand:
    (folder / "plugin").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "plugin").chmod(0o755)
    made = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}
    return PluginCommand(made, {}, str(folder))


def says(folder: Path, **status: str) -> str:
    """The script of a plugin that says this."""
    (folder / "said").write_text(json.dumps({"status": status}))
    return f"cat {folder}/said"


# -- exec plugins ----------------------------------------------------------------------------------


def hangs(folder: Path) -> str:
    """The script of a plugin that ends once there is a file `end`."""
    return f"while [ ! -e {folder}/end ]; do sleep 0.1; done"


def ends(folder: Path, login: Login) -> None:
    (folder / "end").touch()
    eventually(lambda: not login._running)


def test_a_plugin_that_hangs_holds_nobody_for_longer_than_asked(tmp_path: Path) -> None:
    login = Login(plugin=plugin(tmp_path, hangs(tmp_path)))
    began = clock.now()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="plugin of the kubeconfig: it has not answered"):
            login.fetch(soon(0.2))
    assert clock.now() < began + 15.0
    ends(tmp_path, login)


def test_a_plugin_runs_once_for_all_who_need_it(tmp_path: Path) -> None:
    script = f"echo run >> {tmp_path}/runs; sleep 1; {says(tmp_path, token='one')}"
    login = Login(plugin=plugin(tmp_path, script))
    threads = [threading.Thread(target=login.fetch, args=(soon(30.0),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert login.header == "Bearer one"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_while_the_token_of_before_is_good_nobody_waits_for_another(tmp_path: Path) -> None:
    script = f"if [ -e {tmp_path}/again ]; then {hangs(tmp_path)}; fi; touch {tmp_path}/again"
    login = Login(plugin=plugin(tmp_path, f"{script}; {says(tmp_path, token='one')}"))
    login.fetch(soon(30.0))
    login._until = clock.now() - 1.0
    assert login.is_over
    login.fetch(clock.now())
    assert login.header == "Bearer one"
    ends(tmp_path, login)


def test_a_certificate_of_a_plugin_is_shown_from_the_first_request_on(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    tls = EtcdTls(tmp_path_factory.mktemp("tls"))
    ours = tls.certificate("ours", "/CN=alice")
    cert, key = ours.cert.read_text(), ours.key.read_text()
    script = says(tmp_path, clientCertificateData=cert, clientKeyData=key)
    with ApiServer(tls=tls) as server:
        party = with_login(server, Login(plugin=plugin(tmp_path, script)))
        party.take()
        party.store.close()


# -- tokens ----------------------------------------------------------------------------------------


def released(waiting: Party, seen: str, until: float) -> None:
    """Wait until nobody holds it, as a waiter does: each hint may be in vain."""
    held = True
    while held and clock.now() < until:
        with suppress(StoreError):
            waiting.store.wait_change(waiting.key, seen, until)
            held = bool(waiting.store.read(waiting.key, soon()).holdings)


def test_a_token_that_ends_during_a_watch_is_replaced_and_the_watch_goes_on(
    own_api_server: ApiServer, alone: Party, tmp_path: Path
) -> None:
    server, path = own_api_server, tmp_path / "token"
    path.write_text(old := server.add_token())
    waiting = with_login(server, Login(file=str(path)), alone.key)
    granted, until = alone.take(ask=LONG), soon(300.0)
    refused = waiting.refused(ask=LONG)
    thread = threading.Thread(target=released, args=(waiting, refused.seen, until))
    thread.start()
    eventually(lambda: any(it.verb == "watch" for it in server.requests))
    path.write_text(server.add_token())
    server.expire_token(old)
    server.forget_requests()
    server.cut_watches()
    eventually(lambda: any(it.verb == "watch" and it.status == 200 for it in server.requests))
    alone.store.give(alone.key, alone.claim, granted.token, soon())
    thread.join(120.0)
    assert not thread.is_alive()
    waiting.store.close()


# -- watches and lists -----------------------------------------------------------------------------


def test_who_watches_a_lease_learns_that_it_was_deleted(
    own_api_server: ApiServer, alone: Party
) -> None:
    token = alone.take(ask=LONG).token
    waiting = Party(open_at(url_of(own_api_server, "default")), alone.key)
    refused, until = waiting.refused(ask=LONG), soon(300.0)
    thread = threading.Thread(target=released, args=(waiting, refused.seen, until))
    thread.start()
    eventually(lambda: any(it.verb == "watch" for it in own_api_server.requests))
    own_api_server.delete("default", object_name(alone.key))
    thread.join(120.0)
    assert not thread.is_alive()
    assert waiting.take().token > token
    waiting.store.close()


def test_a_watch_that_says_nothing_for_long_is_begun_anew(
    own_api_server: ApiServer, alone: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_SILENT", 0.5)
    alone.take(ask=LONG)
    refused, until = alone.refused(ask=LONG), soon(300.0)
    thread = threading.Thread(target=released, args=(alone, refused.seen, until))
    thread.start()
    eventually(lambda: [it.verb for it in own_api_server.requests].count("watch") >= 3)
    own_api_server.delete("default", object_name(alone.key))
    thread.join(120.0)
    assert not thread.is_alive()


def after_the_first(verb: str, then: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something happen once, right after the first answer to such a request."""
    real, left = client.KubernetesClient.call, [then]

    async def call(self: Any, wire: Any, asked: str, *more: Any, **rest: Any) -> KubernetesAnswer:
        answer = await real(self, wire, asked, *more, **rest)
        if asked == verb and left:
            left.pop()()
        return answer

    monkeypatch.setattr(client.KubernetesClient, "call", call)


def test_a_list_whose_past_is_forgotten_between_two_pages_is_begun_anew(
    own_api_server: ApiServer, alone: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{index}" for index in range(5)]
    for name in names:
        Party(alone.engine, Key("many", name)).take(ask=LONG)

    def compact() -> None:
        for index in range(3):
            own_api_server.create("default", f"other-{index}", holderIdentity="x")
        own_api_server.compact()

    monkeypatch.setattr(client, "_PAGE", 2)
    after_the_first("list", compact, monkeypatch)
    own_api_server.forget_requests()
    found = alone.store.scan("many", "", soon(30.0))
    assert [it.key.name for it in found] == names
    assert any(it.verb == "list" and it.status == 410 for it in own_api_server.requests)


# -- answers that are lost, or old -----------------------------------------------------------------


def test_a_renewal_whose_answer_was_lost_is_proved_by_its_repeat(
    own_api_server: ApiServer, alone: Party
) -> None:
    granted = alone.take(ask=LONG)
    own_api_server.forget_requests()
    own_api_server.lose_answers("update")
    assert alone.store.renew([alone.renewal(granted, 600.0)], soon()) == [Renewed()]
    # The repeat named the version that the first had replaced, and met its own name.
    updates = [it.status for it in own_api_server.requests if it.verb == "update"]
    assert updates == [0, 409, 200]
    assert alone.store.read(alone.key, soon()).holdings[0].token == granted.token


def test_a_release_whose_answer_was_lost_is_in_doubt_and_was_done(
    own_api_server: ApiServer, alone: Party
) -> None:
    granted = alone.take(ask=LONG)
    own_api_server.lose_answers("update")
    with pytest.raises(OutcomeUnknown, match="the first release got no answer"):
        alone.store.give(alone.key, alone.claim, granted.token, soon())
    assert alone.take(new_claim()).token > granted.token


def test_a_first_take_whose_answer_was_lost_is_the_same_grant_when_it_is_asked_again(
    own_api_server: ApiServer, alone: Party
) -> None:
    Party(alone.engine).take()
    own_api_server.lose_answers("create")
    with pytest.raises(OutcomeUnknown):
        alone.take(ask=LONG)
    again = alone.take(ask=LONG)
    assert alone.store.read(alone.key, soon()).holdings[0].token == again.token
    lease = own_api_server.lease("default", object_name(alone.key))
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 1


def test_an_old_answer_grants_nothing(
    own_api_server: ApiServer, alone: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache in between answers with 200, and with what was there before."""
    other = Party(open_at(url_of(own_api_server, "default")), alone.key)
    alone.store.give(alone.key, alone.claim, alone.take(ask=LONG).token, soon())
    old = own_api_server.lease("default", object_name(alone.key))
    assert old is not None
    granted = other.take(ask=LONG)
    alone.refused(ask=LONG)
    real = client.KubernetesClient.ask

    async def ask(self: Any, wire: Any, verb: str, name: str, *more: Any) -> KubernetesAnswer:
        if verb == "get" and name == object_name(alone.key):
            return KubernetesAnswer("get", 200, json.loads(json.dumps(old)))
        return await real(self, wire, verb, name, *more)

    monkeypatch.setattr(client.KubernetesClient, "ask", ask)
    for _ in range(3):
        with pytest.raises(StoreError):
            alone.take(new_claim(), within=2.0)
    monkeypatch.undo()
    lease = own_api_server.lease("default", object_name(alone.key))
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 2
    assert other.store.read(other.key, soon()).holdings[0].token == granted.token
    other.store.close()


def test_a_server_that_is_away_for_an_hour_is_asked_again_before(
    own_api_server: ApiServer, alone: Party
) -> None:
    alone.take(ask=LONG)
    own_api_server.fail(503, 600.0, retry_after=3600)
    with pytest.raises(StoreUnavailable) as caught:
        Party(alone.engine).take()
    assert caught.value.retry_after == 30.0


# -- an etcd that was restored ---------------------------------------------------------------------


def notices(party: Party, renewal: Renewal) -> bool:
    """Whether its lease is gone; it is never renewed."""
    try:
        (outcome,) = party.store.renew([renewal], soon(2.0))
    except StoreError:
        return False
    assert not isinstance(outcome, Renewed)
    return isinstance(outcome, Gone)


@pytest.mark.parametrize("marker", ["kept", "removed"])
@pytest.mark.parametrize("known", [True, False])
def test_holders_notice_a_restore_by_a_renewal_and_a_new_process_by_a_removed_marker(
    own_api_server: ApiServer, alone: Party, marker: str, known: bool
) -> None:
    server = own_api_server
    if known:
        # Then the backup has its object.
        alone.store.give(alone.key, alone.claim, alone.take().token, soon())
    else:
        Party(alone.engine).take()
    # Then the marker is old enough for the new process.
    server.set_clock(3600.0)
    backup = server.snapshot()
    before = alone.renewal(alone.take(new_claim(), ask=LONG), 600.0)
    for _ in range(5):
        assert alone.store.renew([before], soon()) == [Renewed()]
    server.restore(backup)
    new = Party(open_at(url_of(server, "default", wait=60.0)), alone.key)
    if marker == "removed":
        server.delete("default", MARKER)
        with pytest.raises(StoreUnavailable, match="was made anew, or restored"):
            new.take(ask=LONG)
    else:
        # See docs/kubernetes.md: two believe in it until the one from before renews.
        new.take(ask=LONG)
    eventually(lambda: notices(alone, before))
    new.store.close()


# -- other writers ---------------------------------------------------------------------------------


def test_what_another_writer_keeps_in_a_lease_stays(
    own_api_server: ApiServer, alone: Party
) -> None:
    granted, name = alone.take(ask=LONG), object_name(alone.key)

    def mark(lease: Lease) -> None:
        meta = lease["metadata"]
        meta["annotations"]["example.com/team"] = "payments"
        meta["labels"]["example.com/tier"] = "gold"
        meta["managedFields"] = [{"manager": "kubectl-edit", "operation": "Update"}]

    own_api_server.edit("default", name, mark)
    assert alone.store.renew([alone.renewal(granted, 600.0)], soon()) == [Renewed()]
    alone.store.give(alone.key, alone.claim, granted.token, soon())
    alone.take(new_claim())
    lease = own_api_server.lease("default", name)
    assert lease is not None
    assert lease["metadata"]["annotations"]["example.com/team"] == "payments"
    assert lease["metadata"]["labels"]["example.com/tier"] == "gold"
