"""The smallest store behind a network keeps all of the contract, with both asynchronous sides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.testing.contract import NetworkWorld, StoreContract
from tests import tiers
from tests.contract.wired import WireEngine, WireWorld, wire_world

pytestmark = pytest.mark.left(tiers.LONG)


class TestAllOfWired(StoreContract):
    capabilities = WireEngine.capabilities
    hooks = NetworkWorld.hooks | {"restart", "wipe", "restart_wait"}
    ttl = 10.0

    @pytest.fixture
    def world(self) -> Iterator[WireWorld]:
        with wire_world() as world:
            yield world


class TestAllOfThreaded(TestAllOfWired):
    """Its asynchronous side is the blocking one, in threads."""

    @pytest.fixture
    def world(self) -> Iterator[WireWorld]:
        with wire_world(threaded=True) as world:
            yield world
