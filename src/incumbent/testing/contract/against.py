"""The suite for the store that INCUMBENT_STORE names: see `__main__`."""

from __future__ import annotations

import os
from functools import partial

import pytest

from incumbent.durations import parse_duration
from incumbent.stores.base import Engine
from incumbent.stores.url import open_engine, store_url
from incumbent.testing.clients import other_process
from incumbent.testing.contract.bench import World
from incumbent.testing.contract.suite import StoreContract

_OPEN = partial(open_engine, store_url())


class _World(World):
    """A real store; clients in other processes have clocks of their own."""

    def pass_time(self, seconds: float) -> None:
        # Where a store has no clock, waiters count slower than the holder: wait longer.
        super().pass_time(1.02 * seconds + 0.05)

    def other_client(self, clock_offset: float = 0.0) -> Engine:
        return other_process(_OPEN, clock_offset=clock_offset) if clock_offset else _OPEN()


class TestStore(StoreContract):
    capabilities = _OPEN().capabilities
    # All clients of a store on one host share its clock: none can be off.
    hooks = frozenset({"other_client"}) if capabilities.ttl_clock != "boottime" else frozenset()
    ttl = parse_duration(os.environ["INCUMBENT_TTL"], "ttl")

    @pytest.fixture
    def world(self) -> World:
        return _World(_OPEN())
