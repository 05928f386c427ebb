"""Waiting for a loss again and again, and entering what was lost meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from incumbent import AsyncLease, AsyncLock, LeaseLost, Lock, clock
from tests.support.faulty import FaultyEngine


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def test_waiting_for_a_loss_in_vain_leaves_nothing_behind(engine: FaultyEngine) -> None:
    with Lock("a", store=engine, ttl=60) as lease:
        for _ in range(500):
            assert not lease.wait_lost(0)
        assert lease._claim.watchers == ()


def test_waiting_for_a_loss_in_vain_leaves_nothing_behind_in_a_task(engine: FaultyEngine) -> None:
    async def wait() -> None:
        lease = await AsyncLock("a", store=engine, ttl=60).acquire()
        for _ in range(200):
            assert not await lease.wait_lost(0)
        task = asyncio.create_task(lease.wait_lost())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert lease._claim.watchers == ()
        await lease.release()

    asyncio.run(wait())


def test_who_stops_waiting_leaves_the_others_waiting(engine: FaultyEngine) -> None:
    heard: list[bool] = []
    lease = Lock("a", store=engine, ttl=60).acquire()
    others = [threading.Thread(target=lambda: heard.append(lease.wait_lost())) for _ in range(3)]
    for other in others:
        other.start()
    while len(lease._claim.watchers) < 3:
        time.sleep(0.001)
    assert not lease.wait_lost(0.01)
    lease.release()
    for other in others:
        other.join(30)
    assert heard == [False] * 3


def test_a_process_that_was_frozen_before_it_entered_can_enter_again(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, freezes = AsyncLock._acquire, iter([True])

    async def frozen(self: AsyncLock, *asked: float) -> AsyncLease:
        lease = await good(self, *asked)
        if next(freezes, False):
            # As if the process had stood still for longer than the ttl.
            lease._claim.machine.stop_at = lease._claim.machine.deadline = clock.now() - 1
            engine.faulty.give(lease._claim.wanted.key, lease._claim.id, None, 0)
        return lease

    monkeypatch.setattr(AsyncLock, "_acquire", frozen)
    lock = AsyncLock("a", store=engine, ttl=60)

    async def work() -> str:
        with pytest.raises(LeaseLost):
            async with lock:
                raise AssertionError("entered what was lost")
        async with lock:
            return "entered"

    assert asyncio.run(work()) == "entered"
