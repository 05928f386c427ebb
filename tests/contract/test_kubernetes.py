"""`kubernetes://` keeps the contract on an API server before a real etcd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.stores.kubernetes import known
from incumbent.stores.kubernetes.engine import KubernetesEngine
from incumbent.testing.contract import NetworkWorld, StoreContract
from tests import tiers
from tests.stores.kubernetes.world import KubernetesWorld
from tests.support.kubernetes import ApiServer
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.server


@pytest.mark.left(tiers.LONG, "blocking*")
class TestKubernetes(StoreContract):
    capabilities = KubernetesEngine.capabilities
    # Requests are counted in tests/stores/kubernetes: a renewal of a hundred leases is a hundred.
    hooks = NetworkWorld.hooks - {"requests"} | {"registers"}
    ttl = 0.5

    @pytest.fixture
    def world(self, api_server: ApiServer) -> Iterator[KubernetesWorld]:
        with FaultProxy(api_server.port) as proxy:
            yield KubernetesWorld(api_server, proxy)


class TestKubernetesRestarts(StoreContract):
    """On servers of their own, which crash: etcd has all that was written."""

    capabilities = KubernetesEngine.capabilities
    hooks = frozenset({"restart"})
    only = frozenset({"restart"})
    ttl = 0.5

    @pytest.fixture
    def world(self, own_api_server: ApiServer) -> Iterator[KubernetesWorld]:
        with FaultProxy(own_api_server.port) as proxy:
            yield KubernetesWorld(own_api_server, proxy)


class TestKubernetesWipes(StoreContract):
    """In namespaces that are made anew."""

    capabilities = KubernetesEngine.capabilities
    hooks = frozenset({"wipe", "restart_wait"})
    only = frozenset({"wipe"})
    ttl = 0.5

    @pytest.fixture
    def world(
        self, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[KubernetesWorld]:
        # There is one server, so one clock.
        monkeypatch.setattr(known, "SKEW", 0)
        with FaultProxy(api_server.port) as proxy:
            # Long enough for the first requests of a busy machine.
            world = KubernetesWorld(api_server, proxy, 4.0)
            world.begin()
            yield world
