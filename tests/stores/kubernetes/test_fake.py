"""The API server of the tests, judged by clients that others wrote.

Their imports take a second each, so they are in the tests.
"""

from __future__ import annotations

import secrets

import pytest

from tests.support.kubernetes import ApiServer
from tests.support.kubernetes.server import LEASES


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    name = f"of-{secrets.token_hex(6)}"
    api_server.create_namespace(name)
    return name


def _path(namespace: str, name: str = "") -> str:
    return f"{LEASES}/namespaces/{namespace}/leases/{name}".rstrip("/")


def test_a_put_of_what_is_there_writes_nothing(api_server: ApiServer, namespace: str) -> None:
    lease = api_server.create(namespace, "a", holderIdentity="x", leaseDurationSeconds=15)
    before = api_server.revision()
    answer = api_server.call("PUT", _path(namespace, "a"), lease)
    assert (answer.code, answer.body) == (200, lease)
    assert api_server.revision() == before


def test_a_put_to_a_lease_that_is_gone_makes_it_anew_unless_it_names_the_uid(
    api_server: ApiServer, namespace: str
) -> None:
    lease = api_server.create(namespace, "a", holderIdentity="x")
    api_server.delete(namespace, "a")
    refused = api_server.call("PUT", _path(namespace, "a"), lease)
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    uid = lease["metadata"].pop("uid")
    made = api_server.call("PUT", _path(namespace, "a"), lease)
    assert made.code == 201
    assert made.body["metadata"]["uid"] != uid
