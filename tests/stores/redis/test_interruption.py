"""Signals and cancellations in the middle of an exchange with Redis."""

from __future__ import annotations

import asyncio
import signal

import pytest

from incumbent.model import Refused
from tests.stores.redis.world import ASK, Party, new_claim, soon
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

# -- interruptions


def test_a_signal_handler_that_takes_another_lease_meets_no_foreign_answer(
    here: Party, proxy: FaultProxy
) -> None:
    """FAILURES 73: on a shared connection the handler reads the answer of the main line."""
    here.take()
    other, seen = here.refused().holders[0].claim, []

    def take_within_the_handler(*_: object) -> None:
        seen.append(here.store.take(here.key, new_claim(), ASK, soon()))

    proxy.delay(0.0, reply=0.8)
    before = signal.signal(signal.SIGALRM, take_within_the_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        granted = here.take()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert granted.claim == other
    assert isinstance(seen[0], Refused)


class Interrupted(BaseException):
    pass


def test_an_interrupted_exchange_closes_its_connection(here: Party, proxy: FaultProxy) -> None:
    here.take()

    def interrupt(*_: object) -> None:
        raise Interrupted

    proxy.delay(0.0, reply=0.8)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Interrupted):
            here.take()
    finally:
        signal.signal(signal.SIGALRM, before)
    proxy.heal()
    assert here.store.operations.idle == []
    eventually(lambda: proxy.live == 0)
    assert here.refused().holders[0].claim == here.claim


def test_a_cancelled_exchange_costs_nobody_else_an_answer(here: Party, proxy: FaultProxy) -> None:
    async def main() -> None:
        await asyncio.gather(here.take_async(), here.take_async())
        proxy.delay(0.0, reply=0.8)
        store = here.engine.async_store()
        cancelled = asyncio.create_task(here.take_async())
        kept = asyncio.create_task(store.read(here.key, soon()))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        record = await kept
        assert record.holdings[0].claim == here.claim
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        proxy.heal()
        takes = (store.take(here.key, new_claim(), ASK, soon()) for _ in range(3))
        assert {type(outcome) for outcome in await asyncio.gather(*takes)} == {Refused}

    asyncio.run(main())


def test_cancelling_while_connecting_leaves_no_connection(here: Party, proxy: FaultProxy) -> None:
    async def main() -> None:
        proxy.delay(0.8)
        connecting = asyncio.create_task(here.take_async())
        await asyncio.sleep(0.1)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

    asyncio.run(main())
    proxy.heal()
    eventually(lambda: proxy.live == 0)
