"""Threads, cancellations and lost answers by the thousand leave a keeper that keeps."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterator

import pytest

from incumbent import AsyncLock, Lock, clock
from incumbent.errors import LockError
from incumbent.runtime.link import link_for
from tests import tiers
from tests.support.faulty import Fault, FaultyEngine
from tests.support.waiting import eventually

_SECONDS = 4.0


@pytest.fixture
def seed() -> int:
    number = random.randrange(1 << 30)
    print(f"seed {number}")  # noqa: T201 - pytest shows it with a failure
    return number


@pytest.fixture
def _restless() -> Iterator[None]:
    """The interpreter changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Crowd:
    """Threads and tasks of one process on eight names."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.engine = FaultyEngine()
        self.until = clock.now() + _SECONDS
        self.unexpected: list[BaseException] = []
        self.cancelled = 0

    def thread(self, number: int) -> None:
        chance = random.Random(self.seed + number)
        while clock.now() < self.until:
            if chance.random() < 0.3:
                self.engine.faulty.plan("give", chance.choice(list(Fault)))
            try:
                with Lock(f"n{chance.randrange(8)}", store=self.engine, ttl=0.5, timeout=0.01):
                    pass
            except LockError:
                continue

    async def tasks(self) -> None:
        chance = random.Random(self.seed)
        while clock.now() < self.until:
            tasks = [asyncio.create_task(self.task(at)) for at in range(50)]
            for task in tasks:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                self.cancelled += task.cancel()
            self._judge(await asyncio.gather(*tasks, return_exceptions=True))

    async def task(self, at: int) -> None:
        async with AsyncLock(f"n{at % 8}", store=self.engine, ttl=0.5, timeout=0.02):
            await asyncio.sleep(0)

    def _judge(self, ends: list[BaseException | None]) -> None:
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, LockError):
                self.unexpected.append(end)

    def run(self) -> None:
        crew = [threading.Thread(target=self.thread, args=(number,)) for number in range(3)]
        for one in crew:
            one.start()
        asyncio.run(self.tasks())
        for one in crew:
            one.join()


@pytest.mark.left(tiers.LONG)
@pytest.mark.slow
@pytest.mark.usefixtures("_restless")
def test_a_crowd_leaves_a_keeper_that_keeps(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(seed)
    keeper = link_for(crowd.engine).keeper
    crowd.run()
    assert crowd.cancelled > 0
    assert not crowd.unexpected
    with Lock("after", store=crowd.engine, ttl=3):
        before = keeper.stats.renewals
        eventually(lambda: keeper.stats.renewals >= before + 3)
    assert "ended by an error" not in caplog.text
    assert "could not be given back" not in caplog.text
