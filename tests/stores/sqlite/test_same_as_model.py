"""`sqlite:` answers as the second model of the contract does, whatever is done in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from hypothesis import settings

from incumbent.model import Queue
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.host import Host
from tests.rules.same_as_model import SameAsModel


class SqliteAsModel(SameAsModel):
    # Fair ones: how long others may be silent is the store's to choose.
    queues: ClassVar[list[Queue | None]] = [None, Queue(2.0, fair=True), Queue(8.0, fair=True)]
    late_kept = 0.0

    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        host = Host(lambda: self.now, lambda: self.wall, "boot")
        self.store = SqliteEngine(Path(self.folder.name, "leases.db"), host=lambda: host).store()

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


SqliteAsModel.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestSqliteAsModel = SqliteAsModel.TestCase
