"""`running`: a candidacy beside the body of an application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import incumbent
from incumbent import AsyncElection, AsyncTerm, Election, Term, clock
from tests.support.faulty import FaultyEngine
from tests.support.starts import WHEN, Limit, interrupt_start
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def holds(term: Term) -> None:
    term.wait_stop(30)


async def holds_async(term: AsyncTerm) -> None:
    await asyncio.Event().wait()


def leads(election: Election | AsyncElection) -> bool:
    return election.is_leader


async def soon(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


def test_it_leads_while_the_body_runs_and_hands_over_after_it(engine: FaultyEngine) -> None:
    first, second = (Election("a", store=engine, holder=name) for name in ("first", "second"))
    with second.running(holds):
        eventually(lambda: second.is_leader)
        with first.running(holds) as same:
            assert same is first
            assert not leads(first)
        assert leads(second)
    assert not leads(second)
    assert second.leader() is None


def test_who_waits_takes_over_once_the_leader_left(engine: FaultyEngine) -> None:
    first, second = (Election("a", store=engine, holder=name) for name in ("first", "second"))
    with second.running(holds):
        with first.running(holds):
            eventually(lambda: first.is_leader or second.is_leader)
        eventually(lambda: second.is_leader)


def test_who_only_stands_by_leaves_nothing_in_the_line(engine: FaultyEngine) -> None:
    with incumbent.Lock("a", store=engine) as lease:
        stands_by = Election("a", store=engine, holder="stands-by")
        with stands_by.running(holds):
            eventually(lambda: engine.faulty.calls["take"] > 1)
        began = clock.now()
        lease.check()
    other = incumbent.Lock("a", store=engine, timeout=5)
    with other:
        assert clock.now() - began < 5


def test_a_term_that_begins_at_the_end_of_the_body_does_no_work(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Term] = []
    taking, go_on = threading.Event(), threading.Event()
    take = engine.faulty.take

    def slow(*args: Any) -> Any:
        taking.set()
        assert go_on.wait(60)
        return take(*args)

    monkeypatch.setattr(engine.faulty, "take", slow)
    leaving = threading.Timer(0.1, go_on.set)
    with Election("a", store=engine).running(ran.append):
        assert taking.wait(60)
        leaving.start()
    assert ran == []
    assert engine.faulty.calls["give"] == 1


@WHEN
def test_a_handlers_exception_while_the_thread_starts_ends_the_candidacy(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    bodies: list[str] = []
    election = Election("a", store=engine)
    let_it_end = interrupt_start(monkeypatch, "incumbent a", when)
    with pytest.raises(Limit), election.running(holds):
        bodies.append("began")
    let_it_end()
    assert not bodies
    assert not leads(election)
    assert election.leader() is None


def test_what_the_work_raised_is_logged_at_once_and_raised_at_the_end(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(term: Term) -> None:
        raise ValueError("of the work")

    election = Election("a", store=engine)
    with pytest.raises(ValueError, match="of the work"), election.running(fails):
        eventually(lambda: "of the work" in caplog.text)
        assert not leads(election)
        assert election.leader() is None


def test_the_error_of_the_body_goes_first_and_has_the_other_as_a_note(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(term: Term) -> None:
        raise ValueError("of the work")

    with pytest.raises(KeyError) as caught, Election("a", store=engine).running(fails):
        eventually(lambda: "of the work" in caplog.text)
        raise KeyError("of the body")
    assert any("of the work" in note for note in caught.value.__notes__)


def test_work_that_returns_by_itself_ends_the_candidacy(engine: FaultyEngine) -> None:
    done = threading.Event()
    election = Election("a", store=engine)
    with election.running(lambda _: done.set()):
        assert done.wait(60)
        eventually(lambda: election.leader() is None)


def test_running_in_a_thread_refuses_work_of_asyncio(engine: FaultyEngine) -> None:
    with (
        pytest.raises(incumbent.Misuse, match="AsyncElection"),
        Election("a", store=engine).running(holds_async),  # type: ignore[arg-type]
    ):
        pass


def test_on_asyncio_it_leads_and_hands_over(engine: FaultyEngine) -> None:
    async def main() -> None:
        first, second = (AsyncElection("a", store=engine, holder=name) for name in ("1", "2"))
        async with second.running(holds_async):
            await soon(lambda: second.is_leader)
            async with first.running(holds_async) as same:
                assert same is first
                assert not leads(first)
            assert leads(second)
        assert not leads(second)
        assert await second.leader() is None

    asyncio.run(main())


def test_on_asyncio_the_work_is_cancelled_within_the_lease(engine: FaultyEngine) -> None:
    valid = []

    async def work(term: AsyncTerm) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            valid.append(term.valid)

    async def main() -> None:
        election = AsyncElection("a", store=engine)
        async with election.running(work):
            await soon(lambda: election.is_leader)

    asyncio.run(main())
    assert valid == [True]


def test_on_asyncio_what_failed_is_raised_at_the_end(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(term: AsyncTerm) -> None:
        raise ValueError("of the work")

    async def main() -> None:
        async with AsyncElection("a", store=engine).running(fails):
            await soon(lambda: "of the work" in caplog.text)

    with pytest.raises(ValueError, match="of the work"):
        asyncio.run(main())


def test_on_asyncio_a_cancelled_body_still_waits_for_the_end_of_the_work(
    engine: FaultyEngine,
) -> None:
    ended = []

    async def main() -> None:
        election = AsyncElection("a", store=engine)
        cleaning = asyncio.Event()

        async def work(term: AsyncTerm) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await asyncio.sleep(0.05)
                ended.append(term.valid)

        async def application() -> None:
            async with election.running(work):
                await asyncio.Event().wait()

        task = asyncio.create_task(application())
        await soon(lambda: election.is_leader)
        task.cancel()
        await cleaning.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]
        assert await election.leader() is None

    asyncio.run(main())


def test_a_cancellation_that_nobody_asked_for_is_a_failure_of_the_work(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the candidacy would end without a word, and the body go on without a leader."""

    async def main() -> None:
        election = AsyncElection("a", store=engine)

        async def work(term: AsyncTerm) -> None:
            other = asyncio.ensure_future(asyncio.sleep(30))
            other.cancel()
            await other

        async with election.running(work):
            await soon(lambda: "the candidacy ended" in caplog.text)
        assert await election.leader() is None

    with pytest.raises(RuntimeError, match="nobody cancelled the work"):
        asyncio.run(main())


def test_work_that_is_cancelled_in_its_turn_still_ends_as_cancelled(engine: FaultyEngine) -> None:
    async def main() -> None:
        election, begun = AsyncElection("a", store=engine), asyncio.Event()

        async def work(term: AsyncTerm) -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(election.run(work))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await election.leader() is None

    asyncio.run(main())
