"""`directory:` keeps the contract: this fixture is all that a store has to write."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from incumbent.testing.contract import StoreContract, World
from incumbent_directory import DirectoryEngine
from incumbent_directory.registers import Moment, Registers


class DirectoryWorld(World):
    """A host whose clock can be moved and which can be rebooted: no case has to wait."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._shift, self._boot, self._booted = folder, 0.0, 1, time.time() - 100
        super().__init__(DirectoryEngine(folder, self._moment))

    def _moment(self, wall_offset: float = 0.0) -> Moment:
        wall = time.time() + self._shift
        return Moment(
            int((wall - self._booted) * 1e6), int((wall + wall_offset) * 1e6), f"boot-{self._boot}"
        )

    def other_client(self, clock_offset: float = 0.0) -> DirectoryEngine:
        # All clients are on this host: they count on its clock, whatever its wall clock was set to.
        return DirectoryEngine(self._folder, lambda: self._moment(clock_offset))

    def registers(self) -> Registers:
        return DirectoryEngine(self._folder, self._moment).registers

    def pass_time(self, seconds: float) -> None:
        self._shift += seconds

    def restart(self, *, empty: bool) -> None:
        # No holder outlives a reboot of its own host, so nothing has to wait for one ttl.
        assert not empty
        self._boot += 1
        self._booted = time.time() + self._shift


class TestDirectory(StoreContract):
    capabilities = DirectoryEngine.capabilities
    hooks = frozenset({"restart", "other_client", "registers"})
    ttl = 10.0

    @pytest.fixture
    def world(self, tmp_path: Path) -> DirectoryWorld:
        return DirectoryWorld(tmp_path / "leases")
