"""`sqlite:` keeps the contract, over a reboot and over the loss of its file too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.host import Host
from incumbent.testing.contract import StoreContract, World


class SqliteWorld(World):
    """One file on a host whose clocks can be moved and which can be rebooted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = 1
        self._shift = 0.0
        self._start = 0.0
        super().__init__(self._open())

    def _open(self, wall_offset: float = 0.0) -> SqliteEngine:
        # Boot time starts again with each boot, and the wall clock goes on.
        boot, start = f"boot-{self._boot}", self._start
        host = Host(
            lambda: clock.now() + self._shift - start,
            lambda: clock.wall() + self._shift + wall_offset,
            boot,
        )
        return SqliteEngine(self._path, host=lambda: host)

    def other_client(self, clock_offset: float = 0.0) -> SqliteEngine:
        """On the same host, with its wall clock set differently."""
        return self._open(clock_offset)

    def pass_time(self, seconds: float) -> None:
        self._shift += seconds

    def restart(self, *, empty: bool) -> None:
        """A reboot; or the file is removed under the processes that use it."""
        if empty:
            for path in self._path.parent.glob(f"{self._path.name}*"):
                path.unlink()
            return
        self.engine.store().close()
        self._boot += 1
        self._start = clock.now() + self._shift
        self.engine = self._open()


class TestSqlite(StoreContract):
    capabilities = SqliteEngine.capabilities
    hooks = frozenset({"restart", "wipe", "other_client"})
    ttl = 10.0

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[SqliteWorld]:
        world = SqliteWorld(tmp_path / "leases.db")
        yield world
        world.engine.store().close()
