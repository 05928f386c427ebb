"""The smallest store behind a network keeps what the contract says of networks and clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.testing.contract import NetworkWorld, StoreContract
from tests.contract.wired import WireEngine, WireWorld, wire_world

pytestmark = pytest.mark.slow


class TestWired(StoreContract):
    capabilities = WireEngine.capabilities
    hooks = NetworkWorld.hooks
    only = NetworkWorld.hooks
    ttl = 10.0

    @pytest.fixture
    def world(self) -> Iterator[WireWorld]:
        with wire_world() as world:
            yield world


class TestThreaded(StoreContract):
    """Its asynchronous side is the blocking one, in threads."""

    capabilities = WireEngine.capabilities
    hooks = NetworkWorld.hooks
    only = frozenset({"cut", "lose_reply", "hold_reply"})
    ttl = 10.0

    @pytest.fixture
    def world(self) -> Iterator[WireWorld]:
        with wire_world(threaded=True) as world:
            yield world
