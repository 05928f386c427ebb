"""`on_trouble`: renewals begin to fail while the lease is still proved."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import incumbent
from incumbent.errors import StoreError
from incumbent.metrics import text
from incumbent.model import Key
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually

TTL = 3.0


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def lock(engine: FaultyEngine, told: list[StoreError], **more: Any) -> incumbent.Lock:
    return incumbent.Lock("job", store=engine, ttl=TTL, on_trouble=told.append, **more)


def test_it_is_called_once_while_the_lease_is_proved_and_again_after_a_success(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    told: list[StoreError] = []
    with lock(engine, told) as lease:
        engine.faulty.down = True
        eventually(lambda: told)
        assert lease.valid
        engine.faulty.down = False
        lease.renew()
        assert len(told) == 1
        assert "not renewed, proved for another" in caplog.text
        engine.faulty.down = True
        eventually(lambda: len(told) == 2)
        engine.faulty.down = False
        lease.renew()


def test_a_lease_that_is_renewed_is_in_no_trouble(engine: FaultyEngine) -> None:
    told: list[StoreError] = []
    with lock(engine, told) as lease:
        lease.renew()
    assert told == []


def test_a_callback_that_raises_costs_no_lease(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[StoreError] = []

    def fail(error: StoreError) -> None:
        called.append(error)
        raise ValueError("the program's own")

    with incumbent.Lock("job", store=engine, ttl=TTL, on_trouble=fail) as lease:
        engine.faulty.down = True
        eventually(lambda: called and "the program's own" in caplog.text)
        engine.faulty.down = False
        assert lease.renew() > 0


def test_leases_in_trouble_are_counted(engine: FaultyEngine) -> None:
    told: list[StoreError] = []
    with lock(engine, told) as lease:
        engine.faulty.down = True
        eventually(lambda: told)
        count = "incumbent_leases_unrenewed{} "
        (line,) = [line for line in text().splitlines() if line.startswith(count)]
        assert int(line.removeprefix(count)) >= 1
        engine.faulty.down = False
        lease.renew()


def test_every_kind_of_lock_calls_it(engine: FaultyEngine) -> None:
    told: dict[str, list[StoreError]] = {
        name: [] for name in ("semaphore", "several", "election", "async")
    }

    async def hold() -> None:
        other = incumbent.AsyncLock("d", store=engine, ttl=TTL, on_trouble=told["async"].append)
        async with other:
            await asyncio.to_thread(inside)

    def inside() -> None:
        settings: dict[str, Any] = {"store": engine, "ttl": TTL}
        with (
            incumbent.Semaphore("a", permits=2, on_trouble=told["semaphore"].append, **settings),
            incumbent.MultiLock(["b", "c"], on_trouble=told["several"].append, **settings),
            incumbent.Election("e", on_trouble=told["election"].append, **settings).lead(),
        ):
            engine.faulty.down = True
            eventually(lambda: all(told.values()))
            engine.faulty.down = False

    asyncio.run(hold())
    assert engine.faulty.read(Key("default", "a"), 1e12).holdings == ()
