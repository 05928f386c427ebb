"""`etcd://` keeps the contract on a real server, behind a network that fails on request."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from incumbent import clock
from incumbent.model import Ask, Granted, Key, Released
from incumbent.stores.etcd import open_etcd
from incumbent.stores.etcd.engine import EtcdEngine
from incumbent.testing.contract import NetworkWorld, StoreContract
from incumbent.testing.contract.bench import ANSWER_WITHIN
from tests.support.etcd import EtcdServer
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.server


class EtcdWorld(NetworkWorld):
    """One server behind one network."""

    def __init__(self, server: EtcdServer, proxy: FaultProxy, options: str = "") -> None:
        url = f"etcd://127.0.0.1:{proxy.port}{options}"
        # Not just any request: an etcd lease is asked for first.
        super().__init__(open_etcd, url, [proxy], b"/v3/kv/txn")
        self._server = server

    def begin(self) -> None:
        """The first take under a prefix says which incarnation this is."""
        key, until = Key("begin", secrets.token_hex(4)), clock.now() + ANSWER_WITHIN
        claim = secrets.token_hex(16)
        assert isinstance(self.engine.store().take(key, claim, Ask(60.0, "x"), until), Granted)
        assert self.engine.store().give(key, claim, None, until) == Released()

    def restart(self, *, empty: bool) -> None:
        self._server.restart(empty=empty)


class TestEtcd(StoreContract):
    capabilities = EtcdEngine.capabilities
    hooks = NetworkWorld.hooks
    # The servers of the tests elect quickly and therefore take leases of one second.
    ttl = 1.0

    @pytest.fixture
    def world(self, etcd_server: EtcdServer) -> Iterator[EtcdWorld]:
        with FaultProxy(etcd_server.port) as proxy:
            # The server is younger than the leases of this suite are long.
            world = EtcdWorld(etcd_server, proxy, "?restart_wait=0")
            world.begin()
            yield world


class TestEtcdWipes(StoreContract):
    """On servers of their own, which lose their data."""

    capabilities = EtcdEngine.capabilities
    hooks = frozenset({"wipe", "restart_wait"})
    only = frozenset({"wipe"})
    ttl = 1.0

    @pytest.fixture
    def world(self) -> Iterator[EtcdWorld]:
        with EtcdServer() as server, FaultProxy(server.port) as proxy:
            yield EtcdWorld(server, proxy, "?restart_wait=2s")


class TestEtcdRestarts(StoreContract):
    """A restart that keeps the data ends nothing: etcd counts its leases on."""

    capabilities = EtcdEngine.capabilities
    hooks = frozenset({"restart"})
    only = frozenset({"restart"})
    ttl = 1.0

    @pytest.fixture
    def world(self) -> Iterator[EtcdWorld]:
        with EtcdServer() as server, FaultProxy(server.port) as proxy:
            yield EtcdWorld(server, proxy, "?restart_wait=0")
