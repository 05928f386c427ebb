"""A fleet of real processes that divide 64 shards, and what their journals say."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

from incumbent import clock
from tests.history.events import History, Witness
from tests.shards.worker import SHARDS
from tests.support.waiting import eventually

WORKER = Path(__file__).with_name("worker.py")
TTL = 3.0


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
            # The last one may be half written.
            for line in path.read_text().split("\n")[:-1]:
                shard, token, instant = line.split()
                if shard == "left":
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
            assert process.wait(60) == 0

    def kill_all(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()


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
