"""One uncontended acquire and release on Kubernetes: two PUTs of a Lease.

The API server is the one of the tests, before a real etcd: a real one answers in other times.
"""

from __future__ import annotations

import http.client
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.kubernetes import ApiServer

from benchmarks.harness import Contender, Row, compare
from incumbent import Lock

__all__ = ["kubernetes_rows"]

_TTL = 60
_PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/"


@contextmanager
def _cluster() -> Iterator[tuple[ApiServer, str]]:
    with ApiServer() as server, tempfile.TemporaryDirectory() as folder:
        config = str(server.kubeconfig(Path(folder, "config")))
        os.environ["KUBECONFIG"] = config
        yield server, config


def kubernetes_rows(turns: int, pairs: int) -> list[Row]:
    """Blocking clients, on one core with the server."""
    with _cluster() as (server, config):
        ours = Lock("pair", store="kubernetes://test/default?restart_wait=0", ttl=_TTL)
        ours.acquire().release()
        contenders = [
            Contender("bare PUT to take, PUT to give back, http.client", _bare(server)),
            Contender("incumbent Lock: fenced, renewed", lambda: ours.acquire().release()),
            Contender("kubernetes, replace_namespaced_lease twice", _official(server, config)),
            Contender(
                "kubernetes, as its election: read and replace, read and replace",
                _official(server, config, reads=True),
            ),
            Contender("lightkube, replace twice", _lightkube(server, config)),
            Contender("kr8s, patch twice: it cannot replace", _kr8s(server, config)),
        ]
        return compare(contenders, turns, pairs)


def _bare(server: ApiServer) -> Callable[[], object]:
    lease = server.create("default", "bare", holderIdentity="")
    connection = http.client.HTTPConnection(server.host, server.port)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}

    def put(holder: str) -> None:
        nonlocal lease
        lease["spec"] = {"holderIdentity": holder, "leaseDurationSeconds": _TTL}
        connection.request("PUT", f"{_PATH}bare", json.dumps(lease), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the bare PUT did not take and give: {text!r}")
        lease = json.loads(text)

    def pair() -> None:
        put("me")
        put("")

    return pair


def _official(server: ApiServer, config: str, *, reads: bool = False) -> Callable[[], object]:
    name = "election" if reads else "official"
    server.create("default", name, holderIdentity="")
    # By name: it has no types.
    official: Any = import_module("kubernetes")
    official.config.load_kube_config(config)
    api = official.client.CoordinationV1Api()
    lease = api.read_namespaced_lease(name, "default")

    def put(holder: str) -> None:
        nonlocal lease
        if reads:
            lease = api.read_namespaced_lease(name, "default")
        lease.spec.holder_identity, lease.spec.lease_duration_seconds = holder, _TTL
        lease = api.replace_namespaced_lease(name, "default", lease)

    def pair() -> None:
        put("me")
        put("")

    return pair


def _lightkube(server: ApiServer, config: str) -> Callable[[], object]:
    server.create("default", "lightkube", holderIdentity="")
    kinds: Any = import_module("lightkube.resources.coordination_v1")
    light: Any = import_module("lightkube")
    client = light.Client(config=light.KubeConfig.from_file(config), namespace="default")
    lease = client.get(kinds.Lease, "lightkube")

    def put(holder: str) -> None:
        nonlocal lease
        lease.spec.holderIdentity, lease.spec.leaseDurationSeconds = holder, _TTL
        lease = client.replace(lease)

    def pair() -> None:
        put("me")
        put("")

    return pair


def _kr8s(server: ApiServer, config: str) -> Callable[[], object]:
    server.create("default", "kr8s", holderIdentity="")
    api = import_module("kr8s").api(kubeconfig=config, namespace="default")
    kind = import_module("kr8s.objects").new_class("Lease", "coordination.k8s.io/v1", asyncio=False)
    lease = kind.get("kr8s", api=api)

    def patch(holder: str) -> None:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": _TTL}
        # Named, so that the server compares it, as with the others.
        seen = {"resourceVersion": lease.raw["metadata"]["resourceVersion"]}
        lease.patch({"metadata": seen, "spec": spec})

    def pair() -> None:
        patch("me")
        patch("")

    return pair
