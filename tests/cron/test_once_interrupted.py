"""`@once`: a call that is interrupted before the function began leaves the slot to the next one."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from incumbent import (
    LeaseLost,
    Lock,
    NotAcquired,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    clock,
    exclusive,
    once,
)
from incumbent.cron.ledger import SlotState, runs_of
from incumbent.cron.once import begin_once
from incumbent.model import Key
from incumbent.runtime.link import link_for
from incumbent.stores.plan import run_blocking as drive
from tests.support.faulty import Fault, FaultyEngine
from tests.support.waiting import eventually

SETTINGS: list[dict[str, Any]] = [{"per": 3600}, {"per": 3600, "slot": "today"}]


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def runs_on_record(engine: FaultyEngine) -> list[str]:
    fields = engine.faulty.read(Key("default", "job"), clock.now() + 30).fields
    return [str(run.state) for run, _ in runs_of(fields).values()]


def free_again(engine: FaultyEngine) -> None:
    eventually(lambda: not engine.faulty.read(Key("default", "job"), clock.now() + 30).slots)


async def steps_until_it_runs(settings: dict[str, Any]) -> int:
    """How many turns of the loop there are before the function begins."""
    began = asyncio.Event()

    @once("job", store=FaultyEngine(), **settings)
    async def job() -> None:
        began.set()

    task, steps = asyncio.create_task(job()), 0
    while not began.is_set():
        await asyncio.sleep(0)
        steps += 1
    await task
    return steps


@pytest.mark.parametrize("settings", SETTINGS)
def test_cancelled_at_any_await_before_it_began_the_slot_is_left_to_the_next_call(
    settings: dict[str, Any],
) -> None:
    async def at(step: int) -> None:
        engine, calls = FaultyEngine(), list[int]()

        @once("job", store=engine, **settings)
        async def job() -> str:
            calls.append(step)
            return "ran"

        task = asyncio.create_task(job())
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if calls:
            return
        await asyncio.to_thread(free_again, engine)
        assert await job() == "ran", f"cancelled at step {step}"
        assert runs_on_record(engine) == ["ok"]

    async def all_of_them() -> None:
        steps = await steps_until_it_runs(settings)
        assert steps > 5
        for step in range(1, steps + 1):
            await at(step)

    asyncio.run(all_of_them())


class Stop(BaseException):
    """As KeyboardInterrupt, which would end the tests."""


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("place", [0, 1])
def test_interrupted_between_slot_and_ledger_the_slot_is_left_to_the_next_call(
    engine: FaultyEngine,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    applied: bool,
    place: int,
) -> None:
    good, puts = engine.faulty.put, iter(range(place + 1))

    def interrupted(*asked: Any) -> Any:
        stops = next(puts, None) == place
        outcome = good(*asked) if applied or not stops else None
        if stops:
            raise Stop
        return outcome

    monkeypatch.setattr(engine.faulty, "put", interrupted)

    @once("job", store=engine, **settings)
    def job() -> str:
        return "ran"

    with pytest.raises(Stop):
        job()
    assert runs_on_record(engine) == []
    assert job() == "ran"
    assert runs_on_record(engine) == ["ok"]


def test_an_interruption_leaves_the_record_of_an_earlier_run_alone(engine: FaultyEngine) -> None:
    @once("job", per=0.05, slot="today", store=engine)
    def job() -> str:
        return "ran"

    assert job() == "ran"
    free_again(engine)
    engine.faulty.plan("read", Fault.LOST_REQUEST)
    with pytest.raises(StoreError):
        job()
    assert runs_on_record(engine) == ["ok"]
    free_again(engine)
    assert job() is None


@pytest.mark.parametrize("if_held", ["wait", "raise"])
def test_a_slot_that_is_used_for_good_is_skipped_only_where_skipping_was_asked_for(
    engine: FaultyEngine, if_held: Literal["wait", "raise"]
) -> None:
    def job() -> str:
        return "ran"

    async def async_job() -> str:
        return "ran"

    assert once("job", per=0.05, slot="today", store=engine)(job)() == "ran"
    raising = exclusive("job", if_held=if_held, once_per=0.05, slot="today", store=engine)
    for call in (raising(job), lambda: asyncio.run(raising(async_job)())):
        free_again(engine)
        with pytest.raises(NotAcquired, match="ran before") as refused:
            call()
        assert refused.value.reason == "used"


def test_an_end_whose_answer_was_lost_is_on_record_all_the_same(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lock("job", store=engine, once_per=60).acquire()
    link = link_for(engine)
    run = drive(begin_once(link.port, lease._claim, 0.0, "once/today", "job"))
    assert run is not None
    good = engine.faulty.put

    def lose_the_answer(*asked: Any) -> Any:
        good(*asked)
        (holding,) = engine.faulty.read(lease._claim.wanted.key, clock.now() + 30).holdings
        engine.faulty.give(lease._claim.wanted.key, holding.claim, None, clock.now() + 30)
        monkeypatch.setattr(engine.faulty, "put", good)
        raise OutcomeUnknown("planned")

    monkeypatch.setattr(engine.faulty, "put", lose_the_answer)
    assert drive(run.end(SlotState.OK, 1.0))
    assert runs_on_record(engine) == ["ok"]
    with pytest.raises(LeaseLost):
        lease.release()


def test_success_that_cannot_be_put_on_record_is_none(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*asked: Any) -> Any:
        raise StoreUnavailable("planned: no right to write", permanent=True)

    @once("job", per=60, store=engine)
    def job() -> str:
        monkeypatch.setattr(engine.faulty, "put", refuse)
        return "ran"

    @once("other", per=60, store=engine)
    async def other() -> str:
        monkeypatch.setattr(engine.faulty, "put", refuse)
        return "ran"

    good = engine.faulty.put
    with pytest.raises(LeaseLost) as lost:
        job()
    assert lost.value.reason == "unrecorded"
    monkeypatch.setattr(engine.faulty, "put", good)
    with pytest.raises(LeaseLost, match="before the end of the work was on record"):
        asyncio.run(other())
    assert runs_on_record(engine) == ["running"]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("fault", list(Fault))
def test_a_ledger_that_could_not_be_written_leaves_the_slot_to_the_next_call(
    engine: FaultyEngine, settings: dict[str, Any], place: int, fault: Fault
) -> None:
    calls: list[str] = []

    @once("job", store=engine, **settings)
    def job() -> str:
        calls.append("ran")
        return "ran"

    engine.faulty.plan("put", *[None] * place, fault)
    try:
        job()
    except StoreError:
        assert not calls
        free_again(engine)
        assert job() == "ran"
    assert calls == ["ran"]
    assert runs_on_record(engine) == ["ok"]
