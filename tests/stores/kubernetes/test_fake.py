"""What the API server of the tests does, and what the tests do to it.

Where a rule is not plain from the API conventions, its source is named beside it in
tests/support/kubernetes/fake.
"""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.etcd_tls import EtcdTls
from tests.support.kubernetes import ApiServer
from tests.support.kubernetes.server import ACCOUNT, LEASES, Answer, Lease
from tests.support.pace import now, took
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _faults_end(api_server: ApiServer) -> Iterator[None]:
    """The server is that of other tests, too."""
    yield
    api_server.reset()


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    name = f"of-{secrets.token_hex(6)}"
    api_server.create_namespace(name)
    return name


def _path(namespace: str, name: str = "") -> str:
    return f"{LEASES}/namespaces/{namespace}/leases/{name}".rstrip("/")


def _ask(api: ApiServer, method: str, path: str, body: Any = None) -> Answer:
    """One request of an ordinary client."""
    return api.call(method, path, body, token=api.token)


@contextmanager
def _watching(api: ApiServer, namespace: str, query: str) -> Iterator[Iterator[Lease]]:
    """The events of a watch, as they come."""
    connection = http.client.HTTPConnection(api.host, api.port, timeout=30)
    with closing(connection):
        headers = {"Authorization": f"Bearer {api.token}"}
        connection.request("GET", f"{_path(namespace)}?watch=1&{query}", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        with closing(answer):
            yield (json.loads(line) for line in answer)


def _told(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"].get("name", "")


# -- writes ---------------------------------------------------------------------------------------


def test_a_put_of_what_is_there_writes_nothing(api_server: ApiServer, namespace: str) -> None:
    lease = api_server.create(namespace, "a", holderIdentity="x", leaseDurationSeconds=15)
    before = api_server.revision()
    answer = _ask(api_server, "PUT", _path(namespace, "a"), lease)
    assert (answer.code, answer.body) == (200, lease)
    assert api_server.revision() == before


def test_a_put_to_a_lease_that_is_gone_makes_it_anew_unless_it_names_the_uid(
    api_server: ApiServer, namespace: str
) -> None:
    lease = api_server.create(namespace, "a", holderIdentity="x")
    api_server.delete(namespace, "a")
    refused = _ask(api_server, "PUT", _path(namespace, "a"), lease)
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    uid = lease["metadata"].pop("uid")
    made = _ask(api_server, "PUT", _path(namespace, "a"), lease)
    assert made.code == 201
    assert made.body["metadata"]["uid"] != uid


def test_a_put_without_a_version_is_invalid(api_server: ApiServer, namespace: str) -> None:
    lease = api_server.create(namespace, "a")
    del lease["metadata"]["resourceVersion"]
    refused = _ask(api_server, "PUT", _path(namespace, "a"), lease)
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")


def test_what_the_server_wrote_is_not_for_clients_to_change(
    api_server: ApiServer, namespace: str
) -> None:
    lease = api_server.create(namespace, "a")
    changed = {**lease, "metadata": {**lease["metadata"]}, "spec": {"holderIdentity": "x"}}
    changed["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z"
    made = _ask(api_server, "PUT", _path(namespace, "a"), changed).body
    for part in ("uid", "creationTimestamp"):
        assert made["metadata"][part] == lease["metadata"][part]
    assert int(made["metadata"]["resourceVersion"]) > int(lease["metadata"]["resourceVersion"])


def test_instants_have_microseconds_and_are_given_back_in_utc(
    api_server: ApiServer, namespace: str
) -> None:
    made = api_server.create(namespace, "a", renewTime="2026-01-01T01:00:00.000001+01:00")
    assert made["spec"]["renewTime"] == "2026-01-01T00:00:00.000001Z"


@pytest.mark.parametrize(
    ("name", "spec", "code"),
    [
        ("Upper", {}, 422),
        ("under_score", {}, 422),
        ("a..b", {}, 422),
        ("a" * 254, {}, 422),
        ("a" * 253, {}, 201),
        ("a", {"leaseDurationSeconds": 0}, 422),
        ("a", {"leaseDurationSeconds": 2**31}, 400),
        ("a", {"leaseDurationSeconds": 1.5}, 400),
        ("a", {"leaseTransitions": -1}, 422),
        ("a", {"holderIdentity": 7}, 400),
        ("a", {"holderIdentity": ""}, 201),
        ("a", {"renewTime": "2026-01-01T00:00:00Z"}, 400),
        ("a", {"renewTime": "2026-01-01T00:00:00.001Z"}, 400),
        ("a", {"renewTime": None}, 201),
        ("a", {"strategy": "OldestEmulationVersion"}, 201),
        ("a", {"strategy": "Other"}, 422),
        ("a", {"strategy": "example.com/Other"}, 201),
        ("a", {"preferredHolder": "x"}, 422),
        ("a", {"nothing": "known"}, 201),
    ],
)
def test_a_lease_is_validated(
    api_server: ApiServer, namespace: str, name: str, spec: dict[str, Any], code: int
) -> None:
    body = {"metadata": {"name": name}, "spec": spec}
    assert _ask(api_server, "POST", _path(namespace), body).code == code


@pytest.mark.parametrize(
    ("part", "pairs", "code"),
    [
        ("labels", {"a": "b"}, 201),
        ("labels", {"example.com/a": ""}, 201),
        ("labels", {"a": "b" * 64}, 422),
        ("labels", {"a": "no spaces"}, 422),
        ("labels", {"/a": "b"}, 422),
        ("labels", {"a": 1}, 400),
        ("annotations", {"example.com/a": "any text\n"}, 201),
        ("annotations", {"a" * 64: ""}, 422),
        ("annotations", {"a": "x" * (256 * 1024 - 1)}, 201),
        ("annotations", {"a": "x" * (256 * 1024)}, 422),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value),
)
def test_labels_and_annotations_are_validated(
    api_server: ApiServer, namespace: str, part: str, pairs: dict[str, Any], code: int
) -> None:
    body = {"metadata": {"name": "a", part: pairs}}
    assert _ask(api_server, "POST", _path(namespace), body).code == code


def test_nothing_is_created_in_a_namespace_that_is_not_there_or_ends(
    api_server: ApiServer, namespace: str
) -> None:
    body = {"metadata": {"name": "a"}}
    gone = _ask(api_server, "POST", _path("nowhere"), body)
    assert (gone.code, gone.body["message"]) == (404, 'namespaces "nowhere" not found')
    assert _ask(api_server, "GET", _path("nowhere")).body["items"] == []
    ends = {"status": {"phase": "Terminating"}}
    api_server.call("PATCH", f"/api/v1/namespaces/{namespace}", ends)
    refused = _ask(api_server, "POST", _path(namespace), body)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")


def test_with_its_namespace_a_lease_is_gone(api_server: ApiServer, namespace: str) -> None:
    lease = api_server.create(namespace, "a")
    api_server.delete_namespace(namespace)
    assert _ask(api_server, "GET", _path(namespace, "a")).code == 404
    assert _ask(api_server, "PUT", _path(namespace, "a"), lease).code in {404, 409}


def test_a_merge_patch_labels_a_pod_and_takes_the_label_off(
    api_server: ApiServer, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api_server.call("POST", pods, {"metadata": {"name": "p", "labels": {"app": "x"}}})
    for value, labels in (("true", {"app": "x", "leads": "true"}), (None, {"app": "x"})):
        change = {"metadata": {"labels": {"leads": value}}}
        assert _ask(api_server, "PATCH", f"{pods}/p", change).body["metadata"]["labels"] == labels


# -- lists and watches ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("x", ["a", "b"]),
        ("!x", ["c"]),
        ("x=1", ["a"]),
        ("x!=1", ["b", "c"]),
        ("x in (1,2),x", ["a", "b"]),
        ("x notin (1)", ["b", "c"]),
    ],
)
def test_a_selector_chooses_also_across_pages(
    api_server: ApiServer, namespace: str, selector: str, chosen: list[str]
) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
        body = {"metadata": {"name": name, "labels": labels}}
        api_server.call("POST", _path(namespace), body)
    query = f"?limit=2&labelSelector={quote(selector)}"
    assert [
        it["metadata"]["name"]
        for it in _ask(api_server, "GET", _path(namespace) + query).body["items"]
    ] == chosen


def test_a_watch_begins_with_what_is_there_unless_it_names_a_version(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.create(namespace, "a")
    with _watching(api_server, namespace, "") as events:
        assert _told(next(events)) == ("ADDED", "a")
        api_server.create(namespace, "b")
        assert _told(next(events)) == ("ADDED", "b")


def test_who_no_longer_fits_is_deleted_and_who_begins_to_fit_is_added(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.create(namespace, "a")
    begun = api_server.revision()
    with _watching(api_server, namespace, f"labelSelector=x&resourceVersion={begun}") as events:
        for value, told in (("1", "ADDED"), ("2", "MODIFIED"), (None, "DELETED")):
            change = {"metadata": {"labels": {"x": value}}}
            changed = _ask(api_server, "PATCH", _path(namespace, "a"), change).body
            event = next(events)
            assert _told(event) == (told, "a")
            version = changed["metadata"]["resourceVersion"]
            assert event["object"]["metadata"]["resourceVersion"] == version


def test_a_bookmark_tells_how_far_a_watch_has_come_though_nothing_fitted(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.set_bookmarks(0.05)
    query = f"labelSelector=x&allowWatchBookmarks=true&resourceVersion={api_server.revision()}"
    with _watching(api_server, namespace, query) as events:
        written = api_server.create(namespace, "a")["metadata"]["resourceVersion"]
        eventually(lambda: next(events)["object"]["metadata"]["resourceVersion"] == written)
    # A watch can begin there, though all before is forgotten.
    api_server.compact()
    with _watching(api_server, namespace, f"resourceVersion={written}") as events:
        api_server.create(namespace, "b")
        assert _told(next(events)) == ("ADDED", "b")


def test_a_watch_from_the_future_is_silent(api_server: ApiServer, namespace: str) -> None:
    """As after a restore: what is written meanwhile is not told."""
    version = api_server.revision() + 3
    with _watching(api_server, namespace, f"resourceVersion={version}") as events:
        for name in "abcd":
            api_server.create(namespace, name)
        assert _told(next(events)) == ("ADDED", "d")


def test_a_watch_ends_at_its_timeout(api_server: ApiServer, namespace: str) -> None:
    with _watching(api_server, namespace, "timeoutSeconds=1") as events:
        assert list(events) == []


# -- who may what ---------------------------------------------------------------------------------


def test_without_a_good_token_nobody_is_served(api_server: ApiServer, namespace: str) -> None:
    path = _path(namespace, "a")
    assert api_server.call("GET", path, token="unknown").code == 401
    nobody = api_server.call("GET", path, token="")
    assert nobody.code == 403
    assert 'User "system:anonymous" cannot get resource "leases"' in nobody.body["message"]
    token = api_server.add_token()
    assert api_server.call("GET", path, token=token).code == 404
    api_server.expire_token(token)
    assert api_server.call("GET", path, token=token).code == 401


def test_a_right_that_is_missing_is_named(api_server: ApiServer, namespace: str) -> None:
    api_server.deny("update")
    lease = api_server.create(namespace, "a")
    refused = _ask(api_server, "PUT", _path(namespace, "a"), lease)
    said = f'leases.coordination.k8s.io "a" is forbidden: User "{ACCOUNT}" cannot update resource '
    said += f'"leases" in API group "coordination.k8s.io" in the namespace "{namespace}"'
    assert (refused.code, refused.body["message"]) == (403, said)
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for verb, allowed in (("update", False), ("get", True)):
        wanted = {"verb": verb, "resource": "leases", "group": "coordination.k8s.io"}
        asked = _ask(api_server, "POST", review, {"spec": {"resourceAttributes": wanted}})
        assert (asked.code, asked.body["status"]["allowed"]) == (201, allowed)


def test_it_serves_tls_and_knows_clients_by_their_certificate(tmp_path: Path) -> None:
    tls = EtcdTls(tmp_path)
    shown = tls.certificate("alice", "/CN=alice")
    with ApiServer(tls=tls) as api:
        assert _ask(api, "GET", "/version").body["major"] == "1"
        api.deny("get")
        context = ssl.create_default_context(cafile=str(api.ca))
        context.load_cert_chain(shown.cert, shown.key)
        connection = http.client.HTTPSConnection(api.host, api.port, timeout=30, context=context)
        with closing(connection):
            connection.request("GET", _path("default", "a"))
            said = json.loads(connection.getresponse().read())
    assert 'User "alice" cannot get' in said["message"]


# -- what the tests do to it ----------------------------------------------------------------------


def test_it_counts_what_clients_asked_and_not_what_the_operator_did(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.forget_requests()
    api_server.create(namespace, "a")
    _ask(api_server, "GET", _path(namespace, "a"))
    _ask(api_server, "GET", f"{_path('default')}?limit=1")
    with _watching(api_server, namespace, "timeoutSeconds=1"):
        served = api_server.requests
    assert [(it.verb, it.status) for it in served] == [("get", 200), ("list", 200), ("watch", 200)]
    api_server.forget_requests()
    assert api_server.requests == []


def test_it_keeps_data_port_and_settings_over_a_crash(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.create(namespace, "a", holderIdentity="x")
    api_server.deny("delete")
    port, pid = api_server.port, api_server.pid
    api_server.stop()
    with pytest.raises(OSError, match="refused"):
        _ask(api_server, "GET", _path(namespace, "a"))
    api_server.start()
    assert api_server.pid != pid
    assert api_server.port == port
    found = _ask(api_server, "GET", _path(namespace, "a"))
    assert found.body["spec"] == {"holderIdentity": "x"}
    assert _ask(api_server, "DELETE", _path(namespace, "a")).code == 403


def test_frozen_it_answers_when_it_runs_again(api_server: ApiServer, namespace: str) -> None:
    answered: list[int] = []
    path = _path(namespace, "a")
    asking = threading.Thread(target=lambda: answered.append(_ask(api_server, "GET", path).code))
    api_server.freeze()
    asking.start()
    asking.join(0.2)
    assert answered == []
    api_server.thaw()
    asking.join()
    assert answered == [404]


def test_it_fails_for_as_long_as_it_is_told(api_server: ApiServer, namespace: str) -> None:
    path = _path(namespace, "a")
    api_server.fail(503, seconds=600)
    refused = _ask(api_server, "GET", path)
    assert (refused.code, refused.body["reason"]) == (503, "ServiceUnavailable")
    api_server.fail(429, seconds=600, retry_after=7)
    busy = _ask(api_server, "GET", path)
    assert (busy.code, busy.body) == (429, "Too many requests, please try again later.\n")
    api_server.fail(429, seconds=0)
    assert _ask(api_server, "GET", path).code == 404


def test_a_watch_is_cut_in_the_middle(api_server: ApiServer, namespace: str) -> None:
    api_server.create(namespace, "a")
    with _watching(api_server, namespace, "") as events:
        next(events)
        api_server.cut_watches()
        with suppress(ConnectionError):
            assert list(events) == []


def test_what_is_not_answered_was_carried_out(api_server: ApiServer, namespace: str) -> None:
    api_server.lose_answers("create")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        _ask(api_server, "POST", _path(namespace), {"metadata": {"name": "a"}})
    assert api_server.lease(namespace, "a")
    assert _ask(api_server, "POST", _path(namespace), {"metadata": {"name": "b"}}).code == 201


def test_a_late_request_is_carried_out_though_its_client_has_gone(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.delay("create", 0.5)
    began = now()
    headers = {"Authorization": f"Bearer {api_server.token}"}
    body = json.dumps({"metadata": {"name": "a"}})

    def leave_early() -> bool:
        connection = http.client.HTTPConnection(api_server.host, api_server.port, timeout=30)
        with closing(connection):
            connection.request("POST", _path(namespace), body, headers)
            # It has to have come; how long that takes nobody knows.
            sleep(0.25)
        return api_server.lease(namespace, "a") is not None

    eventually(leave_early)
    assert took(began) >= 0.5


def test_a_restored_server_has_what_it_had_and_goes_on_from_there(
    own_api_server: ApiServer,
) -> None:
    own_api_server.create("default", "a", holderIdentity="before")
    saved = own_api_server.snapshot()
    own_api_server.edit("default", "a", _held_by("after"))
    newest = own_api_server.revision()
    own_api_server.restore(saved)
    lease = own_api_server.lease("default", "a")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == "before"
    assert own_api_server.revision() < newest


def test_two_servers_before_one_etcd_have_the_same_leases(
    api_server: ApiServer, namespace: str
) -> None:
    with ApiServer(etcd=api_server.etcd) as second:
        second.create(namespace, "a", holderIdentity="x")
        assert api_server.lease(namespace, "a") == second.lease(namespace, "a")
        api_server.stop()
        second.edit(namespace, "a", _held_by("y"))
    api_server.start()
    lease = api_server.lease(namespace, "a")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == "y"


def test_its_clock_can_be_hours_ahead(api_server: ApiServer, namespace: str) -> None:
    api_server.set_clock(ahead=100 * 365 * 86_400)
    assert api_server.create(namespace, "a")["metadata"]["creationTimestamp"] > "2100"


def _held_by(holder: str) -> Callable[[Lease], None]:
    return lambda lease: lease["spec"].update(holderIdentity=holder)
