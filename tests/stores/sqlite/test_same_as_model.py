"""`sqlite:` answers as the second model of the contract does, whatever is done in any order."""

from __future__ import annotations

from pathlib import Path

from incumbent.model import Queue
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.host import Host
from tests.rules.histories import Subject, play


def test_the_file_answers_as_the_model_does(tmp_path: Path) -> None:
    for seed in range(60):
        clocks = [0.0, 0.0]

        def move(now: float, wall: float, clocks: list[float] = clocks) -> None:
            clocks[:] = [now, wall]

        move(1_000.0, 1_800_000_000.0)
        host = Host(lambda at=clocks: at[0], lambda at=clocks: at[1], "boot")  # type: ignore[misc]
        store = SqliteEngine(tmp_path / f"{seed}.db", host=lambda host=host: host).store()
        # Fair ones: for how long others may be silent is the store's to choose.
        queues = [None, Queue(2.0, fair=True), Queue(8.0, fair=True)]
        play(seed, Subject(store, move, queues=queues, late_kept=0.0))
        store.close()
