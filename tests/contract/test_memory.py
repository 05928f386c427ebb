"""`memory:`, the executable specification, keeps the contract that it specifies."""

from __future__ import annotations

import pytest

from incumbent.stores.memory import MemoryEngine
from incumbent.testing.contract import StoreContract
from tests.contract.worlds import FaultyMemoryStore, MemoryWorld


class TestMemory(StoreContract):
    capabilities = MemoryEngine.capabilities
    hooks = frozenset(
        {"restart", "wipe", "failover", "restart_wait", "lose_reply", "cut", "other_client"}
    )
    ttl = 10.0

    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld(FaultyMemoryStore())
