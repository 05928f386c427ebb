"""The gate before a store: how many are at it, who enters next, and when a wait for it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.limiter import Limiter, limits
from incumbent.net.readers import SharedWakeup, ThreadWakeup
from incumbent.stores.base import Place
from incumbent.stores.plan import run_blocking
from tests.support.forks import in_a_child


async def nothing(_: float) -> None:
    """There is a connection already."""


def gate(
    most: int = 1,
    *,
    blocking: bool = False,
    connected: Callable[[], object] = lambda: True,
    connect: Callable[[float], Awaitable[object]] = nothing,
) -> Limiter:
    wakeup: Any = ThreadWakeup if blocking else SharedWakeup
    return Limiter("here", most, wakeup, connected, connect)


def entered(one: Limiter) -> Place:
    place = one.enter_now()
    assert place is not None
    return place


def soon(seconds: float = 20.0) -> float:
    return clock.now() + seconds


def test_as_many_as_there_are_places_enter_at_once() -> None:
    here = gate(2)
    entered(here)
    second = entered(here)
    assert here.enter_now() is None
    second.leave(answered=True)
    entered(here)


def test_takes_and_gives_have_places_of_their_own() -> None:
    both = limits("here", 1, ThreadWakeup)
    assert both.takes.enter_now()
    assert both.gives.enter_now()
    assert both.takes.enter_now() is None


def test_tasks_enter_in_the_order_in_which_they_came() -> None:
    async def main() -> list[int]:
        here, order = gate(), list[int]()

        async def one(at: int) -> None:
            place = await here.enter(soon())
            order.append(at)
            await asyncio.sleep(0)
            # A caller that comes now does not overtake those that wait.
            assert here.enter_now() is None
            place.leave(answered=True)

        await asyncio.gather(*map(one, range(20)), one(20))
        assert here.enter_now()
        return order

    assert asyncio.run(main()) == list(range(21))


def test_threads_are_never_more_than_there_are_places() -> None:
    here, inside, most = gate(3, blocking=True), [0], [0]
    mutex, over = threading.Lock(), threading.Barrier(21)

    def work() -> None:
        for _ in range(50):
            place = here.enter_now() or run_blocking(here.enter(soon()))
            with mutex:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with mutex:
                inside[0] -= 1
            place.leave(answered=True)
        over.wait(60)

    for _ in range(20):
        threading.Thread(target=work, daemon=True).start()
    over.wait(60)
    assert 1 <= most[0] <= 3
    assert sum(here.enter_now() is not None for _ in range(4)) == 3


def test_who_gives_up_keeps_nobody_out() -> None:
    async def main() -> None:
        here = gate()
        place = entered(here)
        with pytest.raises(StoreUnavailable, match="none ended in time"):
            await here.enter(soon(0.01))
        cancelled = asyncio.create_task(here.enter(soon()))
        patient = asyncio.create_task(here.enter(soon()))
        await asyncio.sleep(0)
        cancelled.cancel()
        place.leave(answered=True)
        (await patient).leave(answered=True)
        assert here.enter_now()

    asyncio.run(main())


def test_one_that_is_cancelled_with_its_place_in_hand_loses_no_place() -> None:
    async def main() -> None:
        here = gate()
        place = entered(here)
        waits = asyncio.create_task(here.enter(soon()))
        await asyncio.sleep(0)
        # It has got the place, and does not know yet.
        place.leave(answered=True)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        del waits, place
        gc.collect()
        (await here.enter(soon())).leave(answered=True)

    asyncio.run(main())


def test_a_place_whose_caller_was_interrupted_is_made_anew() -> None:
    here = gate(blocking=True)
    entered(here)
    gc.collect()
    run_blocking(here.enter(soon())).leave(answered=True)


def test_a_place_that_was_lost_while_another_waited_is_made_anew() -> None:
    async def main() -> None:
        here = gate()
        place = entered(here)
        with pytest.raises(StoreUnavailable, match="none ended in time"):
            await here.enter(soon(0.01))
        # Its caller is interrupted before it can leave.
        del place
        gc.collect()
        (await here.enter(soon())).leave(answered=True)
        entered(here)
        assert here.enter_now() is None

    asyncio.run(main())


class Ticks:
    """A clock that a test moves, and the wakeups of those who wait by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self._events: list[asyncio.Event] = []
        monkeypatch.setattr("incumbent.net.limiter._now", lambda: self.now)

    def wakeup(self) -> Ticks.Wakeup:
        return Ticks.Wakeup(self)

    async def pass_by(self, seconds: float) -> None:
        self.now += seconds
        for event in self._events:
            event.set()
        for _ in range(5):
            await asyncio.sleep(0)

    class Wakeup:
        def __init__(self, ticks: Ticks) -> None:
            self._ticks, self._event = ticks, asyncio.Event()
            ticks._events.append(self._event)

        def wake(self) -> None:
            self._event.set()

        async def wait(self, until: float) -> None:
            if until > self._ticks.now:
                await self._event.wait()
            self._event.clear()


def test_while_the_store_answers_others_a_wait_outlasts_its_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        ticks = Ticks(monkeypatch)
        here = Limiter("here", 1, ticks.wakeup, lambda: True, nothing)
        place = entered(here)
        waits = [asyncio.create_task(here.enter(inf, 1.0)) for _ in range(3)]
        await ticks.pass_by(0.0)
        for one in waits:
            await ticks.pass_by(0.9)
            place.leave(answered=True)
            place = await one

    asyncio.run(main())


def test_a_store_that_answers_nobody_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ticks = Ticks(monkeypatch)
        here = Limiter("here", 1, ticks.wakeup, lambda: True, nothing)
        place = entered(here)
        first, second = (asyncio.create_task(here.enter(inf, 1.0)) for _ in range(2))
        await ticks.pass_by(0.0)
        await ticks.pass_by(0.9)
        place.leave(answered=False)
        await first
        await ticks.pass_by(0.2)
        with pytest.raises(StoreUnavailable, match="already has 1 requests at the store"):
            await second

    asyncio.run(main())


def test_a_connection_is_made_before_the_request_begins() -> None:
    there: list[float] = []

    async def connect(until: float) -> None:
        there.append(until)

    async def main() -> None:
        here = gate(connected=lambda: there, connect=connect)
        assert here.enter_now() is None
        by = soon()
        (await here.enter(by)).leave(answered=True)
        assert there == [by]
        entered(here).leave(answered=True)

    asyncio.run(main())


def test_a_connection_that_cannot_be_made_costs_no_place() -> None:
    async def connect(_: float) -> None:
        raise StoreUnavailable("away")

    here = gate(connected=lambda: False, connect=connect)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="away"):
                await here.enter(soon())

    asyncio.run(main())


def test_the_child_of_a_fork_has_all_places() -> None:
    here = gate(blocking=True)
    entered(here)

    def child() -> int:
        return 0 if here.enter_now() else 1

    assert in_a_child(child) == 0
    assert here.enter_now() is None
