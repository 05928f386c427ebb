"""64 shards over 8 processes that are killed, frozen and ended; their journals are checked."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import pytest

from incumbent import Group, clock
from tests.history.checker import check
from tests.history.events import History, Witness
from tests.shards.worker import SHARDS
from tests.support.waiting import eventually

WORKER = Path(__file__).with_name("worker.py")
TTL = 3.0
BUSY = 3.0
"""Seconds for what a machine with other things to do may take on top."""


@dataclass
class Fleet:
    """Members as processes, and what their journals say."""

    store: str
    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def start(self) -> None:
        number = next(self.numbers)
        side = ("blocking", "asyncio")[number % 2]
        given = (self.store, str(self.folder), f"m-{number}", str(TTL), side)
        self.running.append(subprocess.Popen([sys.executable, str(WORKER), *given]))

    def take(self) -> subprocess.Popen[bytes]:
        """Any one, which is the fleet's no more."""
        return self.running.pop(random.randrange(len(self.running)))

    def witnesses(self) -> list[Witness]:
        spans: dict[tuple[str, int, int], tuple[float, float]] = {}
        for path in self.folder.glob("*.log"):
            for line in path.read_text().splitlines():
                shard, token, instant = line.split()
                if shard == "left" or not instant:
                    continue
                at, place = float(instant), (path.stem, int(shard), int(token))
                first, last = spans.get(place, (at, at))
                spans[place] = (min(first, at), max(last, at))
        return [
            Witness(who, f"orders/{shard}", token, *span)
            for (who, shard, token), span in spans.items()
        ]

    def all_beat_since(self, instant: float) -> bool:
        """Whether somebody has worked on each shard since then."""
        beating = {one.key for one in self.witnesses() if one.until > instant}
        return len(beating) == SHARDS

    def await_all(self) -> None:
        since = clock.now()
        eventually(lambda: self.all_beat_since(since))

    def close(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.running:
            assert process.wait(20) == 0


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(url, tmp_path)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_64_shards_over_8_processes_survive_kills_freezes_and_departures(fleet: Fleet) -> None:
    for _ in range(8):
        fleet.start()
    eventually(lambda: len(Group("orders", store=fleet.store).members()) == 8)
    fleet.await_all()

    killed = fleet.take()
    died = clock.now()
    killed.kill()
    killed.wait()
    fleet.start()
    eventually(lambda: fleet.all_beat_since(died + TTL))

    frozen = fleet.take()
    frozen.send_signal(signal.SIGSTOP)
    stopped = clock.now()
    eventually(lambda: fleet.all_beat_since(stopped + TTL))
    frozen.send_signal(signal.SIGCONT)
    fleet.running.append(frozen)
    fleet.await_all()

    leaving = fleet.take()
    leaving.terminate()
    assert leaving.wait(20) == 0
    two = [fleet.take(), fleet.take()]
    for process in two:
        process.kill()
        process.wait()
    fleet.await_all()
    fleet.start()
    eventually(lambda: len(Group("orders", store=fleet.store).members()) == 6)
    # Whoever was frozen is a member again, and has its shards.
    fleet.await_all()
    time.sleep(0.5)
    fleet.close()

    history = History(list(fleet.witnesses()))
    assert check(history) == []
    assert len(history.events) > 2 * SHARDS
    assert longest_gap(history) <= TTL + BUSY
    assert Group("orders", store=fleet.store).members() == ()


def longest_gap(history: History) -> float:
    """Seconds between two spans of work on one shard."""
    spans = defaultdict(list)
    for one in history.of(Witness):
        spans[one.key].append(one)
    return max(
        later.begin - earlier.until
        for ordered in (sorted(of, key=lambda one: one.begin) for of in spans.values())
        for earlier, later in pairwise(ordered)
    )
