"""Waiting for a loss or a renewal again and again, and entering what was lost meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from incumbent import (
    AlreadyReleased,
    AsyncLease,
    AsyncLock,
    Lease,
    LeaseLost,
    Lock,
    MultiLock,
    clock,
)
from tests.support.faulty import FaultyEngine
from tests.support.pace import took
from tests.support.waiting import eventually


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


def do_nothing(lease: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the keeper waited for a slow store: then it does not find the lease released itself.

    To the end of the test: it asks again and again, which would keep a core for all others busy.
    """
    monkeypatch.setattr(lease._link.keeper._state.thread, "_act", lambda: None)


@pytest.mark.parametrize("kind", [Lock, lambda name, **how: MultiLock([name, "b"], **how)])
def test_who_waits_for_a_renewal_is_told_at_once_of_a_release(
    kind: Callable[..., Any], engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[type[BaseException]] = []

    def renew(lease: Lease) -> None:
        with pytest.raises(AlreadyReleased) as caught:
            lease.renew()
        heard.append(caught.type)

    started, lease = clock.now(), kind("a", store=engine, ttl=60).acquire()
    do_nothing(lease, monkeypatch)
    others = [threading.Thread(target=renew, args=(lease,)) for _ in range(3)]
    for other in others:
        other.start()
    eventually(lambda: all(len(it.on_next_renewal) == 3 for it in lease._claims))
    lease.release()
    for other in others:
        other.join(30)
    assert heard == [AlreadyReleased] * 3
    assert took(started) < 10


def test_a_task_that_waits_for_a_renewal_is_told_at_once_of_a_release(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait() -> None:
        lease = await AsyncLock("a", store=engine, ttl=60).acquire()
        do_nothing(lease, monkeypatch)
        task = asyncio.create_task(lease.renew())
        while not lease._claim.on_next_renewal:
            await asyncio.sleep(0)
        await lease.release()
        with pytest.raises(AlreadyReleased):
            await asyncio.wait_for(task, 10)

    asyncio.run(wait())


def test_who_asks_for_a_renewal_after_the_release_is_told_too(engine: FaultyEngine) -> None:
    lease, told = Lock("a", store=engine, ttl=60).acquire(), threading.Event()
    lease.release()
    lease._link.keeper.renew_now(lease._claim, told.set)
    assert told.wait(10)


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
    # Neither of them is left as one that was entered.
    assert lock._entries == []
